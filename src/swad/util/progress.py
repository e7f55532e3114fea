"""The progress protocol of long operations such as downloading and decoding, and a progress bar for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

Progress = Callable[[str, int, int | None], None]
"""``progress(description, done, total)``; ``total`` is None if it is unknown."""


@contextmanager
def progress_bar(console: Console | None = None) -> Iterator[Progress]:
    """Show a progress bar per description on standard error; show nothing if that is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    console = console or Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks = {}

        def update(description: str, done: int, total: int | None) -> None:
            if description not in tasks:
                tasks[description] = bars.add_task(description, total=total)
            bars.update(tasks[description], completed=done, total=total)

        yield update
