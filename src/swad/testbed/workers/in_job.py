"""What a worker command does, such as `swad sweep work DIR`: in a terminal, a Slurm job or a job of any scheduler."""

from __future__ import annotations

import os
import signal
import socket
from types import FrameType
from typing import Any

from swad.testbed.workers import slurm
from swad.testbed.workers.claims import Claims
from swad.testbed.workers.local import gpus_of_workers, train_locally
from swad.testbed.workers.ranks import in_ranks
from swad.testbed.workers.run_queue import Runs
from swad.testbed.workers.work import work
from swad.util.processes import available_cores
from swad.util.signals import Interrupted, handle_signals, interrupt_once


def work_here(runs: Runs, claims: Claims, jobs: int | None = None, device: str = "auto", *, processes: int = 1) -> None:
    """Train runs until none is left that nobody trains. A Slurm job goes back into the queue before its time limit.

    Args:
        runs: Returns the runs.
        claims: Who trains which run.
        jobs: Runs at a time. Default: one for every `processes` GPUs, so that a job with a whole node uses it;
            without a GPU, and in a Slurm job of several nodes, one.
        device: Device of the runs.
        processes: How many processes train a run together. Those of a Slurm job of several nodes are on all of them.

    Raises:
        Interrupted: Ctrl-C or SIGTERM. The runs saved checkpoints.
    """
    nodes = int(os.environ.get("SLURM_JOB_NUM_NODES", "1")) if processes > 1 else 1
    if jobs is None:
        jobs = max(1, len(gpus_of_workers(device, processes))) if nodes == 1 else 1
    at_limit = False

    def stop_before_limit(signum: int, frame: FrameType | None) -> None:
        nonlocal at_limit
        at_limit = True
        os.kill(os.getpid(), signal.SIGTERM)  # the runs save checkpoints

    signals = [signal.SIGUSR1] if "SLURM_JOB_ID" in os.environ else []
    with handle_signals(stop_before_limit, signals):
        try:
            if jobs > 1:
                train_locally(runs, claims, jobs, processes=processes, device=device)
            else:
                _work(runs, claims, processes, nodes)
        except (Interrupted, KeyboardInterrupt):
            if not at_limit:
                raise
    if at_limit:
        slurm.requeue()


def _work(runs: Runs, claims: Claims, processes: int, nodes: int) -> None:
    import torch

    cores = max(1, available_cores() * nodes // processes)
    torch.set_num_threads(min(int(os.environ.get("SLURM_CPUS_PER_TASK", cores)), cores))
    where: dict[str, Any] = {}
    if nodes > 1:
        where = {"nodes": nodes, "host": socket.gethostname(), "start": slurm.start_on_nodes}
    with handle_signals(interrupt_once, [signal.SIGTERM]):  # training handles it in its own way
        work(runs, claims, in_ranks(None, processes, **where))
