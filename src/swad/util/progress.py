"""The progress protocol of long operations such as downloading and decoding, and how progress and times are shown."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING

from swad.util.terminal import make_console

if TYPE_CHECKING:
    from rich.console import Console

Progress = Callable[[str, int, int | None], None]
"""``progress(description, done, total)``; ``total`` is None if it is unknown."""


def part_progress(progress: Progress | None, index: int, n_parts: int, size: int = 1) -> Progress | None:
    """Return the progress of one of several parts as a share of all: of `size` parts that begin with `index`."""
    if progress is None:
        return None
    return lambda description, done, total: progress(
        description, index * (total or 0) + size * done, None if total is None else n_parts * total
    )


def count_progress(progress: Progress | None, description: str, total: int) -> Callable[[int], None]:
    """Return a function that reports how many of several steps are done; it does nothing without a `progress`."""
    return lambda done: None if progress is None else progress(description, done, total)


@contextmanager
def progress_bar(console: Console | None = None) -> Iterator[Progress]:
    """Show a progress bar per description on standard error; show nothing if that is not a terminal."""
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    console = console or make_console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks = {}

        def update(description: str, done: int, total: int | None) -> None:
            if description not in tasks:
                tasks[description] = bars.add_task(description, total=total)
            bars.update(tasks[description], completed=done, total=total)

        yield update


@contextmanager
def progress_report() -> Iterator[Progress]:
    """Show a progress bar on a terminal; elsewhere print a line to standard error after every tenth."""
    console = make_console(stderr=True)
    if console.is_terminal:
        with progress_bar(console) as update:
            yield update
    else:
        yield _ProgressLines()


class _ProgressLines:
    """Prints "description: 30 %, 1 min 12 s, 2 min 48 s left", at most every few seconds."""

    SECONDS = 5.0

    def __init__(self) -> None:
        # By description: when it started, what was already done then and took no time, the last line and its tenth.
        self._states: dict[str, tuple[float, int, float, int]] = {}

    def __call__(self, description: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        start, first_done, last_line, last_tenth = self._states.setdefault(description, (now, done - 1, now, 0))
        if total is None:
            return
        tenth = 10 * done // total
        if tenth > last_tenth and (now - last_line >= self.SECONDS or tenth == 10):
            self._states[description] = (start, first_done, now, tenth)
            elapsed = now - start
            left = elapsed * (total - done) / max(1, done - first_done)
            times = f"{duration(elapsed)}, {duration(left)} left"
            print(f"{description}: {10 * tenth} %, {times}", file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """Return a time span with its two largest units.

    >>> duration(0.4), duration(75), duration(8000), duration(400_000)
    ('0.4 s', '1 min 15 s', '2 h 13 min', '4 d 15 h')
    """
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    rest = round(seconds)
    for (unit, size), (smaller, part) in pairwise(_UNITS):
        if rest >= size:
            return f"{rest // size:,} {unit} {rest % size // part} {smaller}"
    return f"{rest} s"


_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
