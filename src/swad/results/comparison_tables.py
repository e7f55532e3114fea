"""Comparisons of methods as a table for readers and as a CSV file with every number."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from swad.results.comparisons import UNITS, Comparison, p_text
from swad.results.records import make_frame
from swad.results.tables import Cell, Row, Table
from swad.util.names import counted

if TYPE_CHECKING:
    import pandas

FIELDS = (
    "dataset",
    "method",
    "baseline",
    "accuracy",
    "baseline_accuracy",
    "difference",
    "low",
    "high",
    "p",
    "corrected_p",
    "n_comparisons",
    "n",
    "unit",
    "n_trials",
    "test",
    "verdict",
)
"""Columns of the CSV file. Accuracies, differences and intervals are in percent and points."""

VERDICTS = {"↑": "better", "↓": "worse", "–": "not shown", "": "no test"}


def comparisons_table(comparisons: Sequence[Comparison], further_notes: Sequence[str] = ()) -> Table:
    """Build the table of comparisons with one baseline: difference, interval, p-values and number of units."""
    several_datasets = len({comparison.dataset for comparison in comparisons}) > 1
    rows = []
    for comparison in comparisons:
        test = comparison.test
        interval = Cell() if test.low is None or test.high is None else Cell(text=interval_text(test.low, test.high))
        cells = [
            Cell(100 * comparison.difference, decimals=2, signed=True, mark=f" {comparison.arrow}".rstrip()),
            interval,
            *(Cell(p, text=p_text(p)) if p is not None else Cell() for p in (test.p, comparison.corrected_p)),
            Cell(text=f"{counted(test.n, comparison.unit.removesuffix('s'))}{', t' if test.test == 't' else ''}"),
        ]
        if several_datasets:
            cells.insert(0, Cell(text=comparison.dataset))
        rows.append(Row(comparison.method, tuple(cells)))
    columns = ("Points", "95 % interval", "p", "Corrected p", "n")
    baselines = " and ".join(dict.fromkeys(comparison.baseline for comparison in comparisons))
    return Table(
        f"Comparisons with {baselines}",
        ("Dataset", *columns) if several_datasets else columns,
        tuple(rows),
        (*_notes(comparisons), *further_notes),
    )


def comparisons_tables(comparisons: Sequence[Comparison], further_notes: Sequence[str] = ()) -> list[Table]:
    """Build one table for each dataset, as a terminal has little width; the last one has the notes of all."""
    by_dataset: dict[str, list[Comparison]] = {}
    for comparison in comparisons:
        by_dataset.setdefault(comparison.dataset, []).append(comparison)
    if len(by_dataset) == 1:
        return [comparisons_table(comparisons, further_notes)]
    tables: list[Table] = []
    for dataset, members in by_dataset.items():
        table = comparisons_table(members)
        is_last = len(tables) == len(by_dataset) - 1
        notes = (*_notes(comparisons), *further_notes) if is_last else ()
        tables.append(replace(table, title=f"{table.title}: {dataset}", notes=notes))
    return tables


def interval_text(low: float, high: float) -> str:
    """Return an interval of a difference in points.

    >>> interval_text(-0.004, 0.0123)
    '-0.40 to +1.23'
    """
    return f"{100 * low:+z.2f} to {100 * high:+z.2f}"


def _notes(comparisons: Sequence[Comparison]) -> list[str]:
    """Say what the numbers mean, and which comparisons claim nothing."""
    if not comparisons:
        return []
    tested = [comparison for comparison in comparisons if comparison.test.p is not None]
    units = list(dict.fromkeys(comparison.unit for comparison in tested or comparisons))
    notes = [
        "Differences in points of accuracy, paired by target and trial. "
        + " ".join(f"Over {unit}: a difference would hold for {UNITS[unit]}." for unit in units)
    ]
    if tested:
        notes.append(
            "p is exact (sign flips), or of Student’s t where the units are too few (t). Corrected p: Holm, for all "
            "methods of a dataset. ↑ and ↓: corrected p of at most 0.05; –: no difference shown. Intervals are not "
            "corrected."
        )
    missing = {c.dataset: c.missing_targets for c in comparisons if c.missing_targets}
    notes += [
        f"On {dataset}, the comparisons lack "
        + (f"the target {names[0]}, which has" if len(names) == 1 else f"the targets {', '.join(names)}, which have")
        + " no results."
        for dataset, names in missing.items()
    ]
    if any(comparison.n_trials == 1 and comparison.unit != "datasets" for comparison in comparisons):
        notes.append(
            "One trial shows no spread between trainings: no interval, no test, and no difference is claimed. "
            "Train more trials."
        )
    if any(comparison.test.p is None and comparison.n_trials > 1 for comparison in comparisons):
        notes.append("Without a test: all differences of the units are the same, so they show no spread.")
    return notes


def comparisons_csv(comparisons: Sequence[Comparison]) -> str:
    """Return comparisons as comma-separated values in full precision, one line for each."""
    out = io.StringIO()
    writer = csv.DictWriter(out, FIELDS, lineterminator="\n")  # None is written as an empty field
    writer.writeheader()
    writer.writerows(map(_fields, comparisons))
    return out.getvalue()


def comparisons_frame(comparisons: Sequence[Comparison]) -> pandas.DataFrame:
    """Return comparisons as a pandas data frame with one row for each, and the columns of the CSV file."""
    return make_frame(list(map(_fields, comparisons)), FIELDS)


def _fields(comparison: Comparison) -> dict[str, Any]:
    test = comparison.test
    points = {
        "accuracy": comparison.accuracy,
        "baseline_accuracy": comparison.baseline_accuracy,
        "difference": comparison.difference,
        "low": test.low,
        "high": test.high,
    }
    return {
        "dataset": comparison.dataset,
        "method": comparison.method,
        "baseline": comparison.baseline,
        **{name: None if value is None else 100 * value for name, value in points.items()},
        "p": test.p,
        "corrected_p": comparison.corrected_p,
        "n_comparisons": comparison.n_comparisons,
        "n": test.n,
        "unit": comparison.unit,
        "n_trials": comparison.n_trials,
        "test": test.test or "none",
        "verdict": VERDICTS[comparison.arrow],
    }
