"""What launchers share: outcomes wait for the caller, and a signal ends `wait` but nothing that is under way."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Self

from swad.experiments.launchers.base import Outcome, Task
from swad.experiments.launchers.signals import catch_signals


class PollingLauncher(ABC):
    """Looks for outcomes again and again while `wait` runs.

    Args:
        poll_seconds: Longest time between two looks, and until a signal is noticed.
    """

    def __init__(self, poll_seconds: float) -> None:
        self._poll_seconds = poll_seconds
        self._outcomes: list[Outcome] = []
        self._stopping = self._interrupted = False
        self._restore_signals: Callable[[], None] = lambda: None

    @property
    @abstractmethod
    def _busy(self) -> bool:
        """Whether an outcome may still come."""

    @abstractmethod
    def _look(self, seconds: float) -> None:
        """Add the outcomes there are to `_outcomes`, waiting up to some seconds for the first."""

    def wait(self, timeout: float | None = None) -> list[Outcome]:
        """Wait for at least one outcome and return all there are; empty after `timeout`, or if no task is left.

        Raises:
            KeyboardInterrupt: Ctrl-C or SIGTERM. Call `stop`, then `wait` again.
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

    def __enter__(self) -> Self:
        self._restore_signals = catch_signals(self._on_signal)
        return self

    def _on_signal(self) -> None:
        """Handle a signal, in between any two instructions. `wait` tells the caller."""
        self._interrupted = True

    def _poll(self, seconds: float) -> None:
        if self._interrupted and not self._stopping:
            self._interrupted = False
            raise KeyboardInterrupt
        self._look(seconds)

    def _report_not_started(self, tasks: Iterable[Task]) -> None:
        self._outcomes += [Outcome(task, "interrupted", f"{task.config.output} was not started") for task in tasks]
