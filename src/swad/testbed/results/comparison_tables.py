"""Comparisons of methods as a table for readers and as a CSV file with every number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from swad.testbed.results.comparisons import UNITS, Comparison, p_text
from swad.testbed.results.tables import Cell, Row, Table, csv_text, percent
from swad.util.grouping import group_by
from swad.util.names import counted
from swad.util.paired import PairedTest

VERDICTS = {"↑": "better", "↓": "worse", "–": "not shown", "": "no test"}

FIELDS: Mapping[str, Callable[[Comparison], object]] = {
    "dataset": lambda comparison: comparison.dataset,
    "method": lambda comparison: comparison.method,
    "baseline": lambda comparison: comparison.baseline,
    "accuracy": lambda comparison: 100 * comparison.accuracy,
    "baseline_accuracy": lambda comparison: 100 * comparison.baseline_accuracy,
    "difference": lambda comparison: 100 * comparison.difference,
    "low": lambda comparison: percent(comparison.test.low),
    "high": lambda comparison: percent(comparison.test.high),
    "p": lambda comparison: comparison.test.p,
    "corrected_p": lambda comparison: comparison.corrected_p,
    "n_comparisons": lambda comparison: comparison.n_comparisons,
    "n": lambda comparison: comparison.test.n,
    "unit": lambda comparison: comparison.unit,
    "n_trials": lambda comparison: comparison.n_trials,
    "test": lambda comparison: comparison.test.test or "none",
    "verdict": lambda comparison: VERDICTS[comparison.arrow],
}
"""Columns of the CSV file. Accuracies, differences and intervals are in percent and points."""


def comparisons_table(comparisons: Sequence[Comparison], further_notes: Sequence[str] = ()) -> Table:
    """Build the table of comparisons with one baseline: difference, interval, p-values and number of units."""
    several_datasets = len({comparison.dataset for comparison in comparisons}) > 1
    rows = []
    for comparison in comparisons:
        test = comparison.test
        cells = [
            Cell(100 * comparison.difference, decimals=2, signed=True, mark=f" {comparison.arrow}".rstrip()),
            interval_cell(test),
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
    by_dataset = group_by(comparisons, lambda comparison: comparison.dataset)
    if len(by_dataset) == 1:
        return [comparisons_table(comparisons, further_notes)]
    tables: list[Table] = []
    for dataset, members in by_dataset.items():
        table = comparisons_table(members)
        is_last = len(tables) == len(by_dataset) - 1
        notes = (*_notes(comparisons), *further_notes) if is_last else ()
        tables.append(replace(table, title=f"{table.title}: {dataset}", notes=notes))
    return tables


def interval_cell(test: PairedTest) -> Cell:
    """Show the interval of a difference in points.

    >>> interval_cell(PairedTest(0.004, -0.004, 0.0123, 0.3, 6, "sign flips")).text
    '-0.40 to +1.23'
    """
    if test.low is None or test.high is None:
        return Cell()
    return Cell(text=f"{100 * test.low:+z.2f} to {100 * test.high:+z.2f}")


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
            "p is exact (sign flips), or Student’s t where there are too few units (t). Corrected p: Holm, for all "
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
    if any(comparison.n_trials == 1 and comparison.unit != "domains" for comparison in comparisons):
        notes.append(
            "One trial shows no spread between trainings: no interval, no test, and no difference is claimed. "
            "Train more trials."
        )
    if any(comparison.test.p is None and comparison.n_trials > 1 for comparison in comparisons):
        notes.append("No test where all paired differences are the same: they show no spread.")
    return notes


def comparisons_csv(comparisons: Sequence[Comparison]) -> str:
    """Return comparisons as comma-separated values in full precision, one line for each."""
    return csv_text([FIELDS, *([value(comparison) for value in FIELDS.values()] for comparison in comparisons)])
