"""Results of methods from arrays of accuracies, without runs."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from swad.testbed.results.run_data import RunData
from swad.testbed.results.runs import RunList
from swad.testbed.results.selection import MISSING, RESULTS, DatasetResults, select

Gains = dict[str, np.ndarray]


def results_of(accuracies: Gains, dataset: str = "D", targets: str = "abcd") -> DatasetResults:
    """Results of methods from arrays, targets x trials."""
    rows = [
        (label, "erm", "best", target, trial, 0, 1, None, float(value), None, 1)
        for label, values in accuracies.items()
        for target, row in zip(targets, values, strict=True)
        for trial, value in enumerate(row)
    ]
    return DatasetResults(
        dataset,
        "iid",
        "in",
        runs=RunList([RunData(Path(), {}, (), True)]),
        members=(),
        targets=tuple(targets),
        missing_targets=(),
        results=pd.DataFrame(rows, columns=list(RESULTS)).astype({"score": float, "source": float}),
        missing=pd.DataFrame(columns=list(MISSING)),
    )


def noisy(gains: dict[str, float], seed: int = 0, n_trials: int = 3, noise: float = 0.01) -> Gains:
    """Accuracies on four targets; a method is better than the first by its gain, up to noise."""
    rng = np.random.default_rng(seed)
    base = rng.normal(0.7, 0.1, (4, 1)) + rng.normal(0, 0.02, (4, n_trials))  # shared by the methods of a trial
    return {label: base + gain + rng.normal(0, noise, (4, n_trials)) for label, gain in gains.items()}


def selected(runs: Sequence[RunData], *arguments: Any, **options: Any) -> list[Any]:
    """The rows that `select` returns, each with its run."""
    return [
        SimpleNamespace(**{**row._asdict(), "run": runs[row.run]})  # type: ignore[operator]
        for row in select(runs, *arguments, **options).itertuples(index=False)
    ]
