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


def option_problems(launcher: str, options: Mapping[str, str]) -> list[str]:
    """List everything that is wrong with the options of a launcher.

    >>> option_problems("slurm", {"partitoin": "gpu", "mem_gb": "much"})
    ["the launcher slurm has no option 'partitoin': did you mean 'partition'?", "mem_gb takes a number, got 'much'"]
    """
    types, problems = option_types(launcher), []
    for name, text in options.items():
        if _is_further(launcher, name):  # checked by submitit
            continue
        if name not in types:
            hint = did_you_mean(name, types) or f"it takes {', '.join(types) or 'none; use --jobs or --jobs-per-gpu'}"
            problems.append(f"the launcher {launcher} has no option {name!r}: {hint}")
        elif types[name] is not str and _number(types[name], text) is None:
            kind = "a whole number" if types[name] is int else "a number"
            problems.append(f"{name} takes {kind}, got {text!r}")
    return problems


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
    types = option_types(launcher)
    further = {name: text for name, text in (options or {}).items() if _is_further(launcher, name)}
    values: dict[str, Any] = {
        name: text if types[name] is str else _number(types[name], text)
        for name, text in (options or {}).items()
        if name not in further
    }
    if further:
        values["options"] = further
    if jobs is not None:
        values.setdefault("max_parallel" if launcher == "slurm" else "jobs", jobs)
    return _CLASSES[launcher](directory, **values)


def _is_further(launcher: str, name: str) -> bool:
    return launcher == "slurm" and name.startswith(FURTHER)


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


def _number(kind: type, text: str) -> float | None:
    try:
        return kind(text)  # type: ignore[no-any-return]
    except ValueError:
        return None
