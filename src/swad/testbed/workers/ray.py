"""Runs on a Ray cluster: an existing one, or one that is started on this machine.

Every run is one Ray task. Ray schedules it, places it, and starts it again when its process or its machine is lost.
The task is a worker with a list of one run, so it claims the run, and a machine that only lost contact stays out.
A run in several processes has a placement group: the task in the first bundle starts tasks in the others.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from swad.testbed.results.failures import write_failure
from swad.testbed.training.config import RunConfig
from swad.testbed.workers.claims import Claims, Watcher
from swad.testbed.workers.local import Show, WorkerError, interrupted
from swad.testbed.workers.ranks import Share, in_ranks
from swad.testbed.workers.run_queue import Runs
from swad.testbed.workers.work import State, Train, describe, read_states, refresh, work
from swad.util.processes import has_ended, process_mark
from swad.util.signals import Interrupted, handle_signals, interrupt_once

OWNER = "SWAD_RAY_OWNER"
"""Environment variable of the processes of a Ray that is started here: the mark of the command."""

OBJECT_STORE_BYTES = 200 * 2**20
"""Memory of a Ray that is started here for what its processes share."""

POLL_SECONDS = 0.5

MAX_QUEUED = 1000
"""Tasks that Ray knows of at a time: enough for an autoscaler to see the demand."""

STOP_SECONDS = 120.0
"""How long the runs of a command that ends may take to save their checkpoints."""

SHARE_SECONDS = 60.0
"""How long a machine waits for the directory of claims: network file systems show new files late."""


def train_on_ray(
    runs: Runs,
    claims: Claims,
    jobs: int | None = None,
    *,
    address: str | None = None,
    options: Mapping[str, Any] | None = None,
    processes: int = 1,
    show: Show = lambda states: None,
    train: Train | None = None,
) -> None:
    """Train all runs.

    Args:
        runs: Returns the runs.
        claims: Who trains which run, in a directory that all machines see under one path.
        jobs: Most tasks at a time. Default: as many as the machines have room for.
        address: Address of a running cluster, e.g. `auto` or `ray://host:10001`. Default: start Ray on this machine.
        options: Options of a Ray task by Ray's names: `num_cpus` (also the threads of a run), `num_gpus` (0.5 lets two
            runs share one), `memory`, `resources`, `label_selector`, `accelerator_type`, `scheduling_strategy`,
            `runtime_env`. Default: one CPU, and one GPU if the cluster has any; retried without limit.
        processes: How many processes train a run together. `options` are those of each, except that
            `scheduling_strategy` is that of the placement group. Default: `PACK`, on as few machines as possible.
        show: Called twice a second.
        train: Function that trains a run, importable by name. Default: `swad.testbed.training.loop.train`.

    Raises:
        Interrupted: Ctrl-C or SIGTERM. The runs saved checkpoints.
        WorkerError: There is no such cluster, or a machine does not see the directory.
    """
    claims = Claims(claims.root.absolute())
    claims.root.mkdir(parents=True, exist_ok=True)
    refresh(runs(), claims)
    ray, owns_ray = start_ray(address)
    tasks: dict[Any, RunConfig] = {}
    watcher, stopping = Watcher(), False

    def stop(signum: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    with handle_signals(stop):
        try:
            gpus = 1 if ray.cluster_resources().get("GPU") else 0
            # A worker process with a GPU is kept for the next run, as by default only one without is. Not as one of
            # several: its next bundle may have another GPU.
            calls = 0 if processes == 1 else 1
            settings = {"num_cpus": 1, "num_gpus": gpus, "max_retries": -1, "max_calls": calls, **(options or {})}
            launcher = _Launcher(ray, settings, processes)
            while not stopping:
                configs = runs()
                states = read_states(configs, claims)
                show(states)
                dead = {name for name, path in claims.held().items() if watcher.is_alive(path)[0] is False}
                submitted = {config.output for config in tasks.values()}
                for config in configs:
                    name, state = claims.name(config.output), states[config.output]
                    free = state is State.PENDING or (state is State.RUNNING and name in dead)
                    if free and config.output not in submitted and len(tasks) < (jobs or MAX_QUEUED):
                        tasks[launcher.start(name, config, claims, train)] = config
                if not tasks and not {State.PENDING, State.RUNNING} & set(states.values()):
                    break
                if tasks:
                    done, _ = ray.wait(list(tasks), num_returns=len(tasks), timeout=POLL_SECONDS)
                    for reference in done:
                        launcher.release(reference)
                        _collect(ray, reference, tasks.pop(reference))
                else:  # other commands train what is left
                    time.sleep(POLL_SECONDS)
        finally:
            for reference in tasks:
                ray.cancel(reference)  # like Ctrl-C in the process of the run
            if tasks:
                ray.wait(list(tasks), num_returns=len(tasks), timeout=STOP_SECONDS)
            for reference in tasks:
                launcher.release(reference)
            if owns_ray:
                ray.shutdown()
    if stopping:
        raise interrupted(Counter(read_states(runs(), claims).values()))


class _Launcher:
    """Starts the tasks of runs.

    Args:
        ray: The package.
        settings: Options of a task, for each process of a run.
        processes: Number of processes of a run.
    """

    def __init__(self, ray: Any, settings: Mapping[str, Any], processes: int) -> None:
        self._settings, self._processes = dict(settings), processes
        self._bundle: dict[str, Any] = {}
        self._groups: dict[Any, Any] = {}
        if processes > 1:  # a task is where its bundle is
            self._bundle["strategy"] = self._settings.pop("scheduling_strategy", "PACK")
            if (labels := self._settings.pop("label_selector", None)) is not None:
                self._bundle["bundle_label_selector"] = [labels] * processes
        with _refusals():
            self._task = ray.remote(**self._settings)(_train_one)

    def start(self, name: str, config: RunConfig, claims: Claims, train: Train | None) -> Any:
        """Start a run, and return the reference of its task."""
        group = self._reserve() if self._processes > 1 else None
        task = self._task.options(name=name, **({} if group is None else _in_bundle(group, 0)))
        reference = task.remote(config, claims, Path.cwd(), self._settings, self._processes, train)
        self._groups[reference] = group
        return reference

    def release(self, reference: Any) -> None:
        """Give up the placement group of a task, if it has one."""
        if (group := self._groups.pop(reference)) is not None:
            from ray.util import remove_placement_group

            remove_placement_group(group)

    def _reserve(self) -> Any:
        from ray.util import placement_group

        settings = self._settings
        resources = {"CPU": settings["num_cpus"], "GPU": settings["num_gpus"], "memory": settings.get("memory")}
        if kind := settings.get("accelerator_type"):
            resources[f"accelerator_type:{kind}"] = 0.001  # as Ray writes it
        bundle = {name: amount for name, amount in {**resources, **settings.get("resources", {})}.items() if amount}
        with _refusals():
            return placement_group([bundle] * self._processes, **self._bundle)


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise WorkerError(f"Ray refuses the options of a run: {describe(error)}") from None


def _in_bundle(group: Any, number: int) -> dict[str, Any]:
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    return {"scheduling_strategy": PlacementGroupSchedulingStrategy(group, number)}


def _collect(ray: Any, reference: Any, config: RunConfig) -> None:
    try:
        host = ray.get(reference)
    except Exception as error:  # not of the run, which stores its own: swad cannot be imported there, for example
        message = f"{config.output}: Ray could not run it: {describe(error)[-500:]}"
        write_failure(config.output, message, str(error).splitlines())
        raise WorkerError(message) from None
    if host:
        raise WorkerError(
            f"{host} does not see {config.output} as this machine does: put the runs on a file system that all "
            "machines of the cluster share, under one path"
        )


def _train_one(
    config: RunConfig, claims: Claims, folder: Path, settings: Mapping[str, Any], processes: int, train: Train | None
) -> str:
    """Train a run in a process of Ray; return the name of the machine if it does not see the claims."""
    import torch

    deadline = time.monotonic() + SHARE_SECONDS
    while not (claims.root.exists() and folder.exists()):
        if time.monotonic() > deadline:
            return socket.gethostname()
        with suppress(OSError):
            os.listdir(claims.root.parent)  # refreshes what a network file system has kept
        time.sleep(0.5)
    os.chdir(folder)
    _require_own_gpu()
    torch.set_num_threads(max(1, int(settings["num_cpus"])))
    if processes > 1:
        import ray

        start = partial(_start_in_group, folder=folder, settings=settings)
        train = in_ranks(train, processes, host=ray.util.get_node_ip_address(), start=start)
    with (
        suppress(Interrupted, KeyboardInterrupt),
        handle_signals(interrupt_once, [signal.SIGTERM]),  # of a machine that leaves; Ray's would exit at once
    ):
        work(partial(tuple, [config]), claims, train)
        return ""
    os._exit(0)  # without a result Ray starts the run elsewhere, unless it was cancelled


def _start_in_group(share: Share, folder: Path, settings: Mapping[str, Any]) -> list[_RankTask]:
    """Start the other ranks of a run in the placement group of this task."""
    import ray

    group = ray.util.get_current_placement_group()
    task = ray.remote(**{**settings, "max_retries": 0})(_train_share)  # Ray starts rank 0 again, which starts all
    others = range(1, int(share.variables["WORLD_SIZE"]))
    return [_RankTask(task.options(**_in_bundle(group, rank)).remote(share, rank, folder)) for rank in others]


def _train_share(share: Share, rank: int, folder: Path) -> int:
    os.chdir(folder)
    return share.run(rank, local_rank=0)  # a task sees its own GPU only


@dataclass(frozen=True)
class _RankTask:
    """A rank that is a Ray task."""

    reference: Any

    def wait(self) -> int:
        import ray

        try:
            return int(ray.get(self.reference))
        except Exception:  # its process or machine was lost
            return -1

    def kill(self) -> None:
        import ray

        ray.cancel(self.reference, force=True)


_first_gpus: str | None = None


def _require_own_gpu() -> None:
    """End a kept process that Ray gives another GPU than before: CUDA stays on the first. Ray starts a new one."""
    global _first_gpus
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    _first_gpus = gpus if _first_gpus is None else _first_gpus
    if gpus != _first_gpus:
        os._exit(0)


def start_ray(address: str | None) -> tuple[Any, bool]:
    """Connect to a cluster or start one, without messages that a sweep does not need; return whether it was started."""
    # Before the import, which reads them: no report to Ray's makers, GPUs stay visible to runs that ask Ray for none,
    # and no message for a lost worker or machine, after which the runs simply resume.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "worker died|killed|marked dead|will be retried|terminat")
    try:
        import ray
    except ImportError:
        raise ImportError("the launcher ray needs Ray: pip install 'swad[sweep]'") from None
    if ray.is_initialized():
        return ray, False
    _end_leftover_processes()
    try:
        os.environ[OWNER] = process_mark()
        if match := re.fullmatch(r"(?:ray://)?([^/:]+):(\d+)", address or ""):  # Ray itself would try for minutes
            socket.create_connection((match[1], int(match[2])), timeout=10).close()
        # Tasks are small; by default Ray would take a third of the memory for them.
        own = {} if address else {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
        ray.init(address=address or "local", logging_level=logging.ERROR, log_to_driver=False, **own)
    except Exception as error:  # of several classes: no cluster, another version, a refused connection
        where = f"to the Ray cluster at {address!r}" if address else "to a Ray of this machine's own"
        raise WorkerError(f"cannot connect {where}: {describe(error)}") from None
    finally:
        os.environ.pop(OWNER, None)
    return ray, True


def _end_leftover_processes() -> None:
    """End what is left of a Ray of this machine whose command was killed; some of its processes live for minutes."""
    for folder in Path("/proc").glob("[0-9]*"):  # there is none on some systems, where the processes end in time
        with suppress(OSError, ValueError):
            texts = (folder / "environ").read_text(errors="replace").split("\0")
            variables = dict(text.split("=", 1) for text in texts if "=" in text)
            # Not what else a run has started, such as a tracker that still sends values.
            if has_ended(variables.get(OWNER, "")) and re.search(b"^ray::|/ray/", (folder / "cmdline").read_bytes()):
                os.kill(int(folder.name), signal.SIGKILL)
