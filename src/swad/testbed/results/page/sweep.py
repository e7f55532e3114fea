"""The explorer of a sweep: the data from which the page shows methods x datasets, hyperparameters and runs.

The data is columns of JSON, deflated and encoded as text inside the page, so that thousands of runs stay small. Curves
are a second part, which the page unpacks when the first run is opened. The target's accuracy is there for selected
runs alone, as in the tables, unless an oracle selects: nobody can choose hyperparameters by it unawares.
"""

from __future__ import annotations

import base64
import json
import math
import struct
import zlib
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from swad.testbed.results.accuracy_table import AVERAGE, MISSING
from swad.testbed.results.labels import algorithm_label, differing_hyperparameters, directory_names
from swad.testbed.results.metrics import Metric, get_metric
from swad.testbed.results.records import LIVE
from swad.testbed.results.run_data import RunData, setting_text
from swad.testbed.results.runs import RunList
from swad.testbed.results.selection import ORACLES, DatasetResults, reported_weights, run_scores, same_kind
from swad.testbed.results.tables import OURS, Cell, Row, Table, percent
from swad.testbed.results.training_curves import Valley, final_values, last_steps, source_curves, valleys
from swad.testbed.results.unit_tables import legend
from swad.util.names import NO_TARGET
from swad.util.statistics import mean

T = TypeVar("T")

MAX_POINTS = 100
"""Points of a curve on the page. A longer one is thinned evenly; its first and last evaluation stay."""

MANY_RUNS = 24

SELECTED_STEP = "selected step"
"""Name of the live weights at the selected step, where neither `best` nor `last` was kept."""

_MISSING = 65535
_LEVELS = 65534
"""A curve is stored in whole numbers up to this one, between the smallest and the largest value of its run."""
_WIDE = 1000
"""Curves with a larger value are stored by their logarithms."""


@dataclass(frozen=True)
class Sweep:
    """What the template needs of the explorer."""

    table: Table
    """Methods x datasets: the means over targets, or over all domains where there is no target."""
    data: str
    curves: str
    selection: str
    metric: Metric
    """What runs are selected by."""
    is_oracle: bool
    has_search: bool
    """Whether runs of an algorithm differ in a hyperparameter."""
    thinned: int
    """Runs whose curves lack evaluations."""


def is_sweep(runs: Sequence[RunData]) -> bool:
    """Return whether the explorer helps: many runs, several datasets, or several runs to choose from."""
    cells = {(run.dataset, run.algorithm, run.targets, run.trial) for run in runs}
    return len(runs) > MANY_RUNS or len({run.table_name for run in runs}) > 1 or len(cells) < len(runs)


def build_sweep(runs: Sequence[RunData], results: Sequence[DatasetResults], tables: Sequence[Table]) -> Sweep:
    """Collect the data of the explorer.

    Args:
        runs: All runs.
        results: The selected results of each dataset.
        tables: The accuracy table of each, whose means over targets the explorer shows.
    """
    runs = RunList.of(runs)
    selection, oracle = results[0].selection, results[0].selection in ORACLES
    methods, accuracies = _results(results)
    settings = _settings(runs)
    curves, thinned = _curves(runs)
    data = {
        "selection": selection,
        "oracle": oracle,
        "datasets": [dataset.dataset for dataset in results],
        "methods": methods,
        "results": accuracies,
        "runs": _runs(runs),
        "settings": settings,
        **_weights(runs, selection, results[0].select_by),
    }
    return Sweep(
        _overview(results, tables, [label for label, *_ in methods]),
        _pack(data),
        curves,
        selection,
        get_metric(results[0].select_by),
        oracle,
        any(setting["searched"] for setting in settings),
        thinned,
    )


# ------------------------------------------------------------ methods x datasets


def _overview(results: Sequence[DatasetResults], tables: Sequence[Table], labels: Sequence[str]) -> Table:
    """Build the table of methods x datasets from the means of the datasets' own tables."""
    means: dict[str, dict[int, Cell]] = {label: {} for label in labels}
    for number, table in enumerate(tables):
        column = table.columns.index(AVERAGE) if AVERAGE in table.columns else 0  # without a target there is one
        for row in table.rows:
            if row.group == OURS and row.name in means:
                means[row.name][number] = row.cells[column]
    with_mean = len(results) > 1 and same_kind(results)
    rows = []
    for label, by_dataset in means.items():
        cells = [by_dataset.get(number, Cell()) for number in range(len(tables))]
        values = [cell.value for cell in cells if cell.value is not None and cell.mark != MISSING]
        # A mean over some of the datasets is not comparable with one over all.
        average = Cell(mean(values)) if len(values) == len(cells) else Cell()
        rows.append(Row(label, (*cells, *[average] * with_mean)))
    columns = tuple(dataset.dataset for dataset in results) + ((AVERAGE,) if with_mean else ())
    if any(cell.value is not None for row in rows for cell in row.cells):
        note = legend(rows)
    else:
        note = "No method has a result on every target, so there is no mean."
    return Table(
        f"{get_metric(results[0].metric).title} in %, {_averaged_over(results)}",
        columns,
        tuple(rows),
        (note,) if note else (),
    )


def _averaged_over(results: Sequence[DatasetResults]) -> str:
    """Say what the accuracies of the overview are means over."""
    if not same_kind(results):
        return "mean over targets; without a target, mean over the validation or test splits of all domains"
    return "mean over targets" if results[0].has_target else "mean over the validation or test splits of all domains"


def _results(results: Sequence[DatasetResults]) -> tuple[list[Any], dict[str, list[Any]]]:
    """Return the methods, and the accuracy in percent behind every mean, by method, dataset, target and trial."""
    import pandas as pd

    rows = pd.concat([each.results.assign(dataset=number) for number, each in enumerate(results)])
    weights = rows.weights.replace(LIVE, SELECTED_STEP)
    methods = _coded(zip(rows.method, rows.algorithm.map(algorithm_label), weights, strict=True))
    columns = {name: rows[name].tolist() for name in ("dataset", "target", "trial", "run", "step")}
    accuracies = [_round(100 * value, 10) for value in rows.value]
    return methods["values"], {"method": methods["codes"], "accuracy": accuracies, **columns}


# ------------------------------------------------------------ runs


def _runs(runs: RunList) -> dict[str, Any]:
    ranges = []
    for by_average in valleys(runs):
        own = next(iter(by_average.values()), None)
        ranges.append(None if own is None else {"average": own.average, **range_of(own)})
    return {
        "name": directory_names(runs),
        "dataset": _coded(run.table_name for run in runs),
        "algorithm": _coded(algorithm_label(run.algorithm) for run in runs),
        "target": _coded(" + ".join(run.targets) or NO_TARGET for run in runs),
        "trial": [run.trial for run in runs],
        "finished": [int(run.finished) for run in runs],
        "steps": last_steps(runs),
        "seconds": [_round(seconds, 1) for seconds in final_values(runs, "seconds_total")],
        "range": ranges,
    }


def range_of(valley: Valley) -> dict[str, float | None]:
    """Return what a chart shows of the averaged range."""
    return {"start": valley.start, "end": valley.end, "threshold": valley.threshold}


def _weights(runs: RunList, selection: str, select_by: str) -> dict[str, Any]:
    """Return by name of the weights every run's validation score, and for an oracle the target's, in percent."""
    names = reported_weights(runs, selection)

    def scores(selection: str, max_targets: int) -> list[list[float | None]]:
        by_run = run_scores(runs, selection, names, select_by)
        shown = [len(run.targets) <= max_targets for run in runs]
        return [
            [_round(percent(by_run.get((n, name)))) if shown[n] else None for n in range(len(runs))] for name in names
        ]

    columns: dict[str, Any] = {
        "weights": [SELECTED_STEP if name == LIVE else name for name in names],
        "validation": scores("iid", 2),
    }
    if selection in ORACLES:
        columns["target"] = scores(selection, 1)
    return columns


def _settings(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    """Return the settings in which runs differ: distinct values, and for each run the index of its own."""
    flat = [
        {
            **{name: value for name, value in run.config.items() if run.role(name) != "hyperparameter"},
            **run.hyperparameters,
        }
        for run in runs
    ]
    shown_elsewhere = ("dataset", "algorithm", "target", "trial")
    searched = {name for name in differing_hyperparameters(runs) if any(name in run.hyperparameters for run in runs)}
    settings = []
    for name in dict.fromkeys(name for each in flat for name in each if name not in shown_elsewhere):
        codes: dict[str, int] = {}
        indices = [_code(codes, setting_text(each[name])) if name in each else -1 for each in flat]
        if len(set(indices)) > 1:
            settings.append({"name": name, "searched": name in searched, "values": list(codes), "codes": indices})
    return sorted(settings, key=lambda setting: (not setting["searched"], setting["name"]))


# ------------------------------------------------------------ curves


def _curves(runs: RunList) -> tuple[str, int]:
    """Pack the validation curves of all runs; also return how many runs lack evaluations there."""
    import numpy as np

    steps_seen: dict[tuple[int, ...], int] = {}
    domains: dict[str, int] = {}
    index: list[Any] = []
    data: list[bytes] = []
    offset = thinned = 0
    for both in zip(source_curves(runs, "loss"), source_curves(runs, "accuracy"), strict=True):
        entry: list[list[Any]] = []
        for curves, scale in zip(both, (1.0, 100.0), strict=True):
            series: list[int] = []
            shown: list[float] = []
            for domain, curve in curves.items():
                series += [_code(domains, domain), _code(steps_seen, tuple(_thin(list(curve)))), offset + len(shown)]
                shown += _thin(list(curve.values()))
                thinned += len(entry) + len(series) == 3 and len(curve) > MAX_POINTS  # once for each run
            numbers = np.array(shown, dtype=np.float64) * scale
            finite = numbers[np.isfinite(numbers)]
            low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
            # Levels of equal width would turn the usual losses of a run that diverged into zeros.
            is_log = low > 0 and high > _WIDE
            if is_log:
                with np.errstate(invalid="ignore"):  # of -inf, which is a gap
                    numbers, low, high = np.log(numbers), math.log(low), math.log(high)
            levels = np.nan_to_num((numbers - low) / ((high - low) or 1.0) * _LEVELS, posinf=0.0, neginf=0.0)
            data.append(np.where(np.isfinite(numbers), np.rint(levels), _MISSING).astype("<u2").tobytes())
            offset += len(shown)
            entry.append([int(is_log), _round(low, 6), _round((high - low) / _LEVELS, 12), *series])
        index.append(entry)
    header = json.dumps({"steps": list(steps_seen), "domains": list(domains), "runs": index}, separators=(",", ":"))
    text = header.encode()
    text += b" " * (len(text) % 2)  # the numbers that follow must be aligned
    return _deflate(struct.pack("<I", len(text)) + text + b"".join(data)), thinned


def _thin(items: list[T]) -> list[T]:
    """Return at most MAX_POINTS evenly spaced items, with the first and the last."""
    if len(items) <= MAX_POINTS:
        return items
    return [items[round(place * (len(items) - 1) / (MAX_POINTS - 1))] for place in range(MAX_POINTS)]


# ------------------------------------------------------------ packing


def _code(codes: dict[T, int], item: T) -> int:
    """Return the number of an item; a new one gets the next. So the page holds each item once."""
    return codes.setdefault(item, len(codes))


def _coded(values: Iterable[Hashable]) -> dict[str, list[Any]]:
    codes: dict[Hashable, int] = {}
    numbers = [_code(codes, value) for value in values]
    return {"values": list(codes), "codes": numbers}


def _round(value: float | None, digits: int = 4) -> float | None:
    # JSON has no nan and no infinities.
    return None if value is None or value - value != 0 else round(value, digits)


def _pack(data: Any) -> str:
    return _deflate(json.dumps(data, separators=(",", ":"), default=str).encode())


def _deflate(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 6)).decode()
