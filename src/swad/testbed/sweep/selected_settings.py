"""Train with hyperparameters that were selected before: runs take them from a selection file instead of a search."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from swad.testbed.algorithms.registry import canonical_name
from swad.testbed.averages import registry
from swad.testbed.data import benchmarks
from swad.testbed.results.selection_file import SelectionFile, read_selection
from swad.testbed.sweep.plan import single_targets
from swad.testbed.sweep.spec import SweepSpec, canonical_algorithms, selected_name
from swad.testbed.training.config import SETTINGS, ConfigError, RunConfig


def use_selection(configs: Iterable[RunConfig], selection: SelectionFile) -> list[RunConfig]:
    """Give each run the hyperparameters that were selected for its dataset, algorithm, target and trial.

    Hyperparameters that a config sets itself are kept. All runs that the selection lacks are reported together.

    Args:
        configs: The runs, before their defaults are filled in.
        selection: What `read_selection` returned. Where it differs between weights, the first average of a run counts.
    """
    imported, problems = [], []
    for config in configs:
        try:
            imported.append(_use(config, selection))
        except ValueError as error:
            problems.append(str(error))
    _require_none(problems)
    return imported


def _use(config: RunConfig, selection: SelectionFile) -> RunConfig:
    options = selection.options(
        benchmarks.label(config.dataset, config.data_dir),
        canonical_name(config.algorithm),
        config.target_name,
        trial=config.trial,
        average=_first_label(config.averages),
    )
    known = {name for name, setting in SETTINGS.items() if setting.role == "hyperparameter"}
    if unknown := sorted(set(options) - known):
        raise ValueError(f"the selection sets {', '.join(unknown)}, which this version of swad does not have")
    own = config.options()
    changed = {name: own[name] for name in options if own[name] != SETTINGS[name].default}
    hyperparameters = {**options["hyperparameters"], **own["hyperparameters"]}
    return config.replace(**{**options, **changed, "hyperparameters": hyperparameters})


def read_selected(path: Path, spec: SweepSpec) -> dict[str, dict[str, Any]]:
    """Return the settings that a selection file has for the runs of a valid spec, by `selected_name`.

    A trial that the file lacks uses those of its first trial. All runs that the selection lacks are reported together.

    Args:
        path: A file that `swad select` wrote.
        spec: The sweep. Where the selection differs between weights, those of its first average count.
    """
    selection, average = read_selection(path), _first_label(spec.averages)
    selected, problems = {}, []
    for dataset, algorithm, trial in itertools.product(spec.datasets, canonical_algorithms(spec), spec.trials):
        name = benchmarks.label(dataset, spec.data)
        for target in single_targets(spec, dataset):
            try:
                options = selection.options(name, algorithm, target, trial=trial, average=average)
                selected[selected_name(name, algorithm, target, trial)] = options
            except ValueError as error:
                problems.append(f"{path}: {error}")
    _require_none(problems)
    return selected


def _first_label(averages: Sequence[str]) -> str | None:
    return next((average.label for average in registry.parse_all(averages)), None)


def _require_none(problems: Iterable[str]) -> None:
    if distinct := list(dict.fromkeys(problems)):
        raise ConfigError(distinct)
