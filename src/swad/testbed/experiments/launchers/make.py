"""Make a launcher from names and texts, as a command line gives them.

The options of a launcher are the arguments of its class, so that they are documented and typed in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swad.testbed.experiments.launchers.base import Launcher, count_problems
from swad.testbed.experiments.launchers.local import LocalLauncher
from swad.testbed.experiments.launchers.ray import RayLauncher
from swad.testbed.experiments.launchers.slurm import SlurmLauncher
from swad.testbed.training.display import LogDisplay
from swad.util.names import choice_problem, did_you_mean
from swad.util.options import parse, text_options

LAUNCHERS = ("local", "ray", "slurm")

_CLASSES: dict[str, Callable[..., Launcher]] = {"ray": RayLauncher, "slurm": SlurmLauncher}
FURTHER = "slurm_"
"""How options begin that submitit passes on to Slurm: slurm_account, slurm_qos, slurm_constraint, ..."""


def option_types(launcher: str) -> dict[str, type]:
    """Return the options of a launcher with their types: the arguments of its class that can be given as text.

    >>> list(option_types("local")), list(option_types("ray"))
    ([], ['address', 'jobs', 'cpus', 'gpus', 'share_seconds'])
    """
    types = text_options(_CLASSES[launcher], Train=Any) if launcher in _CLASSES else {}
    return {name: kind for name, kind in types.items() if name != "directory"}


def parse_options(launcher: str, options: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Return the arguments of a launcher's class that options stand for, and everything that is wrong with the others.

    >>> parse_options("slurm", {"partitoin": "gpu", "mem_gb": "much", "timeout_min": "30", "slurm_account": "lab"})[0]
    {'timeout_min': 30, 'options': {'slurm_account': 'lab'}}
    """
    types, problems = option_types(launcher), []
    values: dict[str, Any] = {}
    for name, text in options.items():
        if launcher == "slurm" and name.startswith(FURTHER):  # checked by submitit
            values.setdefault("options", {})[name] = text
        elif name not in types:
            hint = did_you_mean(name, types) or f"it takes {', '.join(types) or 'none; use --jobs or --jobs-per-gpu'}"
            problems.append(f"the launcher {launcher} has no option {name!r}: {hint}")
        else:
            try:
                values[name] = parse(text, types[name])
            except ValueError as rule:
                problems.append(f"{name} takes {rule}, got {text!r}")
    return values, problems


@dataclass(frozen=True)
class LauncherConfig:
    """The launcher that a command line states.

    Args:
        name: Name of the launcher.
        jobs: Runs at a time. None: the launcher's default.
        jobs_per_gpu: Runs that share a GPU.
        options: Further options of the launcher.
    """

    name: str
    jobs: int | None
    jobs_per_gpu: int
    options: Mapping[str, str] = field(default_factory=dict)

    def problems(self) -> list[str]:
        """List what is wrong with the options."""
        problems = []
        if self.name not in LAUNCHERS:
            problems.append(choice_problem("--launcher", self.name, LAUNCHERS))
        problems += count_problems({"--jobs": self.jobs, "--jobs-per-gpu": self.jobs_per_gpu})
        if self.name in LAUNCHERS:
            problems += parse_options(self.name, self.options)[1]
            if self.jobs_per_gpu != 1 and self.name != "local":
                instead = " (-l gpus=0.5 for two)" if self.name == "ray" else ""
                problems.append(
                    f"--jobs-per-gpu is for the launcher local, got {self.name}: use its own options{instead}"
                )
        return problems

    def slots(self, device: str) -> int | None:
        """Return how many runs train at a time; None if only the cluster knows."""
        return self.jobs or (self.make(device).slots if self.name == "local" else None)

    def make(self, device: str, directory: Path | None = None, display: LogDisplay | None = None) -> Launcher:
        """Return the launcher; those of a cluster need the directory of the runs."""
        if self.name != "local":
            values, _ = parse_options(self.name, self.options)
            if self.jobs is not None:
                values.setdefault("max_parallel" if self.name == "slurm" else "jobs", self.jobs)
            return _CLASSES[self.name](directory, **values)
        return LocalLauncher(self.jobs, jobs_per_gpu=self.jobs_per_gpu, device=device, display=display)
