"""Follow a run while it trains: pass a `RunCallback` to `train`. The display, bars or lines, is one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self

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
from rich.text import Text

from swad.util.terminal import make_console

if TYPE_CHECKING:
    from torch import Tensor

    from swad.averaging.spans import Status
    from swad.testbed.training.config import ResolvedConfig
    from swad.testbed.training.run_dir import RunResult

REFRESH_SECONDS = 0.2
"""Least time between two reads of the training loss: reading it waits for the device."""


class RunCallback:
    """Receives the events of a run, in the main process only.

    Subclass it and override the events of interest; the methods of this class do nothing. Any object with some of
    these methods will do as well.
    """

    def on_start(self, config: ResolvedConfig, total: int, step: int) -> None:
        """Training starts, or is resumed after `step` of `total` steps."""

    def on_log(self, message: str) -> None:
        """Log how the run is computed: a choice that was made, or a fallback and its reason."""

    def on_progress(self, description: str, done: int, total: int | None) -> None:
        """Work before the first step has progressed; the signature is that of `swad.util.progress.Progress`."""

    def on_step(self, step: int, loss: Tensor) -> None:
        """A step was made. Reading the loss waits for the device, so read it rarely.

        The next step may write to the same tensor: clone it to keep it.
        """

    def on_evaluation(
        self,
        step: int,
        train_loss: float,
        losses: Mapping[str, float],
        accuracies: Mapping[str, float],
        statuses: Mapping[str, Status],
    ) -> None:
        """The live weights were evaluated.

        Args:
            step: Steps made so far.
            train_loss: Mean training loss since the last evaluation.
            losses: Validation loss of every source domain.
            accuracies: Validation accuracy of every source domain, from 0 to 1.
            statuses: Status of every average.
        """

    def on_stage(self, description: str) -> None:
        """Work after the last step starts, such as "evaluating swad"."""

    def on_end(self, result: RunResult) -> None:
        """The run is finished. Also called for a run that was finished before."""


EVENTS = tuple(name for name in vars(RunCallback) if name.startswith("on_"))
"""The names of all events."""


def combine(callbacks: Sequence[object]) -> RunCallback:
    """Return a callback that passes every event to those of several objects that have a method for it.

    >>> class Steps:
    ...     def on_step(self, step, loss):
    ...         print(step, loss)
    >>> combine([Steps(), RunCallback()]).on_step(1, 0.5)
    1 0.5
    """
    combined = RunCallback()
    for callback in callbacks:
        if not any(callable(getattr(callback, name, None)) for name in EVENTS):
            raise TypeError(f"a callback needs at least one of the methods {', '.join(EVENTS)}, got {callback!r}")
    for name in EVENTS:
        methods = [method for callback in callbacks if callable(method := getattr(callback, name, None))]
        setattr(combined, name, partial(_call_all, methods))
    return combined


def _call_all(methods: Sequence[Callable[..., object]], *arguments: Any) -> None:
    for method in methods:
        method(*arguments)


# -- the display ------------------------------------------------------------------------------------------------------


def make_display(n_runs: int) -> Display:
    """Return bars where standard error is a terminal or a notebook shows them, plain lines elsewhere."""
    return Display(n_runs, make_console(stderr=True))


class Display(RunCallback):
    """Shows runs that are trained one after another: a bar for the run and one for all runs.

    Without a terminal it prints one line per event, and at most ten for the steps of a run.
    """

    def __init__(self, n_runs: int, console: Console) -> None:
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            console=console,
            expand=True,
            disable=not (console.is_terminal or console.is_jupyter),
        )
        self._n_runs, self._n_finished, self._n_finished_before = n_runs, 0, 0
        self._name, self._total, self._validation_text = "", 1, ""
        self._tasks: dict[str, TaskID] = {}
        # Counts runs, including the part that is done of this one, so the time left is known from the start.
        self._all_runs = self._bars.add_task("all runs", total=n_runs, text="") if n_runs > 1 else None
        self._last_refresh = 0.0
        self._messages: set[str] = set()
        self._tenths: dict[str, int] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def of_run(self, name: str) -> Self:
        """Show the events that follow under the name of the run that is trained next."""
        self._name, self._validation_text = name, ""
        return self

    def on_start(self, config: ResolvedConfig, total: int, step: int) -> None:
        """Training starts, resumes after `step` updates, or branches from another run there."""
        from swad.testbed.training.recipes import averaging_plan

        self._total, self._tenths[self._name] = total, step * 10 // total
        self._tasks[self._name] = self._bars.add_task(self._name, total=total, completed=step, text="")
        trunk = config.branch_from
        begins = "resumes" if trunk is None or step != averaging_plan(config).late else f"branches from {trunk}"
        if self._bars.disable:
            self._print(f"{self._name}: " + (f"{begins} after step {step} of {total}" if step else f"{total} steps"))

    def on_log(self, message: str) -> None:
        """Show a message; what several runs report is shown once."""
        if message not in self._messages:
            self._messages.add(message)
            self._print(message)

    def on_progress(self, description: str, done: int, total: int | None) -> None:
        """Show work that precedes the first step, such as decoding images."""
        if self._bars.disable:
            if self._is_next_tenth(description, done, total or 0):
                self._print(f"{description}: {done:,} of {total:,}")
            return
        if description not in self._tasks:
            self._tasks[description] = self._bars.add_task(description, total=total, text="")
        self._bars.update(self._tasks[description], completed=done, total=total)
        if done == total:
            self._bars.remove_task(self._tasks.pop(description))

    def on_step(self, step: int, loss: Tensor) -> None:
        """Read the loss and advance the bars, a few times per second."""
        now = time.monotonic()
        if not self._bars.disable and now - self._last_refresh >= REFRESH_SECONDS:
            self._last_refresh = now
            self._advance(step, f"loss {float(loss):.3f}  {self._validation_text}")

    def on_evaluation(
        self,
        step: int,
        train_loss: float,
        losses: Mapping[str, float],
        accuracies: Mapping[str, float],
        statuses: Mapping[str, Status],
    ) -> None:
        """Show the mean validation loss and the phase of the loss valley."""
        mean_loss = sum(losses.values()) / len(losses)
        # Of several averages show the most informative one: one with a threshold, else one that still searches.
        status = max(
            statuses.values(), key=lambda one: (one.threshold is not None, one.phase == "searching"), default=None
        )
        self._validation_text = f"val {mean_loss:.3f}" + (f"  {status.phase}" if status else "")
        text = f"loss {train_loss:.3f}  {self._validation_text}"
        self._advance(step, text)
        if self._bars.disable and self._is_next_tenth(self._name, step, self._total):
            self._print(f"{self._name}: step {step}/{self._total}  {text}: {status.reason if status else ''}")

    def on_stage(self, description: str) -> None:
        """Show the work after the last step."""
        self._bars.update(self._tasks[self._name], completed=self._total, text=description)

    def on_end(self, result: RunResult) -> None:
        """Show the accuracy of every average: on the target, or without one on the validation splits."""
        has_target = bool(result.config.targets)
        accuracy = result.target_accuracy if has_target else result.source_accuracy
        accuracies = "  ".join(f"{name} {100 * accuracy(name):.1f}" for name in result.scores)
        text = f"{'target' if has_target else 'validation'} accuracy: {accuracies}"
        self._n_finished += 1
        if self._name in self._tasks:
            self._bars.remove_task(self._tasks.pop(self._name))
        else:  # it was finished before: it must not count as fast work
            self._n_finished_before += 1
        self._advance_all(0.0)
        if self._bars.disable:
            self._print(f"{self._name}: finished ({self._n_finished} of {self._n_runs}), {text}")
        else:
            self._bars.console.print(Text.assemble((self._name, "bold"), f" {text}"))

    def _is_next_tenth(self, name: str, done: int, total: int) -> bool:
        tenth = done * 10 // total if total else 0
        is_next = tenth > self._tenths.get(name, 0)
        self._tenths[name] = max(tenth, self._tenths.get(name, 0))
        return is_next

    def _advance(self, step: int, text: str) -> None:
        self._bars.update(self._tasks[self._name], completed=step, text=text)
        self._advance_all(step / self._total)

    def _advance_all(self, part: float) -> None:
        if self._all_runs is not None:
            before = self._n_finished_before
            done = self._n_finished - before + part
            self._bars.update(self._all_runs, completed=done, total=self._n_runs - before)

    def _print(self, text: str) -> None:
        if self._bars.disable:
            print(text, flush=True)
        else:
            self._bars.console.print(text, markup=False, highlight=False)
