"""Show how far runs are, from their directories alone: bars in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from swad.testbed.results.failures import read_failure
from swad.testbed.results.records import CONFIG, RECORDS
from swad.testbed.workers.work import State
from swad.util.files import read_json
from swad.util.progress import duration
from swad.util.terminal import make_console

SECONDS = 30.0
"""Least time between two lines."""


class Watch:
    """Called with the state of every run by its directory; shows each failure once.

    Args:
        name: Returns the name of a run.
    """

    def __init__(self, name: Callable[[Path], str] = str) -> None:
        console = make_console(stderr=True)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        self._bars = Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal)
        self._name = name
        self._tasks: dict[Path, TaskID] = {}
        self._failed: set[Path] | None = None
        self._start, self._first, self._last, self._line = time.monotonic(), -1.0, -math.inf, ""

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def log(self, message: str) -> None:
        """Show a message."""
        if self._bars.disable:
            print(message, flush=True)
        else:
            self._bars.console.print(message, markup=False, highlight=False)

    def __call__(self, states: Mapping[Path, State]) -> None:
        """Show what changed."""
        failed = {path for path, state in states.items() if state is State.FAILED}
        for path in sorted(failed - (failed if self._failed is None else self._failed)):
            failure = read_failure(path)
            self.log(f"failed: {self._name(path)}: {failure.error if failure else 'the reason was not stored'}")
        self._failed = failed
        if self._bars.disable:
            self._print_line(states)
        else:
            self._draw_bars(states)

    def _print_line(self, states: Mapping[Path, State]) -> None:
        counts, now = Counter(states.values()), time.monotonic()
        left = counts[State.PENDING] + counts[State.RUNNING]
        if left and now - self._last < SECONDS:
            return
        self._last = now
        # Runs that are half done count half: the estimate must fall between two runs that end.
        shares = sum(_share(path) for path, state in states.items() if state is State.RUNNING)
        done = counts[State.DONE] + shares
        self._first = done if self._first < 0 else self._first
        failed = f", {counts[State.FAILED]:,} failed" * (State.FAILED in counts)
        text = f"{counts[State.DONE]:,} of {len(states):,} runs finished{failed}"
        if left and done > self._first:
            text += f", about {duration((now - self._start) / (done - self._first) * (left - shares))} left"
        if text != self._line:
            self._line = text
            print(text, flush=True)

    def _draw_bars(self, states: Mapping[Path, State]) -> None:
        for path in {*self._tasks, *(path for path, state in states.items() if state is State.RUNNING)}:
            if states.get(path) is not State.RUNNING:
                self._bars.remove_task(self._tasks.pop(path))
                continue
            if path not in self._tasks:
                self._tasks[path] = self._bars.add_task(self._name(path), total=None)
            completed, total = _steps(path)
            self._bars.update(self._tasks[path], completed=completed, total=total)


def _share(path: Path) -> float:
    """Return the share of its steps that a run has recorded."""
    done, total = _steps(path)
    return min(done / total, 1.0) if total else 0.0


def _steps(path: Path) -> tuple[int, int | None]:
    """Return the steps that a run has recorded, and its total if it is known."""
    done, total = 0, None
    with suppress(OSError, ValueError, LookupError, TypeError):  # nothing is written yet
        sections = read_json(path / CONFIG)["config"]
        total = int(next(section["steps"] for section in sections.values() if "steps" in section))
        with (path / RECORDS).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - 4096))
            done = int(json.loads(file.read().splitlines()[-1])["step"])
    return done, total
