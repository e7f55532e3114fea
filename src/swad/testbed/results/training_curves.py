"""Validation curves, averaged ranges and run-level values, read from a run's records."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from swad.testbed.results.record_table import Series, mean_by_step
from swad.testbed.results.run_data import RunData


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


def valleys(run: RunData) -> dict[str, Valley]:
    """Return the last recorded state of every loss valley by the name of its average, "swad" first."""
    final: dict[str, dict[str, float]] = {}
    for key, (_, values) in run.table.series.items():
        if key.average is not None and key.metric in ("start_step", "end_step", "n_averaged", "threshold"):
            final.setdefault(key.average, {})[key.metric] = values[-1]
    names = [name for name, values in final.items() if "start_step" in values or "threshold" in values]
    return {name: _valley(name, final[name]) for name in sorted(names, key=lambda name: (name != "swad", name))}


def _valley(average: str, values: Mapping[str, float]) -> Valley:
    finite = {metric: value for metric, value in values.items() if math.isfinite(value)}
    start, end, n = (int(finite[name]) if name in finite else None for name in ("start_step", "end_step", "n_averaged"))
    return Valley(average, start, end, n, finite.get("threshold"))


def source_curves(run: RunData, metric: str) -> dict[str, Series]:
    """Return the validation curve of the live weights for every source domain, in the order of the steps."""
    by_domain = run.table.find(metric, "out", None)
    sources = sorted(domain for domain in by_domain if domain is not None and domain not in run.targets)
    return {domain: _curve(*by_domain[domain]) for domain in sources}


def mean_curve(curves: Iterable[Series]) -> Series:
    """Average curves over domains at the steps they share. The valley is found on this mean."""
    means = mean_by_step(curves)
    return list(means), list(means.values())


def _curve(steps: list[int], values: list[float]) -> Series:
    if all(map(operator.lt, steps, steps[1:])):
        return steps, values
    points = dict(zip(steps, values, strict=True))
    return sorted(points), [points[step] for step in sorted(points)]


def final_value(run: RunData, metric: str) -> float | None:
    """Return the last value of a metric of the whole run, such as a timing; None if it was not recorded."""
    series = run.table.find(metric, None, None).get(None)
    return series[1][-1] if series is not None else None


def last_step(run: RunData) -> int:
    """Return the last step with a record."""
    return max((max(steps) for steps, _ in run.table.series.values()), default=0)
