"""What a launcher does: it takes tasks, trains each on some machine, and reports one outcome for each.

    with LocalLauncher(jobs=4) as launcher:
        launcher.submit(tasks)
        while outcomes := launcher.wait():
            ...

A launcher keeps nothing that is not in the run directories: whatever it started can be started again, by any launcher,
and resumes from its checkpoint.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import FrameType
from typing import Literal, Self

from swad.testbed.training.config import RunConfig
from swad.util.signals import handle_signals


def count_problems(counts: Mapping[str, int | None]) -> list[str]:
    """Say which counts are below 1, one sentence each; None is the launcher's default."""
    return [f"{name} must be 1 or more, got {n}" for name, n in counts.items() if n is not None and n < 1]


class LauncherError(RuntimeError):
    """No run can be started, or none can report; the message is one line that says what to do."""


@dataclass(frozen=True)
class Task:
    """One run to train.

    Args:
        key: Name of the task, unique among those of a launcher.
        config: Settings of the run. Those that depend on the machine may be unresolved: they are resolved on the
            machine that trains it. Relative paths start at the directory in which the launcher was created.
        name: Its name in displays. Empty: the key.
    """

    key: str
    config: RunConfig
    name: str = ""


@dataclass(frozen=True)
class Outcome:
    """How a task ended.

    Args:
        status: `finished`; `failed`, with `failure.json` in the run directory; or `interrupted`: stopped, not started
            or trained by another process, so that it can be started again.
        message: One line for a task that is not finished.
        seconds: Time from its start to its end.
        step: Step from which an interrupted run resumes; 0 if it starts again.
        elsewhere: Whether it was left alone because another process trains it.
    """

    task: Task
    status: Literal["finished", "failed", "interrupted"]
    message: str = ""
    seconds: float = 0.0
    step: int = 0
    elsewhere: bool = False


class Launcher(ABC):
    """Trains tasks; used as a context manager. Every task that was submitted has exactly one outcome.

    A signal ends `wait`, but nothing that is under way.

    Args:
        poll_seconds: Longest time between two looks for outcomes, and until a signal is noticed.
    """

    def __init__(self, poll_seconds: float) -> None:
        self._poll_seconds = poll_seconds
        self._queue: deque[Task] = deque()
        self._outcomes: list[Outcome] = []
        self._stopping = self._interrupted = False
        self._signals = ExitStack()

    @property
    @abstractmethod
    def slots(self) -> int:
        """How many tasks run at a time."""

    def submit(self, tasks: Sequence[Task]) -> None:
        """Train these tasks, in this order, after those that were submitted before."""
        if self._stopping:
            self._report_not_started(tasks)
        else:
            self._queue.extend(tasks)
            self._start_tasks()

    def wait(self, timeout: float | None = None) -> list[Outcome]:
        """Wait for at least one outcome and return all there are; empty after `timeout` seconds, or if none is left.

        Raises:
            KeyboardInterrupt: Ctrl-C or SIGTERM. Call `stop`, then `wait` for the tasks that still run.
            LauncherError: The launcher cannot continue.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        self._poll(0)
        while not self._outcomes and self._busy:
            left = self._poll_seconds if deadline is None else min(self._poll_seconds, deadline - time.monotonic())
            if left <= 0:
                break
            self._poll(left)
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def stop(self) -> None:
        """Start no further task, and let those that run save a checkpoint. All of them report to `wait`."""
        self._stopping = True
        self._report_not_started(self._queue)
        self._queue.clear()
        self._stop_running()

    def __enter__(self) -> Self:
        self._signals.enter_context(handle_signals(self._on_signal))
        return self

    def __exit__(self, *_: object) -> None:
        with self._signals:
            self._close()

    # -- what a kind of launcher does -----------------------------------------------------------------------------

    @property
    @abstractmethod
    def _busy(self) -> bool:
        """Whether an outcome may still come."""

    @abstractmethod
    def _start_tasks(self) -> None:
        """Start tasks of the queue, as many as there is room for."""

    @abstractmethod
    def _look(self, seconds: float) -> None:
        """Add the outcomes there are to `_outcomes`, waiting up to some seconds for the first."""

    @abstractmethod
    def _stop_running(self) -> None:
        """Stop the tasks that run."""

    @abstractmethod
    def _close(self) -> None:
        """End whatever the launcher started."""

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        """Handle a signal, in between any two instructions. `wait` tells the caller."""
        self._interrupted = True

    # -- what they share ------------------------------------------------------------------------------------------

    def _poll(self, seconds: float) -> None:
        if self._interrupted and not self._stopping:
            self._interrupted = False
            raise KeyboardInterrupt
        self._look(seconds)

    def _report_not_started(self, tasks: Iterable[Task]) -> None:
        self._outcomes += [Outcome(task, "interrupted", f"{task.config.output} was not started") for task in tasks]
