"""Workers as Slurm jobs. The jobs need no process here; a command that waits for them may end at any time."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from swad.testbed.workers import ranks
from swad.testbed.workers.claims import Claims, Watcher
from swad.testbed.workers.local import Show, WorkerError
from swad.testbed.workers.run_queue import Runs
from swad.testbed.workers.work import State, is_abandoned, read_states, refresh
from swad.util.signals import Interrupted, handle_signals

FOLDER = "slurm"
"""Directory beside the runs for what the jobs print."""

DEFAULTS = {"time": "1-00:00", "cpus-per-task": "4", "signal": "B:USR1@300"}
"""Options of sbatch. Five minutes before its time limit a job saves checkpoints and requeues itself."""

MAX_ARRAY = 1000
"""Jobs in an array; Slurm's own limit is 1001 unless it was raised."""

POLL_SECONDS = 10.0

MAX_SUBMISSIONS = 3
"""How often in a row jobs are submitted of which none changes a claim."""


def train_on_slurm(
    runs: Runs,
    claims: Claims,
    command: Sequence[str],
    jobs: int | None = None,
    *,
    options: Mapping[str, str] | None = None,
    processes: int = 1,
    device: str = "auto",
    show: Show = lambda states: None,
) -> None:
    """Submit workers, and wait until no run is left.

    Args:
        runs: Returns the runs.
        claims: Who trains which run, on a file system that all nodes share.
        command: Starts the workers of a job, e.g. `["swad", "sweep", "work", "DIR"]`.
        jobs: Most runs at a time. A job trains one for every `processes` GPUs. Default: 100.
        options: Options of sbatch by their names, e.g. `{"partition": "gpu", "gpus-per-node": "4"}`.
        processes: How many processes train a run together. Jobs ask for as many tasks by default, on one node.
        device: Device of the runs. Jobs ask for one GPU for each process by default, unless it is the CPU.
        show: Called every few seconds.

    Raises:
        Interrupted: Ctrl-C or SIGTERM. The jobs stay with Slurm.
        WorkerError: Slurm refuses the jobs, or they end before they train anything.
    """
    folder, watcher, stopping = claims.root.parent / FOLDER, Watcher(), False
    options = {name.replace("_", "-"): value for name, value in (options or {}).items()}
    nodes = _count_nodes(options) if processes > 1 else 1
    per_node = -(-processes // nodes)
    if device != "cpu" and not any(name.startswith(("gpus", "gres")) for name in options):
        options["gpus" if processes == 1 else "gpus-per-node"] = str(per_node)
    runs_per_job = max(1, count_gpus(options) // processes) if nodes == 1 else 1
    if processes > 1:
        options = {"nodes": str(nodes), "ntasks-per-node": str(per_node * runs_per_job), **options}
    at_most = -(-(jobs or 100) // runs_per_job)
    refresh(runs(), claims)
    submissions, before = 0, claims.all_marks()

    def stop(signum: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    with handle_signals(stop):
        while not stopping:
            by_run = read_states(runs(), claims)
            show(by_run)
            states = Counter(by_run.values())
            left = states[State.PENDING] + states[State.RUNNING]
            if not left:
                return
            if (now := claims.all_marks()) != before:
                submissions, before = 0, now
            wanted = min(at_most, MAX_ARRAY, left)
            if states[State.PENDING] or is_abandoned(claims, watcher):
                queued = _count_queued(folder)
                if queued is not None and queued < wanted:
                    if submissions == MAX_SUBMISSIONS:
                        raise WorkerError(f"the jobs end before they train anything: see {folder}")
                    _submit(folder, command, wanted - queued, options)
                    submissions += 1
            end = time.monotonic() + POLL_SECONDS
            while not stopping and time.monotonic() < end:
                time.sleep(min(0.2, POLL_SECONDS))
    raise Interrupted(
        f"Interrupted: {states[State.DONE]:,} of {states.total():,} runs are finished. The jobs stay with Slurm: run "
        f"the same command again to wait for them, or end them by scancel --name={_job_name(folder)}."
    )


def count_gpus(options: Mapping[str, str]) -> int:
    """Return the number of GPUs of a job, at least 1.

    >>> [count_gpus(options) for options in ({"gpus-per-node": "a100:8"}, {"gres": "gpu:4"}, {"gpus": "2"}, {})]
    [8, 4, 2, 1]
    """
    values = [value for name, value in options.items() if name.startswith(("gpus", "gres"))]
    return max([1, *(int(number[0]) for value in values if (number := re.search(r"\d+$", value)))])


def _count_nodes(options: Mapping[str, str]) -> int:
    nodes = options.get("nodes", "1")
    if not nodes.isdecimal() or nodes == "0":
        raise WorkerError(f"nodes must be a number for runs in several processes, got {nodes}: e.g. nodes=2")
    return int(nodes)


def start_on_nodes(share: ranks.Share) -> list[ranks.Rank]:
    """Start the other ranks of a run on all nodes of this job. The first task ends at once: the worker is rank 0."""
    counts = {"ntasks": share.variables["WORLD_SIZE"], "ntasks-per-node": share.variables["LOCAL_WORLD_SIZE"]}
    command = ["srun", "--kill-on-bad-exit=1", *(f"--{name}={count}" for name, count in counts.items())]
    if "SLURM_CPUS_PER_TASK" in os.environ:  # which srun does not read
        command.append(f"--cpus-per-task={os.environ['SLURM_CPUS_PER_TASK']}")
    return [ranks.RankProcess([*command, sys.executable, "-m", ranks.__name__], share)]


def _submit(folder: Path, command: Sequence[str], jobs: int, options: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    flags = {**DEFAULTS, "job-name": _job_name(folder), "array": f"0-{jobs - 1}", "output": str(folder / "%A_%a.log")}
    arguments = [f"--{name}={value}" if value else f"--{name}" for name, value in {**flags, **options}.items()]
    wrap = f"exec {shlex.join(command)}"  # exec: the signal before the time limit must reach the worker
    try:
        _run("sbatch", "--parsable", "--requeue", "--open-mode=append", *arguments, "--wrap", wrap)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = " ".join(str(getattr(error, "stderr", "") or error).split())
        raise WorkerError(f"cannot submit jobs: {reason}") from None


def _count_queued(folder: Path) -> int | None:
    """Return how many jobs wait or run; None if Slurm does not answer."""
    try:
        jobs = _run("squeue", "--noheader", "--array", "--me", f"--name={_job_name(folder)}", "--format=%i")
    except FileNotFoundError:
        raise WorkerError("there is no Slurm on this machine (squeue was not found): use its login node") from None
    except (OSError, subprocess.CalledProcessError):
        return None
    return len(jobs.split())


def _job_name(folder: Path) -> str:
    return f"swad-{os.path.abspath(folder.parent).replace('/', '-').strip('-')}"


def requeue() -> None:
    """Put the job of this process back into the queue."""
    _run("scontrol", "requeue", os.environ["SLURM_JOB_ID"])


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
