"""Saying how far long work is: one kind of callback for downloading, unpacking and decoding, and a bar that is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

Progress = Callable[[str, int, int | None], None]
"""Called with what is going on, how much of it is done, and of how much (None where unknown)."""


@contextmanager
def progress_bar(console: Console | None = None) -> Iterator[Progress]:
    """A bar in the terminal for every kind of work; nothing where the output is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    console = console or Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks = {}

        def show(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield show
