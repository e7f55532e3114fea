"""Where the runs of a sweep or of a reproduction train, and what is shown meanwhile."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from swad.testbed.algorithms.hyperparameters import as_text
from swad.testbed.sweep.directory import SweepDir
from swad.testbed.sweep.plan import path_in_sweep
from swad.testbed.sweep.run import Start
from swad.testbed.sweep.status import SweepStatus, failure_lines
from swad.testbed.workers.claims import Claims
from swad.testbed.workers.local import Show, count_jobs, train_locally
from swad.testbed.workers.ray import train_on_ray
from swad.testbed.workers.run_queue import Runs
from swad.testbed.workers.slurm import train_on_slurm
from swad.testbed.workers.watch import Watch
from swad.testbed.workers.work import State
from swad.util.names import choice_problem

LAUNCHERS = ("local", "ray", "slurm")


def parse_launcher_options(texts: Sequence[str] | None) -> dict[str, str]:
    """Parse NAME=VALUE, one for each text: a value may hold commas, as Slurm's partition=a,b, or be JSON for Ray."""
    options = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise ValueError(f"--launcher-option takes NAME=VALUE, got {text!r}: e.g. --launcher-option partition=gpu")
        options[name.strip()] = value
    return options


def torchrun_problems() -> list[str]:
    """Refuse torchrun, under which every process would be a worker of its own and wait for the others in each run."""
    count = os.environ.get("WORLD_SIZE", "1")
    if count == "1":
        return []
    return [f"workers start the processes of a run themselves: leave torchrun out, and give --processes {count}"]


@dataclass(frozen=True)
class LaunchOptions:
    """Where a command line wants runs to train.

    Args:
        launcher: `local`, `ray` or `slurm`.
        jobs: Runs at a time. None: the launcher's default.
        jobs_per_gpu: Runs that share a GPU.
        options: Options of `sbatch`, or of a Ray task and the address of the cluster.
        processes: Processes that train a run together.
    """

    launcher: str
    jobs: int | None
    jobs_per_gpu: int
    options: Mapping[str, str] = field(default_factory=dict)
    processes: int = 1

    def problems(self) -> list[str]:
        """List what is wrong with the options. Those of Slurm and Ray are checked there."""
        problems = torchrun_problems()
        if self.launcher not in LAUNCHERS:
            problems.append(choice_problem("--launcher", self.launcher, LAUNCHERS))
        counts = {"--jobs": self.jobs, "--jobs-per-gpu": self.jobs_per_gpu, "--processes": self.processes}
        problems += [f"{name} must be 1 or more, got {n}" for name, n in counts.items() if n is not None and n < 1]
        if self.launcher == "local" and self.options:
            problems.append(
                f"the launcher local has no options, got {', '.join(self.options)}: use --jobs or --jobs-per-gpu"
            )
        if self.launcher in ("ray", "slurm") and self.jobs_per_gpu != 1:
            instead = " (-l num_gpus=0.5 for two)" if self.launcher == "ray" else ""
            problems.append(
                f"--jobs-per-gpu is for the launcher local, got {self.launcher}: use its own options{instead}"
            )
        return problems

    def slots(self, device: str) -> int | None:
        """Return how many runs train at a time; None if only the cluster knows."""
        local = self.launcher == "local"
        return self.jobs or (count_jobs(device, self.jobs_per_gpu, self.processes) if local else None)


def start_workers(directory: SweepDir, launch: LaunchOptions, device: str) -> Start:
    """Return what starts the workers of a sweep, with bars for the runs in a terminal, and lines elsewhere."""

    def start(runs: Runs, claims: Claims) -> None:
        with Watch(path_in_sweep) as watch:
            _start(directory, launch, device, _ChoiceLog(directory, watch))(runs, claims)

    return start


def _start(directory: SweepDir, launch: LaunchOptions, device: str, show: Show) -> Start:
    shared: dict[str, Any] = {"jobs": launch.jobs, "processes": launch.processes, "show": show}
    if launch.launcher == "local":
        return partial(train_locally, jobs_per_gpu=launch.jobs_per_gpu, device=device, **shared)
    if launch.launcher == "slurm":
        command = [sys.executable, "-m", "swad", "sweep", "work", str(directory.path)]
        command += ["--allow-failed"] * directory.allow_failed
        command += [f"--processes={launch.processes}"] * (launch.processes > 1)
        return partial(train_on_slurm, command=command, options=launch.options, device=device, **shared)
    options = {name: _value(text) for name, text in launch.options.items()}
    address = options.pop("address", None)
    return partial(train_on_ray, address=address, options=options, **shared)


def _value(text: str) -> Any:
    """Return a number or JSON as such, and other text as text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


class _ChoiceLog:
    """Shows the states of runs, and what searches chose meanwhile."""

    def __init__(self, directory: SweepDir, watch: Watch) -> None:
        self._directory, self._watch, self._known = directory, watch, set(directory.choices)

    def __call__(self, states: Mapping[Path, State]) -> None:
        for name, point in self._directory.choices.items():
            if name not in self._known:
                self._known.add(name)
                chosen = ", ".join(f"{key}={as_text(value)}" for key, value in point.items()) or "the defaults"
                self._watch.log(f"{name}: chose {chosen}")
        self._watch(states)


def print_failures(status: SweepStatus, most: int = 20, lines: int = 3) -> None:
    """List the failed runs with the last lines of each."""
    for line in failure_lines(status.failed, lines, most):
        print(line, flush=True)
