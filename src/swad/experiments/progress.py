"""TODO."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

if TYPE_CHECKING:
    from torch import Tensor

    from swad.averaging.valley import Status
    from swad.training.config import RunConfig
    from swad.training.result import RunResult

REFRESH = 0.2
"""Seconds between two looks at the loss: reading it waits for the device."""


class Watcher:
    """Follows one run and tells `show` what to draw: a bar's place, the loss, the valley's phase."""

    def __init__(self, name: str, show: Show) -> None:
        self.name, self._show = name, show
        self._text = ""
        self._loss = ""
        self._looked = 0.0

    def on_start(self, config: RunConfig, total: int, step: int) -> None:
        """Training begins, or goes on."""
        self._show.start(self.name, total, step)

    def on_log(self, text: str) -> None:
        """Say how the run is computed."""
        self._show.note(text)

    def on_progress(self, what: str, done: int, total: int | None) -> None:
        """Work before the first step."""
        self._show.prepare(what, done, total)

    def on_step(self, step: int, loss: Tensor) -> None:
        """Now and then, read the loss and move the bar."""
        now = time.monotonic()
        if now - self._looked >= REFRESH:
            self._looked = now
            self._loss = f"loss {float(loss):.3f}"
            self._show.move(self.name, step, f"{self._loss}  {self._text}")

    def on_evaluation(
        self, step: int, train_loss: float, losses: Mapping[str, float], statuses: Mapping[str, Status]
    ) -> None:
        """Say what the validation loss is and where the valley stands."""
        mean = sum(losses.values()) / len(losses)
        own = [status for name, status in statuses.items() if "@" not in name]
        # The one that says most: a valley, found or at least looked for.
        valley = max(own, key=lambda status: (status.threshold is not None, status.phase == "searching"), default=None)
        self._text = f"val {mean:.3f}" + (f"  {valley.phase}" if valley else "")
        self._show.evaluated(self.name, step, f"loss {train_loss:.3f}  {self._text}", valley.reason if valley else "")

    def on_end(self, result: RunResult) -> None:
        """Say what came out."""
        scores = "  ".join(f"{label} {100 * result.target_accuracy(label):.1f}" for label in result.scores)
        self._show.end(self.name, result.steps, scores)


class Show:
    """One line per event, for logs and pipes."""

    def __init__(self, n_runs: int) -> None:
        self._n_runs, self._done = n_runs, 0
        self._total: dict[str, int] = {}
        self._notes: set[str] = set()
        self._told: dict[str, int] = {}

    def __enter__(self) -> Show:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def start(self, name: str, total: int, step: int) -> None:
        """A run begins, or goes on."""
        self._total[name] = total
        self._told[name] = step * 10 // total
        print(
            f"{name}: {f'goes on after step {step} of' if step else ''} {total} steps".replace(":  ", ": "), flush=True
        )

    def note(self, text: str) -> None:
        """Something about how runs are computed; what holds for several is said once."""
        if text not in self._notes:
            self._notes.add(text)
            self._say(text)

    def _say(self, text: str) -> None:
        print(text, flush=True)

    def prepare(self, what: str, done: int, total: int | None) -> None:
        """Work that runs have in common, before their first step; one line for every tenth."""
        tenth = done * 10 // total if total else 0
        if tenth > self._told.get(what, 0):
            self._told[what] = tenth
            print(f"{what}: {done:,} of {total:,}", flush=True)

    def move(self, name: str, step: int, text: str) -> None:
        """A step was made."""

    def evaluated(self, name: str, step: int, text: str, reason: str) -> None:
        """An evaluation was made; one line for every tenth of the run."""
        tenth = step * 10 // self._total[name]
        if tenth > self._told[name]:
            self._told[name] = tenth
            print(f"{name}: step {step}/{self._total[name]}  {text.strip()}: {reason}", flush=True)

    def end(self, name: str, steps: int, text: str) -> None:
        """A run is done."""
        self._done += 1
        print(f"{name}: done ({self._done} of {self._n_runs}), target accuracy: {text}", flush=True)


class Bars(Show):
    """A bar for every run under way, and one for all of them."""

    def __init__(self, n_runs: int, console: Console) -> None:
        super().__init__(n_runs)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[text]}"),
            console=console,
            expand=True,
        )
        self._tasks: dict[str, TaskID] = {}
        self._all = self._progress.add_task("all runs", total=n_runs, text="") if n_runs > 1 else None

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def start(self, name: str, total: int, step: int) -> None:
        """A run begins, or goes on."""
        self._tasks[name] = self._progress.add_task(name, total=total, completed=step, text="")

    def _say(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False)

    def prepare(self, what: str, done: int, total: int | None) -> None:
        """Work that runs have in common."""
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=total, text="")
        self._progress.update(self._tasks[what], completed=done, total=total)
        if done == total:
            self._progress.remove_task(self._tasks.pop(what))

    def move(self, name: str, step: int, text: str) -> None:
        """A step was made."""
        self._progress.update(self._tasks[name], completed=step, text=text)

    def evaluated(self, name: str, step: int, text: str, reason: str) -> None:
        """An evaluation was made."""
        self.move(name, step, text)

    def end(self, name: str, steps: int, text: str) -> None:
        """A run is done: its bar makes room for a line."""
        if name in self._tasks:
            self._progress.remove_task(self._tasks.pop(name))
        self._progress.console.print(f"[bold]{name}[/] target accuracy  {text}")
        if self._all is not None:
            self._progress.advance(self._all)
