"""Validation curves, averaged ranges and run-level values, read from the records of runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from swad.testbed.results.records import LIVE
from swad.testbed.results.run_data import RunData
from swad.testbed.results.runs import RunList, once
from swad.util.statistics import mean

ByStep = Mapping[int, float]
"""Values by step, in the order of the steps."""

Curves = dict[str, ByStep]
"""Curves by domain, in the order of their names."""


@dataclass(frozen=True)
class Valley:
    """The range of steps that an average covers: from `start` to `end`, both included.

    `threshold` is the largest validation loss in the range. It is None if the loss has not converged.
    """

    average: str
    start: int | None
    end: int | None
    n_averaged: int | None
    threshold: float | None


def valleys(runs: Iterable[RunData]) -> list[dict[str, Valley]]:
    """Return for each run the last recorded state of every loss valley by the name of its average, "swad" first."""
    return _valleys(RunList.of(runs))


@once
def _valleys(runs: RunList) -> list[dict[str, Valley]]:
    rows = runs.records
    ranges = ("start_step", "end_step", "n_averaged", "threshold")
    rows = rows[(rows.metric.isin(ranges) & (rows.weights != LIVE)).to_numpy()]
    rows = rows.drop_duplicates(["run", "weights", "metric"], keep="last")
    final: list[dict[str, dict[str, float]]] = [{} for _ in runs]
    columns = (rows[name].tolist() for name in ("run", "weights", "metric", "value"))
    for run, average, metric, value in zip(*columns, strict=True):
        final[run].setdefault(average, {})[metric] = value
    found = []
    for by_average in final:
        names = [name for name, values in by_average.items() if "start_step" in values or "threshold" in values]
        names.sort(key=lambda name: (name != "swad", name))
        found.append({name: _valley(name, by_average[name]) for name in names})
    return found


def _valley(average: str, values: Mapping[str, float]) -> Valley:
    finite = {metric: value for metric, value in values.items() if math.isfinite(value)}
    start, end, n = (int(finite[name]) if name in finite else None for name in ("start_step", "end_step", "n_averaged"))
    return Valley(average, start, end, n, finite.get("threshold"))


def source_curves(runs: Iterable[RunData], metric: str) -> list[Curves]:
    """Return for each run the validation curves of the live weights on its source domains."""
    return _source_curves(RunList.of(runs), metric)


@once
def _source_curves(runs: RunList, metric: str) -> list[Curves]:
    import numpy as np

    rows = runs.records
    rows = rows[
        ((rows.metric == metric) & (rows.split == "out") & (rows.weights == LIVE) & rows.domain.notna()).to_numpy()
    ]
    names, run, domain = rows.domain.cat.categories.tolist(), rows.run.to_numpy(), rows.domain.cat.codes.to_numpy()
    rank = np.array([sorted(names).index(name) for name in names], np.int16)
    # Stable: of values that were recorded twice, the last one counts.
    order = np.lexsort((rows.step.to_numpy(), rank[domain], run))
    run, domain = run[order], domain[order]
    steps, values = rows.step.to_numpy()[order].tolist(), rows.value.to_numpy()[order].tolist()
    starts = np.flatnonzero((np.diff(run, prepend=-1) != 0) | (np.diff(domain, prepend=-1) != 0))
    ends = [*starts[1:].tolist(), len(steps)]
    curves: list[Curves] = [{} for _ in runs]
    of_series = zip(run[starts].tolist(), domain[starts].tolist(), starts.tolist(), ends, strict=False)
    for number, code, start, end in of_series:  # none without rows
        name = names[code]
        if name not in runs[number].targets:
            curves[number][name] = dict(zip(steps[start:end], values[start:end], strict=True))
    return curves


def mean_curve(curves: Iterable[ByStep]) -> dict[int, float]:
    """Average curves over domains at the steps they share. The valley is found on this mean."""
    curves = list(curves)
    steps = set[int]().union(*curves).intersection(*curves)
    return {step: mean([curve[step] for curve in curves]) for step in sorted(steps)}


def final_values(runs: Iterable[RunData], metric: str) -> list[float | None]:
    """Return for each run the last value of a metric of the whole run, such as a timing; None if it has none."""
    runs = RunList.of(runs)
    rows = runs.records
    rows = rows[((rows.metric == metric) & rows.domain.isna() & rows.split.isna() & (rows.weights == LIVE)).to_numpy()]
    last = dict(zip(rows.run.tolist(), rows.value.tolist(), strict=True))
    return [last.get(number) for number in range(len(runs))]


def last_steps(runs: Iterable[RunData]) -> list[int]:
    """Return for each run the last step with a record."""
    runs = RunList.of(runs)
    last = runs.records.groupby("run").step.max().to_dict()
    return [last.get(number, 0) for number in range(len(runs))]
