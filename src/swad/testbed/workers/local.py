"""Workers on this machine: one per core, or one or several per GPU. Those that are killed are replaced.

Where a run trains in several processes, a worker takes as many cores or GPUs, and starts the others for each run.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType

from swad.testbed.workers.claims import Claims, Watcher
from swad.testbed.workers.ranks import in_ranks
from swad.testbed.workers.run_queue import Runs
from swad.testbed.workers.work import (
    BROKEN_DEVICE,
    INTERRUPTED,
    MAX_STARTS,
    State,
    Train,
    is_abandoned,
    read_states,
    refresh,
    work,
)
from swad.util.processes import available_cores
from swad.util.signals import Interrupted, handle_signals, interrupt_once

PROCESSES = multiprocessing.get_context("spawn")
"""How workers start: as new processes, because forking is unsafe in a process that uses CUDA or threads."""

POLL_SECONDS = 0.5

Show = Callable[[Mapping[Path, State]], None]
"""Shows the state of every run, by its directory."""


class WorkerError(RuntimeError):
    """No run can be trained; the message is one line that says what to do."""


def train_locally(
    runs: Runs,
    claims: Claims,
    jobs: int | None = None,
    *,
    jobs_per_gpu: int = 1,
    processes: int = 1,
    device: str = "auto",
    show: Show = lambda states: None,
    train: Train | None = None,
) -> None:
    """Train all runs, several at a time, and wait for those that other commands train.

    Args:
        runs: Returns the runs; importable by name, as workers are new processes.
        claims: Who trains which run.
        jobs: How many workers. Default: see `count_jobs`.
        jobs_per_gpu: How many workers share a GPU.
        processes: How many processes train a run together.
        device: Device of the runs. With `auto` or `cuda` every worker sees its own GPUs only, one for each process;
            with another device all.
        show: Called twice a second.
        train: Function that trains a run, importable by name. Default: `swad.testbed.training.loop.train`.

    Raises:
        Interrupted: Ctrl-C or SIGTERM. All runs saved checkpoints.
        WorkerError: Workers end before they train anything, or there are fewer GPUs than processes of a run.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # a worker imports the user's script
        raise WorkerError('workers import the script that starts them: put it under if __name__ == "__main__"')
    jobs = jobs or count_jobs(device, jobs_per_gpu, processes)
    gpus = gpus_of_workers(device, processes)
    options = _Options(runs, claims, threads_per_process(jobs * processes), in_ranks(train, processes))
    refresh(runs(), claims)
    workers, watcher = _Workers(options, gpus), Watcher()
    broken, before = 0, claims.all_marks()
    with handle_signals(workers.stop):
        while True:
            by_run = read_states(runs(), claims)
            show(by_run)
            states = Counter(by_run.values())
            left = states[State.PENDING] + states[State.RUNNING]
            # A worker that was lost leaves a claim, so a new one has to look at the claims even if no run is pending.
            if left and (states[State.PENDING] or workers.lost or is_abandoned(claims, watcher)):
                workers.start(min(jobs, left))
            if not workers.running and (workers.stopping or not left):
                break
            broken += workers.wait(POLL_SECONDS)
            # Read after the workers ended: one that claimed a run and died of it is the fault of the run.
            if broken and (now := claims.all_marks()) != before:
                broken, before = 0, now
            if broken > MAX_STARTS * jobs and not workers.stopping:
                workers.stop()
                raise WorkerError(
                    f"{broken} worker processes ended before any run did (the last by {workers.last_end}): see the "
                    "messages above, and use fewer jobs if memory ran out"
                )
    if workers.stopping:
        raise interrupted(states)


def interrupted(states: Counter[State]) -> Interrupted:
    """Return the error of a command that was stopped."""
    done, total = states[State.DONE], states.total()
    return Interrupted(f"Interrupted: {done:,} of {total:,} runs are finished. Run the same command again to resume.")


@dataclass(frozen=True)
class _Options:
    runs: Runs
    claims: Claims
    threads: int
    train: Train | None


class _Workers:
    """The worker processes of a command."""

    def __init__(self, options: _Options, gpus: list[str]) -> None:
        self.running: dict[int, tuple[BaseProcess, str | None]] = {}  # and its GPUs, by its sentinel
        self.stopping = self.lost = False
        self.last_end = ""
        self._options, self._gpus = options, gpus

    def start(self, wanted: int) -> None:
        """Start workers until there are as many as wanted."""
        while len(self.running) < wanted and not self.stopping:
            load = Counter(gpu for _, gpu in self.running.values())
            gpu = min(self._gpus, key=lambda gpu: load[gpu], default=None)
            process = PROCESSES.Process(target=_work, args=(self._options, gpu))
            with handle_signals(signal.SIG_IGN, [signal.SIGINT]):  # training catches it again
                process.start()
            self.running[process.sentinel] = process, gpu
            self.lost = False
            if self.stopping:  # since it was started
                process.terminate()

    def wait(self, seconds: float) -> int:
        """Wait until a worker ends, at most some seconds; return how many ended that should not have."""
        broken = 0
        if not self.running:
            threading.Event().wait(seconds)
        for sentinel in connection.wait(list(self.running), seconds) if self.running else ():
            assert isinstance(sentinel, int)
            process, _ = self.running.pop(sentinel)
            process.join()
            code = process.exitcode or 0
            if code == INTERRUPTED and not self.stopping:  # by someone else, who means the whole command
                self.stop()
            self.lost = self.lost or code != 0
            broken += code not in (0, INTERRUPTED, BROKEN_DEVICE)
            self.last_end = f"signal {-code}, {signal.Signals(-code).name}" if code < 0 else f"status {code}"
        return broken

    def stop(self, signum: int = 0, frame: FrameType | None = None) -> None:
        """Let the workers save checkpoints and end. Called by signals, which may be sent to this process alone."""
        self.stopping = True
        for process, _ in self.running.values():
            process.terminate()


def _work(options: _Options, gpus: str | None) -> None:
    if gpus is not None:  # before CUDA starts, which reads it once
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus
    import torch

    import swad.testbed.training.loop

    assert swad.testbed.training.loop  # imported now, before SIGTERM is caught: until here it simply ends the process
    torch.set_num_threads(options.threads)
    signal.signal(signal.SIGTERM, interrupt_once)
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    try:
        work(options.runs, options.claims, options.train)
    except (Interrupted, KeyboardInterrupt):
        sys.exit(INTERRUPTED)


def _stop_with_parent() -> None:
    """Stop when the command dies: if it is killed, it cannot stop its workers."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def count_jobs(device: str = "auto", jobs_per_gpu: int = 1, processes: int = 1) -> int:
    """Return how many workers this machine gets by default, by its GPUs, or by its cores without a GPU."""
    return len(gpus_of_workers(device, processes)) * jobs_per_gpu or max(1, available_cores() // processes)


def threads_per_process(processes: int) -> int:
    """Return the share of the cores of one of several processes."""
    return max(1, available_cores() // processes)


def gpus_of_workers(device: str, processes: int = 1) -> list[str]:
    """Return the GPUs of every worker that has its own, as `CUDA_VISIBLE_DEVICES` names them; none for a CPU."""
    gpus = visible_gpus() if device in ("auto", "cuda") else []
    if gpus and len(gpus) < processes:
        raise WorkerError(
            f"a run in {processes} processes needs {processes} GPUs, and this machine has {len(gpus)}: train it in "
            "fewer processes, or on the CPU"
        )
    starts = range(0, len(gpus) - processes + 1, processes)
    return [",".join(gpus[start : start + processes]) for start in starts]


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` names them."""
    import torch

    count = torch.cuda.device_count()
    listed = [gpu.strip() for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu.strip()]
    return (listed or [str(i) for i in range(count)])[:count]
