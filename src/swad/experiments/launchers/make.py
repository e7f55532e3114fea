"""Make a launcher from names and texts, as a command line gives them.

The options of a launcher are the arguments of its class, so that they are documented and typed in one place.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from swad.experiments.launchers.base import Launcher
from swad.experiments.launchers.ray import RayLauncher
from swad.experiments.launchers.slurm import SlurmLauncher
from swad.util.names import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable

LAUNCHERS = ("local", "ray", "slurm")

_CLASSES: dict[str, Callable[..., Launcher]] = {"ray": RayLauncher, "slurm": SlurmLauncher}
FURTHER = "slurm_"
"""How options begin that submitit passes on to Slurm: slurm_account, slurm_qos, slurm_constraint, ..."""

_TYPES = (int, float, str)
"""Types of arguments that can be given as text, tried in this order."""


def option_types(launcher: str) -> dict[str, type]:
    """Return the options of a launcher with their types: the arguments of its class that can be given as text.

    >>> list(option_types("local")), list(option_types("ray"))
    ([], ['address', 'jobs', 'cpus', 'gpus', 'share_seconds'])
    """
    if launcher not in _CLASSES:
        return {}
    hints = get_type_hints(_CLASSES[launcher].__init__, localns={"Train": Any})
    names = list(inspect.signature(_CLASSES[launcher]).parameters)[1:]
    allowed = {name: get_args(hints[name]) or (hints[name],) for name in names}
    types = {name: next((kind for kind in _TYPES if kind in allowed[name]), None) for name in names}
    return {name: kind for name, kind in types.items() if kind is not None}


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
                values[name] = types[name](text)
            except ValueError:
                kind = "a whole number" if types[name] is int else "a number"
                problems.append(f"{name} takes {kind}, got {text!r}")
    return values, problems


def make_cluster_launcher(
    launcher: str, directory: Path, jobs: int | None = None, options: Mapping[str, str] | None = None
) -> Launcher:
    """Return the launcher `ray` or `slurm`.

    Args:
        launcher: Its name.
        directory: Directory of all runs.
        jobs: Runs at a time.
        options: Valid options as text.
    """
    values, _ = parse_options(launcher, options or {})
    if jobs is not None:
        values.setdefault("max_parallel" if launcher == "slurm" else "jobs", jobs)
    return _CLASSES[launcher](directory, **values)
