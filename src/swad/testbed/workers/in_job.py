"""What a worker command does, such as `swad sweep work DIR`: in a terminal, a Slurm job or a job of any scheduler."""

from __future__ import annotations

import os
import signal
from types import FrameType

from swad.testbed.workers import slurm
from swad.testbed.workers.claims import Claims
from swad.testbed.workers.local import train_locally, visible_gpus
from swad.testbed.workers.run_queue import Runs
from swad.testbed.workers.work import work
from swad.util.processes import available_cores
from swad.util.signals import Interrupted, handle_signals, interrupt_once


def work_here(runs: Runs, claims: Claims, jobs: int | None = None, device: str = "auto") -> None:
    """Train runs until none is left that nobody trains. A Slurm job goes back into the queue before its time limit.

    Args:
        runs: Returns the runs.
        claims: Who trains which run.
        jobs: Runs at a time. Default: one per GPU, so that a job with a whole node uses it; without a GPU one.
        device: Device of the runs.

    Raises:
        Interrupted: Ctrl-C or SIGTERM. The runs saved checkpoints.
    """
    jobs = jobs or max(1, len(visible_gpus()) if device in ("auto", "cuda") else 1)
    at_limit = False

    def stop_before_limit(signum: int, frame: FrameType | None) -> None:
        nonlocal at_limit
        at_limit = True
        os.kill(os.getpid(), signal.SIGTERM)  # the runs save checkpoints

    signals = [signal.SIGUSR1] if "SLURM_JOB_ID" in os.environ else []
    with handle_signals(stop_before_limit, signals):
        try:
            if jobs > 1:
                train_locally(runs, claims, jobs, device=device)
            else:
                _work(runs, claims)
        except (Interrupted, KeyboardInterrupt):
            if not at_limit:
                raise
    if at_limit:
        slurm.requeue()


def _work(runs: Runs, claims: Claims) -> None:
    import torch

    cores = int(os.environ.get("SLURM_CPUS_PER_TASK", available_cores()))
    torch.set_num_threads(min(cores, available_cores()))
    with handle_signals(interrupt_once, [signal.SIGTERM]):  # training handles it in its own way
        work(runs, claims)
