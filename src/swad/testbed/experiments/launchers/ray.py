"""Train tasks on a Ray cluster: an existing one, or one that is started on this machine.

Every task is one Ray task with its share of CPUs and GPUs. Ray starts it again, any number of times, when its process
or its machine is lost, and the run resumes from its checkpoint; machines may join and leave at any time. Ray keeps no
results: everything is in the run directories, so all machines must share the file system that holds them.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swad.testbed.experiments.launchers.base import Launcher, LauncherError, Outcome, Task, count_problems
from swad.testbed.experiments.launchers.work import Train, describe, failed, leave_broken_device, train_task
from swad.testbed.results.failures import STARTS
from swad.testbed.results.records import RECORDS
from swad.util.files import read_json, write_json
from swad.util.processes import has_ended, process_mark
from swad.util.signals import handle_signals, interrupt_once

LAUNCHER = "SWAD_RAY_LAUNCHER"
"""Environment variable of the processes of a Ray that is started here: the mark of the launcher."""

OBJECT_STORE_BYTES = 200 * 2**20
"""Memory of a Ray that is started here for what its processes share."""

POLL_SECONDS = 0.5
"""Longest time until a signal is noticed."""

MAX_QUEUED = 1000
"""Tasks that Ray knows of at a time, at least: enough for an autoscaler to see the demand."""

STOP_SECONDS = 120.0
"""How long the runs of a launcher that ends may take to save their checkpoints."""

MAX_STARTS = 10
"""A run that was started this many times without a new record has failed: it ends its process, not a machine."""

LOCK_SECONDS = 600.0
"""How long a run that was started again waits for its lock: a machine that lost contact may still train it."""

SHARE_SECONDS = 60.0
"""How long a machine waits for a file of this machine: network file systems show new files late."""


class RayLauncher(Launcher):
    """A Ray cluster.

    Args:
        directory: Directory of all runs, which every machine must see under the same path.
        address: Address of a running cluster, e.g. `auto` or `ray://host:10001`. Default: start Ray on this machine.
        jobs: Most runs at a time. Default: as many as the machines have room for.
        cpus: CPUs of a run; also its number of threads.
        gpus: GPUs of a run; 0.5 lets two runs share one. Default: 1 if the cluster has GPUs, else 0.
        train: Function that trains a run, importable by name. Default: `swad.testbed.training.loop.train`.
        share_seconds: How long a machine may take to see a new file in `directory`.
    """

    def __init__(
        self,
        directory: Path | str,
        address: str | None = None,
        *,
        jobs: int | None = None,
        cpus: float = 1,
        gpus: float | None = None,
        train: Train | None = None,
        share_seconds: float = SHARE_SECONDS,
    ) -> None:
        if problems := count_problems({"jobs": jobs}):
            raise ValueError(problems[0])
        if cpus <= 0 or (gpus is not None and gpus < 0):
            raise ValueError(f"cpus must be above 0 and gpus 0 or more, got cpus={cpus:g} and gpus={gpus or 0:g}")
        super().__init__(POLL_SECONDS)
        self._ray = import_ray()
        self._owns_ray = not self._ray.is_initialized()
        mark = process_mark()
        if self._owns_ray:
            _end_leftover_processes()
            _start_ray(self._ray, address, mark)
        self._jobs, self._cpus, self._gpus = jobs, cpus, gpus
        self._directory = Path(os.path.abspath(directory))
        self._directory.mkdir(parents=True, exist_ok=True)
        for leftover in self._directory.glob(".shared-*"):
            if has_ended(leftover.name.removeprefix(".shared-")):
                leftover.unlink(missing_ok=True)
        self._marker = self._directory / f".shared-{mark}"
        self._marker.touch()
        self._options = _WorkerOptions(Path.cwd(), self._marker, cpus, train, share_seconds)
        self._remote: Any = None
        self._running: dict[Any, tuple[Task, float]] = {}  # by Ray's reference

    @property
    def slots(self) -> int:
        """How many tasks run at a time, on the machines that the cluster has now."""
        resources = self._ray.cluster_resources()
        slots = resources.get("CPU", 0) / self._cpus
        if gpus := self._gpus_per_run():
            slots = min(slots, resources.get("GPU", 0) / gpus)
        return max(1, int(slots if self._jobs is None else min(slots, self._jobs)))

    # -- tasks ----------------------------------------------------------------------------------------------------

    def _gpus_per_run(self) -> float:
        if self._gpus is None:
            self._gpus = 1 if self._ray.cluster_resources().get("GPU", 0) else 0
        return self._gpus

    def _start_tasks(self) -> None:
        if self._remote is None:
            # A worker process is kept for the next run, as by default only one without a GPU is.
            self._remote = self._ray.remote(
                num_cpus=self._cpus, num_gpus=self._gpus_per_run(), max_retries=-1, max_calls=0
            )(_work)
        limit = self._jobs or (MAX_QUEUED if len(self._running) < MAX_QUEUED else 4 * self.slots)
        while self._queue and len(self._running) < limit:
            task = self._queue.popleft()
            reference = self._remote.options(name=task.key).remote(task, self._options)
            self._running[reference] = (task, time.perf_counter())

    @property
    def _busy(self) -> bool:
        return bool(self._running)

    def _look(self, seconds: float) -> None:
        references = list(self._running)
        if references and self._ray.wait(references, timeout=seconds)[0]:
            # One has ended; the others that have ended too are asked for at once.
            for reference in self._ray.wait(references, num_returns=len(references), timeout=0)[0]:
                self._collect(reference)
        if not self._stopping:
            self._start_tasks()

    def _stop_running(self) -> None:
        for reference in self._running:
            self._ray.cancel(reference)  # like Ctrl-C in the process of the run

    def _close(self) -> None:
        try:
            self.stop()
            deadline = time.monotonic() + STOP_SECONDS
            while self._running and time.monotonic() < deadline:
                with suppress(LauncherError):
                    self._poll(POLL_SECONDS)
            if self._owns_ray:
                self._ray.shutdown()
        finally:
            self._marker.unlink(missing_ok=True)

    def _collect(self, reference: Any) -> None:
        task, start = self._running.pop(reference)
        seconds = time.perf_counter() - start
        try:
            result: Outcome | _NotShared = self._ray.get(reference)
        except Exception as error:  # not of the run, which reports its own: swad cannot be imported there, for example
            if self._stopping:
                stopped = f"{task.config.output} was stopped"
                self._outcomes.append(Outcome(task, "interrupted", stopped, seconds))
                return
            message = f"{task.config.output}: Ray could not run it: {describe(error)[-500:]}"
            result = failed(task, message, seconds, str(error).splitlines())
        if isinstance(result, _NotShared):
            raise LauncherError(
                f"{result.host} does not see {self._directory} as this machine does: put the runs on a file system "
                "that all machines of the cluster share, under one path"
            )
        self._outcomes.append(result)


# -- in the worker ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _WorkerOptions:
    folder: Path
    marker: Path
    cpus: float
    train: Train | None
    share_seconds: float


@dataclass(frozen=True)
class _NotShared:
    host: str


def _work(task: Task, options: _WorkerOptions) -> Outcome | _NotShared:
    """Train one task in a worker process of Ray, which may have trained others before."""
    if not _sees(options.marker, options.share_seconds):
        return _NotShared(socket.gethostname())
    os.chdir(options.folder)
    _require_own_gpu()
    if _count_start(task.config.output, options.marker.name) > MAX_STARTS:
        message = (
            f"{task.config.output}: its process ended {MAX_STARTS} times in a row without a new record; if memory ran "
            "out, give a run more CPUs or a smaller batch_size, then run the command again to resume"
        )
        return _ended(failed(task, message))
    import torch

    torch.set_num_threads(max(1, int(options.cpus)))
    with handle_signals(interrupt_once, [signal.SIGTERM]):  # of a machine that leaves; Ray's would exit at once
        outcome = train_task(task, options.train, lock_seconds=LOCK_SECONDS)
    leave_broken_device(outcome)
    if outcome.status == "interrupted" and not outcome.elsewhere:
        # Its machine leaves, or the launcher stops. The checkpoint is saved; without a result Ray starts the run again
        # elsewhere unless the launcher cancelled it.
        os._exit(0)
    return _ended(outcome)


def _count_start(directory: Path, launcher: str) -> int:
    """Count this start of a run, and return how many of this launcher there were since its records last grew."""
    records, path = directory / RECORDS, directory / STARTS
    size, count = records.stat().st_size if records.exists() else 0, 0
    with suppress(OSError, ValueError, TypeError, LookupError):  # the first start, or a damaged file
        before = read_json(path)
        count = int(before["count"]) if size <= before["size"] and before["launcher"] == launcher else 0
    write_json(path, {"count": count + 1, "size": size, "launcher": launcher})
    return count + 1


def _ended(outcome: Outcome) -> Outcome:
    with suppress(OSError):
        (outcome.task.config.output / STARTS).unlink()
    return outcome


def _sees(marker: Path, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not marker.exists():
        if time.monotonic() >= deadline:
            return False
        with suppress(OSError):
            os.listdir(marker.parent)  # refreshes what a network file system has kept
        time.sleep(0.5)
    return True


_first_gpus: str | None = None


def _require_own_gpu() -> None:
    """End a kept process that Ray gives another GPU than before: CUDA stays on the first. Ray starts a new one."""
    global _first_gpus
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if _first_gpus is None:
        _first_gpus = gpus
    elif gpus != _first_gpus:
        os._exit(0)


# -- Ray ----------------------------------------------------------------------------------------------------------


def import_ray() -> Any:
    """Import Ray, with messages that a sweep does not need switched off."""
    # Before the import, which reads them: no report to Ray's makers, GPUs stay visible to runs that ask Ray for none,
    # and no message for a lost worker or machine, after which the runs simply resume.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "worker died|killed|marked dead|will be retried|terminat")
    try:
        import ray
    except ImportError:
        raise ImportError("the launcher ray needs Ray: pip install 'swad[sweep]'") from None
    return ray


def _end_leftover_processes() -> None:
    """End what is left of a Ray of this machine whose launcher was killed; some of its processes live for minutes."""
    for folder in Path("/proc").glob("[0-9]*"):  # there is none on some systems, where the processes end in time
        with suppress(OSError, ValueError):
            texts = (folder / "environ").read_text(errors="replace").split("\0")
            variables = dict(text.split("=", 1) for text in texts if "=" in text)
            # Not what else a run has started, such as a tracker that still sends values.
            if has_ended(variables.get(LAUNCHER, "")) and re.search(b"^ray::|/ray/", (folder / "cmdline").read_bytes()):
                os.kill(int(folder.name), signal.SIGKILL)


def _start_ray(ray: Any, address: str | None, mark: str) -> None:
    """Connect to a cluster or start one, without Ray's messages in between those of the sweep."""
    try:
        os.environ[LAUNCHER] = mark
        if match := re.fullmatch(r"(?:ray://)?([^/:]+):(\d+)", address or ""):
            # Ray itself would try for minutes.
            socket.create_connection((match[1], int(match[2])), timeout=10).close()
        # Tasks and outcomes are small; by default Ray would take a third of the memory for them.
        own = {} if address else {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
        ray.init(address=address or "local", logging_level=logging.ERROR, log_to_driver=False, **own)
    except Exception as error:  # of several classes: no cluster, another version, a refused connection
        where = f"to the Ray cluster at {address!r}" if address else "to a Ray of this machine's own"
        raise LauncherError(f"cannot connect {where}: {describe(error)}") from None
    finally:
        os.environ.pop(LAUNCHER, None)
