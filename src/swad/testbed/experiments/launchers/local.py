"""Train tasks in processes on this machine: one per core, or one or several per GPU.

A worker process trains one task after another, so only its first task pays for imports, kernels and the image cache.
A worker that is killed, for example because memory ran out, is replaced, and its run resumes from its checkpoint.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection
from types import FrameType
from typing import TYPE_CHECKING, Any

from swad.testbed.experiments.launchers.base import Launcher, LauncherError, Outcome, Task, count_problems
from swad.testbed.experiments.launchers.local_worker import WorkerOptions, work
from swad.testbed.experiments.launchers.work import MAX_ATTEMPTS, Train, failed
from swad.util.cpu import available_cores
from swad.util.signals import handle_signals

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from swad.testbed.training.display import LogDisplay

PROCESSES = multiprocessing.get_context("spawn")
"""How workers start: as new processes, because forking is unsafe in a process that uses CUDA or threads."""

POLL_SECONDS = 0.2
"""Longest time until a signal is noticed."""


class LocalLauncher(Launcher):
    """Processes on this machine.

    Args:
        jobs: How many tasks run at a time. Default: `jobs_per_gpu` for each GPU, or one per core without a GPU.
        jobs_per_gpu: How many tasks share a GPU.
        device: Device of the tasks. With `auto` or `cuda` every worker sees one GPU only; with another device all.
        display: Shows the progress of every run. Default: none.
        train: Function that trains a run, importable by name. Default: `swad.testbed.training.loop.train`.
    """

    def __init__(
        self,
        jobs: int | None = None,
        *,
        jobs_per_gpu: int = 1,
        device: str = "auto",
        display: LogDisplay | None = None,
        train: Train | None = None,
    ) -> None:
        if problems := count_problems({"jobs": jobs, "jobs_per_gpu": jobs_per_gpu}):
            raise ValueError(problems[0])
        if getattr(multiprocessing.current_process(), "_inheriting", False):  # a worker imports the user's script
            raise LauncherError('workers import the script that starts them: put it under if __name__ == "__main__"')
        super().__init__(POLL_SECONDS)
        self._gpus = visible_gpus() if device in ("auto", "cuda") else []
        self._slots = jobs or len(self._gpus) * jobs_per_gpu or available_cores()
        self._display, self._train = display, train
        self._workers: list[_Worker] = []
        self._kills: Counter[str] = Counter()  # how often in a row each task lost its worker
        self._failed_starts = 0

    @property
    def slots(self) -> int:
        """How many tasks run at a time."""
        return self._slots

    # -- workers --------------------------------------------------------------------------------------------------

    @property
    def _busy(self) -> bool:
        return bool(self._queue) or any(worker.task for worker in self._workers)

    def _look(self, seconds: float) -> None:
        self._receive(seconds)
        self._start_tasks()

    def _start_tasks(self) -> None:
        """Give every free worker a task, and start workers while there are fewer than slots."""
        while self._queue and not self._stopping and not self._interrupted:
            free = next((worker for worker in self._workers if worker.task is None), None)
            if free is None:
                if len(self._workers) >= self._slots:
                    return
                free = self._start_worker()
            task = self._queue.popleft()
            free.task, free.start = task, time.perf_counter()
            with suppress(OSError):  # it was killed: its end is noticed like that of any other
                free.connection.send(task)

    def _start_worker(self) -> _Worker:
        load = Counter(worker.gpu for worker in self._workers)
        gpu = min(self._gpus, key=lambda gpu: load[gpu], default=None)
        options = WorkerOptions(threads_per_run(self._slots), gpu, self._display is not None, self._train)
        ours, theirs = PROCESSES.Pipe()
        process = PROCESSES.Process(target=work, args=(theirs, options))
        # An interrupt while the worker imports would crash it. Training catches SIGINT again.
        with handle_signals(signal.SIG_IGN, [signal.SIGINT]):
            process.start()
        theirs.close()  # so that the end of the worker closes the pipe
        worker = _Worker(process, ours, gpu)
        self._workers.append(worker)
        return worker

    def _receive(self, seconds: float) -> None:
        """Handle the messages of all workers, waiting up to some seconds for the first."""
        workers: dict[Any, _Worker] = {worker.connection: worker for worker in self._workers}
        if not workers:
            return
        connection.wait(list(workers), seconds)
        for worker in workers.values():
            # The pipe of a killed worker stays open while processes that loaded its images live on, so ask for both:
            # first whether it lives, since it may write its last message after an empty pipe was read.
            alive = worker.process.is_alive()
            try:
                while worker.connection.poll():
                    self._handle(worker, *worker.connection.recv())
            except (EOFError, OSError):
                alive = False
            if not alive:
                self._lose(worker)

    def _handle(self, worker: _Worker, message: str, *arguments: Any) -> None:
        if message == "ready":
            worker.ready, self._failed_starts = True, 0
        elif message == "display":
            event, *values = arguments
            getattr(self._display, event)(*values)
        elif message == "signalled":  # by someone else, who means the whole command
            self._interrupted = True
        elif message == "outcome":
            outcome: Outcome = arguments[0]
            worker.task = None
            self._kills.pop(outcome.task.key, None)
            self._outcomes.append(outcome)

    def _lose(self, worker: _Worker) -> None:
        """Retry the task of a worker that ended, unless it was asked to end or the task ends every worker."""
        worker.process.join()
        worker.connection.close()
        self._workers.remove(worker)
        task, seconds = worker.task, time.perf_counter() - worker.start
        if self._stopping or self._interrupted:
            if task is not None:
                self._outcomes.append(Outcome(task, "interrupted", f"{task.config.output} was stopped", seconds))
            return
        if not worker.ready:
            self._failed_starts += 1
            if self._failed_starts == MAX_ATTEMPTS:
                raise LauncherError(
                    f"{MAX_ATTEMPTS} worker processes in a row ended while they started ({worker.exit_reason}): "
                    "see the messages above, and use fewer jobs if memory ran out"
                )
        if task is None:
            return
        self._kills[task.key] += worker.ready
        if self._kills[task.key] < MAX_ATTEMPTS:
            self._queue.appendleft(task)
            return
        message = (
            f"{task.config.output}: its process ended {MAX_ATTEMPTS} times in a row ({worker.exit_reason}); if memory "
            "ran out, use fewer jobs or a smaller batch_size, then run the command again to resume"
        )
        self._outcomes.append(failed(task, message, seconds))

    # -- the end --------------------------------------------------------------------------------------------------

    def _stop_running(self) -> None:
        for worker in self._workers:
            with suppress(OSError):
                worker.connection.send(None)  # a worker without a task ends by itself
        self._terminate()

    def _terminate(self) -> None:
        for worker in self._workers:
            if worker.task is not None:
                worker.process.terminate()

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        """Stop the workers at once: a signal may be sent to this process alone."""
        super()._on_signal(signum, frame)
        self._terminate()

    def _close(self) -> None:
        self.stop()  # also ends workers without a task
        while self._workers:
            self._receive(POLL_SECONDS)


@dataclass
class _Worker:
    """A worker process, the pipe to it, and its task."""

    process: BaseProcess
    connection: connection.Connection[Any, Any]
    gpu: str | None
    task: Task | None = None
    start: float = 0.0
    ready: bool = False

    @property
    def exit_reason(self) -> str:
        code = self.process.exitcode
        return f"signal {-code}, {signal.Signals(-code).name}" if code is not None and code < 0 else f"status {code}"


def threads_per_run(jobs: int) -> int:
    """Return one run's share of the cores."""
    return max(1, available_cores() // jobs)


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` names them."""
    import torch

    count = torch.cuda.device_count()
    listed = [gpu.strip() for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu.strip()]
    return (listed or [str(i) for i in range(count)])[:count]
