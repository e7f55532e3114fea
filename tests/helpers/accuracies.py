"""Results of methods from arrays of accuracies, without runs."""

from pathlib import Path

import numpy as np

from swad.testbed.results.method_results import DatasetResults, MethodResults
from swad.testbed.results.run_data import RunData
from swad.testbed.results.selection import Selection, TargetResult

Gains = dict[str, np.ndarray]


def results_of(accuracies: Gains, dataset: str = "D", targets: str = "abcd") -> DatasetResults:
    """Results of methods from arrays, targets x trials."""
    run = RunData(Path(), {}, (), True)
    methods = [
        MethodResults(
            label,
            "erm",
            "best",
            Selection(
                TargetResult(target, trial, float(value), run, 1)
                for target, row in zip(targets, values, strict=True)
                for trial, value in enumerate(row)
            ),
        )
        for label, values in accuracies.items()
    ]
    return DatasetResults(dataset, "iid", "in", (), tuple(targets), (), tuple(methods), {})


def noisy(gains: dict[str, float], seed: int = 0, n_trials: int = 3, noise: float = 0.01) -> Gains:
    """Accuracies on four targets; a method is better than the first by its gain, up to noise."""
    rng = np.random.default_rng(seed)
    base = rng.normal(0.7, 0.1, (4, 1)) + rng.normal(0, 0.02, (4, n_trials))  # shared by the methods of a trial
    return {label: base + gain + rng.normal(0, noise, (4, n_trials)) for label, gain in gains.items()}


def accuracies_of(results: DatasetResults) -> dict[str, dict[tuple[str, int], float]]:
    """The accuracies of all methods on the targets."""
    return {method.label: method.results.accuracies() for method in results.methods}
