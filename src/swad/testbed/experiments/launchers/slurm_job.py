"""What a Slurm job does: train its runs one after another, report them, and go back into the queue before its limit."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from swad.testbed.experiments.launchers.base import Task
from swad.testbed.experiments.launchers.work import Train, leave_broken_device, train_task
from swad.util.jsonl import JsonlWriter
from swad.util.signals import interrupt_once

_REPORTED = ("status", "message", "seconds", "step", "elsewhere")


@dataclass
class JobFunction:
    """What a job does: train its tasks one after another, and go back into the queue before its time limit.

    Args:
        tasks: The tasks. Those that are finished when the job starts again take no time.
        folder: Directory in which the launcher was created.
        report: File to which the outcome of every task is appended.
        threads: CPU threads.
        train: Function that trains a run.
    """

    tasks: tuple[Task, ...]
    folder: Path
    report: Path
    threads: int
    train: Train | None

    def __call__(self) -> None:
        """Train; called by submitit in the process of the job."""
        os.chdir(self.folder)
        import torch

        torch.set_num_threads(self.threads)
        time_limit = _TimeLimit()
        with suppress(KeyboardInterrupt):  # a signal between two tasks
            self._train_tasks(time_limit)
        time_limit.requeue_if_signalled()

    def _train_tasks(self, time_limit: _TimeLimit) -> None:
        with JsonlWriter(self.report) as report:
            for task in self.tasks:
                outcome = train_task(task, self.train)
                leave_broken_device(outcome)
                time_limit.requeue_if_signalled()
                values = {name: getattr(outcome, name) for name in _REPORTED}
                report.write(json.dumps({"key": task.key, **values}))
                if outcome.status == "interrupted" and not outcome.elsewhere:  # SIGTERM: the job was cancelled
                    return

    def checkpoint(self) -> Any:
        """Return what the job does when it starts again; called by submitit when it puts the job into the queue."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class _TimeLimit:
    """The signal before the time limit.

    Submitit's handler would leave the process at once, in the middle of a step. Instead the run is stopped as by
    SIGTERM, which saves a checkpoint, and submitit's handler is called after that.
    """

    def __init__(self) -> None:
        from submitit.core.job_environment import JobEnvironment

        self._signum = JobEnvironment._usr_sig()
        self._submitit_handler: Any = signal.signal(self._signum, self._handle)
        self._signalled = False
        signal.signal(signal.SIGTERM, interrupt_once)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        self._signalled = True
        os.kill(os.getpid(), signal.SIGTERM)

    def requeue_if_signalled(self) -> None:
        if self._signalled:
            self._submitit_handler(self._signum, None)  # does not return
