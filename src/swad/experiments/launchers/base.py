"""What a launcher does: it takes tasks, trains each on some machine, and reports one outcome for each.

    with LocalLauncher(jobs=4) as launcher:
        launcher.submit(tasks)
        while outcomes := launcher.wait():
            ...

A launcher keeps nothing that is not in the run directories: whatever it started can be started again, by any launcher,
and resumes from its checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, Self

from swad.training.config import RunConfig


class LauncherError(RuntimeError):
    """No run can be started, or none can report; the message is one line that says what to do."""


@dataclass(frozen=True)
class Task:
    """One run to train.

    Args:
        key: Name of the task, unique among those of a launcher.
        config: Settings of the run. Those that depend on the machine may be unresolved: they are resolved on the
            machine that trains it. Relative paths start at the directory in which the launcher was created.
    """

    key: str
    config: RunConfig


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


class Launcher(Protocol):
    """Trains tasks; used as a context manager. Every task that was submitted has exactly one outcome."""

    @property
    def slots(self) -> int:
        """How many tasks run at a time."""

    def submit(self, tasks: Sequence[Task]) -> None:
        """Train these tasks, in this order, besides those that were submitted before."""

    def wait(self, timeout: float | None = None) -> list[Outcome]:
        """Wait for at least one outcome and return all there are; empty after `timeout` seconds, or if none is left.

        Raises:
            KeyboardInterrupt: Ctrl-C or SIGTERM. Call `stop`, then `wait` for the tasks that still run.
            LauncherError: The launcher cannot continue.
        """

    def stop(self) -> None:
        """Start no further task, and let those that run save a checkpoint. All of them report to `wait`."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...
