"""Train with hyperparameters that were selected before: runs take them from a selection file instead of a search."""

from __future__ import annotations

from collections.abc import Iterable

from swad.algorithms.registry import canonical_name
from swad.averaging import registry
from swad.data import benchmarks
from swad.results.selection_file import SelectionFile
from swad.training.config import SETTINGS, ConfigError, RunConfig


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
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return imported


def _use(config: RunConfig, selection: SelectionFile) -> RunConfig:
    data, averages = config.data, registry.parse_all(config.evaluation.averages)
    dataset = benchmarks.get(data.dataset)
    own_folder = data.data_dir is not None and not dataset.domains
    options = selection.options(
        data.data_dir.name if own_folder and data.data_dir is not None else dataset.name,
        canonical_name(config.training.algorithm),
        data.target_name,
        trial=data.trial,
        average=averages[0].label if averages else None,
    )
    known = {name for name, setting in SETTINGS.items() if setting.role == "hyperparameter"}
    if unknown := sorted(set(options) - known):
        raise ValueError(f"the selection sets {', '.join(unknown)}, which is no hyperparameter of this version of swad")
    own = config.options()
    changed = {name: own[name] for name in options if own[name] != SETTINGS[name].default}
    hyperparameters = {**options["hyperparameters"], **own["hyperparameters"]}
    return config.replace(**{**options, **changed, "hyperparameters": hyperparameters})
