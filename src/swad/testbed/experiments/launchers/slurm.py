"""Train tasks as Slurm jobs: one job array for the tasks that are submitted together, through submitit.

A job trains several runs one after another, so that only the first pays for imports and the image cache. Before its
time limit Slurm signals the job: the run saves a checkpoint, and the job puts itself back into the queue.

The jobs do not need the process that submitted them. It may end at any time; started again it finds the jobs that are
still queued or running, by the files in the directory `slurm` beside the runs, and waits for them.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swad.testbed.experiments.launchers.base import Launcher, LauncherError, Outcome, Task, count_problems
from swad.testbed.experiments.launchers.slurm_job import JobFunction
from swad.testbed.experiments.launchers.work import MAX_ATTEMPTS, Train, describe, failed
from swad.util.cpu import available_cores
from swad.util.files import read_json, write_json
from swad.util.jsonl import read_lines

FOLDER = "slurm"
"""Directory beside the runs for the logs of jobs and the files by which they report."""

LOGS = "logs"
"""Directory below it for what the jobs print, and for submitit's own files."""

MAX_ARRAY = 1000
"""Jobs in an array; Slurm's own limit is 1001 unless it was raised."""

UNLIMITED = 1_000_000
"""How often a job may reach its time limit."""


class SlurmLauncher(Launcher):
    """Slurm jobs.

    Args:
        directory: Directory of all runs, on a file system that all nodes share.
        partition: Partition of the jobs. Default: Slurm's.
        timeout_min: Time limit of a job in minutes. A run may take longer: it resumes in the next job.
        signal_delay_s: How long before its time limit a job saves a checkpoint and goes back into the queue.
        cpus_per_job: CPUs of a job, also its number of threads.
        gpus_per_job: GPUs of a job.
        mem_gb: Memory of a job in GB. Default: Slurm's.
        max_parallel: Jobs of an array that run at a time.
        runs_per_job: Runs that a job trains one after another.
        options: Further options of submitit for the cluster, e.g. `{"slurm_account": "lab"}`.
        cluster: `slurm`; or `local`, which runs the jobs as processes on this machine, to try a sweep.
        poll_seconds: Time between two looks at the jobs.
        train: Function that trains a run, importable by name. Default: `swad.testbed.training.loop.train`.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        partition: str | None = None,
        timeout_min: int = 24 * 60,
        signal_delay_s: int = 300,
        cpus_per_job: int = 4,
        gpus_per_job: int = 0,
        mem_gb: float | None = None,
        max_parallel: int = 100,
        runs_per_job: int = 1,
        options: dict[str, Any] | None = None,
        cluster: str = "slurm",
        poll_seconds: float = 10.0,
        train: Train | None = None,
    ) -> None:
        counts = {"timeout_min": timeout_min, "cpus_per_job": cpus_per_job}
        if problems := count_problems({**counts, "max_parallel": max_parallel, "runs_per_job": runs_per_job}):
            raise ValueError(problems[0])
        if signal_delay_s >= 60 * timeout_min:
            raise ValueError(f"signal_delay_s must be below the time limit of {timeout_min} min, got {signal_delay_s}")
        super().__init__(poll_seconds)
        self._folder = Path(os.path.abspath(directory)) / FOLDER
        self._submitit = import_submitit()
        self._cluster, self._max_parallel, self._runs_per_job = cluster, max_parallel, runs_per_job
        self._cpus, self._train = cpus_per_job, train
        parameters: dict[str, Any] = {
            "name": "swad",
            "timeout_min": timeout_min,
            "cpus_per_task": cpus_per_job,
            "gpus_per_node": gpus_per_job,
            "mem_gb": mem_gb,
            "slurm_partition": partition,
            "slurm_signal_delay_s": signal_delay_s,
            "slurm_array_parallelism": max_parallel,
            **(options or {}),
        }
        try:
            self._executor = self._submitit.AutoExecutor(
                folder=str(self._folder / LOGS), cluster=cluster, **{f"{cluster}_max_num_timeout": UNLIMITED}
            )
            self._executor.update_parameters(**{name: value for name, value in parameters.items() if value is not None})
        except (RuntimeError, ValueError, TypeError, NameError) as error:
            raise LauncherError(f"cannot submit jobs to the cluster {cluster!r}: {describe(error)}") from None
        self._jobs: list[_Job] = []
        self._losses: Counter[str] = Counter()  # how many jobs in a row ended while they trained each task

    @property
    def slots(self) -> int:
        """How many tasks run at a time, if Slurm has room for them."""
        return min(self._max_parallel, available_cores()) if self._cluster == "local" else self._max_parallel

    # -- jobs -----------------------------------------------------------------------------------------------------

    def _start_tasks(self) -> None:
        """Submit the queue as a job array. Tasks that a job of an earlier launcher still holds stay there."""
        tasks = self._adopt(self._queue)
        self._queue.clear()
        per_job = self._runs_per_job
        if self._cluster == "local":  # without a queue: all jobs start at once
            per_job = max(per_job, -(-len(tasks) // self.slots))
        chunks = [tasks[i : i + per_job] for i in range(0, len(tasks), per_job)]
        for i in range(0, len(chunks), MAX_ARRAY):
            self._submit_array(chunks[i : i + MAX_ARRAY])

    def _submit_array(self, chunks: Sequence[Sequence[Task]]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        reports = [self._folder / f"{secrets.token_hex(8)}.jsonl" for _ in chunks]
        work = [
            JobFunction(tuple(chunk), Path.cwd(), report, self._cpus, self._train)
            for chunk, report in zip(chunks, reports, strict=True)
        ]
        try:
            with self._executor.batch():
                jobs = [self._executor.submit(function) for function in work]
        except Exception as error:  # sbatch refused it: no such partition, too many jobs
            raise LauncherError(f"cannot submit {len(work)} jobs: {describe(error)}") from None
        for job, chunk, report in zip(jobs, chunks, reports, strict=True):
            write_json(report.with_suffix(".json"), {"job": job.job_id, "keys": [task.key for task in chunk]})
            self._jobs.append(_Job(job, report, {task.key: task for task in chunk}))

    @property
    def _busy(self) -> bool:
        return bool(self._jobs)

    def _look(self, seconds: float) -> None:
        self._sleep(seconds)
        lost: list[Task] = []
        for job in self._jobs:
            done = job.job.done()  # first: it reports before it ends
            for outcome in job.new_outcomes():
                self._losses.pop(outcome.task.key, None)
                self._outcomes.append(outcome)
            if done and job.tasks:
                lost += self._lose(job)
            if not job.tasks:
                job.forget()
        self._jobs = [job for job in self._jobs if job.tasks]
        if lost:
            self.submit(lost)

    def _stop_running(self) -> None:
        """Stop waiting. Jobs stay with Slurm, which needs no process here; their tasks are reported as interrupted."""
        for job in self._jobs:
            for task in job.tasks.values():
                message = f"{task.config.output} stays with job {job.id}: run the same command again to wait for it"
                self._outcomes.append(Outcome(task, "interrupted", message, elsewhere=True))
        self._jobs = []

    def _close(self) -> None:
        pass  # jobs stay with Slurm

    def _lose(self, job: _Job) -> list[Task]:
        """Return the tasks of a job that ended without a report and that are tried again."""
        current, *later = job.tasks.values()
        job.tasks.clear()
        if str(job.job.state).startswith("CANCELLED"):
            for task in (current, *later):
                self._outcomes.append(Outcome(task, "interrupted", f"{task.config.output}: job {job.id} was cancelled"))
            return []
        self._losses[current.key] += 1
        if self._losses[current.key] < MAX_ATTEMPTS:
            return [current, *later]
        message = (
            f"{current.config.output}: {MAX_ATTEMPTS} jobs in a row ended while they trained it, the last in state "
            f"{job.job.state}; see {self._folder / LOGS / job.id}_0_log.err"
        )
        self._outcomes.append(failed(current, message))
        return later

    def _adopt(self, tasks: Iterable[Task]) -> list[Task]:
        """Wait for the tasks that jobs of an earlier launcher hold, and return the others."""
        left = {task.key: task for task in tasks}
        known = {job.report for job in self._jobs}
        for path in sorted(self._folder.glob("*.json")):
            report = path.with_suffix(".jsonl")
            if report in known or not left:
                continue
            with suppress(OSError, ValueError, TypeError, LookupError):  # a damaged file: submit its tasks again
                content = read_json(path)
                held = {key: left[key] for key in content["keys"] if key in left}
                job = _Job(_find_job(self._submitit, self._cluster, self._folder, str(content["job"])), report, held)
                if job.job.done():
                    job.forget()
                elif held:
                    list(job.new_outcomes())  # of tasks that are submitted again, to be trained again
                    self._jobs.append(job)
                    left = {key: task for key, task in left.items() if key not in job.tasks}
        return list(left.values())

    def _sleep(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._interrupted and (left := end - time.monotonic()) > 0:
            time.sleep(min(0.2, left))


@dataclass
class _Job:
    """A job, the file by which it reports, and those of its tasks that have not ended."""

    job: Any
    report: Path
    tasks: dict[str, Task]
    read: int = 0

    @property
    def id(self) -> str:
        return str(self.job.job_id)

    def forget(self) -> None:
        """Remove its files, so that no later launcher looks for it."""
        for path in (self.report.with_suffix(".json"), self.report):
            with suppress(OSError):
                path.unlink()

    def new_outcomes(self) -> Iterator[Outcome]:
        """Yield the outcomes that were reported since the last call."""
        with suppress(FileNotFoundError):
            size = self.report.stat().st_size  # before reading: a line that is written meanwhile is read next time
            if size == self.read:
                return
            for number, line in read_lines(self.report):
                try:
                    content = json.loads(line)
                    key = content.pop("key")
                    # A job that started again reports its first tasks again.
                    outcome = Outcome(self.tasks[key], **content) if key in self.tasks else None
                except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
                    raise LauncherError(
                        f"{self.report}, line {number} is not the report of a job: remove the file, then run the same "
                        "command again"
                    ) from None
                if outcome is not None:
                    del self.tasks[key]
                    yield outcome
            self.read = size


# -- submitit -----------------------------------------------------------------------------------------------------


def import_submitit() -> Any:
    """Import submitit, without its warnings."""
    try:
        import submitit
    except ImportError:
        raise ImportError("the launcher slurm needs submitit: pip install 'swad[sweep]'") from None
    logging.getLogger("submitit").setLevel(logging.ERROR)  # it warns of every failed look at a job, and looks again
    return submitit


def _find_job(submitit: Any, cluster: str, folder: Path, job_id: str) -> Any:
    """Return a job that another process submitted."""
    if cluster == "local":
        return _LocalJob(job_id)
    return submitit.SlurmJob(folder=folder / LOGS, job_id=job_id, tasks=[0])


@dataclass
class _LocalJob:
    """A job of submitit's local cluster, which knows only those of its own process: the ID is that of a process."""

    job_id: str

    @property
    def state(self) -> str:
        return "FINISHED"

    def done(self) -> bool:
        try:
            os.kill(int(self.job_id), 0)
        except OSError:
            return True
        return False
