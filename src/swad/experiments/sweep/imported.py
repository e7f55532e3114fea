"""Hyperparameters from a selection file, which take the place of a search."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from swad.averaging.registry import parse_all
from swad.experiments.sweep.plan import dataset_label, single_targets
from swad.experiments.sweep.spec import SweepSpec, canonical_algorithms, selected_name
from swad.results.selection_file import read_selection
from swad.training.config import ConfigError


def read_selected(path: Path, spec: SweepSpec) -> dict[str, dict[str, Any]]:
    """Return the settings that a selection file has for the runs of a valid spec, by `selected_name`.

    A trial that the file lacks uses those of its first trial. All runs that the selection lacks are reported together.

    Args:
        path: A file that `swad report --export-selection` wrote.
        spec: The sweep. Where the selection differs between weights, those of its first average count.
    """
    selection = read_selection(path)
    labels = [average.label for average in parse_all(spec.averages)]
    selected, problems = {}, []
    for dataset, algorithm, trial in itertools.product(spec.datasets, canonical_algorithms(spec), spec.trials):
        label = dataset_label(spec, dataset)
        for target in single_targets(spec, dataset):
            try:
                options = selection.options(
                    label, algorithm, target, trial=trial, average=labels[0] if labels else None
                )
            except ValueError as error:
                problems.append(f"{path}: {error}")
                continue
            selected[selected_name(label, algorithm, target, trial)] = options
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return selected
