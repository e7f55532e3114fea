"""Comparisons of methods as a table for readers and as a CSV file with every number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from swad.testbed.results.compare import UNITS, VERDICTS, arrow, p_text
from swad.testbed.results.tables import Cell, Row, Table
from swad.util.names import counted

if TYPE_CHECKING:
    import pandas as pd

FIELDS = (
    *("dataset", "method", "baseline", "value", "baseline_value", "difference", "low", "high", "p"),
    *("corrected_p", "n_comparisons", "n", "unit", "n_trials", "test", "verdict"),
)
"""Columns of the CSV file. Values, differences and intervals are in percent and points."""


def comparison_cells(test: Any, scale: float = 100, decimals: int = 2) -> tuple[Cell, ...]:
    """Show a row of tests: difference with its arrow, interval, p-values and number of units.

    Args:
        test: The row.
        scale: What numbers are multiplied with.
        decimals: Decimals of differences.
    """
    return (
        Cell(scale * test.difference, decimals=decimals, signed=True, mark=f" {arrow(test)}".rstrip()),
        _interval_cell(test, scale, decimals),
        *(Cell() if math.isnan(p) else Cell(p, text=p_text(p)) for p in (test.p, test.corrected_p)),
        Cell(text=f"{counted(test.n, test.unit.removesuffix('s'))}{', t' if test.test == 't' else ''}"),
    )


COLUMNS = ("95 % interval", "p", "Corrected p", "n")
"""Headings of `comparison_cells` after the difference."""


def comparisons_tables(tests: pd.DataFrame, further_notes: Sequence[str] = ()) -> list[Table]:
    """Build a table for each dataset: difference, interval, p-values and number of units. The last one has the notes.

    Args:
        tests: The comparisons, with the columns `swad.testbed.results.comparisons.TESTS`.
        further_notes: Notes to put below the others.
    """
    tables = []
    for dataset, of_dataset in tests.groupby("dataset", sort=False):
        title = f"Comparisons with {' and '.join(of_dataset['baseline'].unique())}"
        rows = tuple(Row(test.method, comparison_cells(test)) for test in of_dataset.itertuples())
        tables.append(Table(f"{title}: {dataset}", ("Points", *COLUMNS), rows))
    if len(tables) == 1:
        tables[0] = replace(tables[0], title=title)
    return [*tables[:-1], *(replace(last, notes=(*_notes(tests), *further_notes)) for last in tables[-1:])]


def _interval_cell(test: Any, scale: float = 100, decimals: int = 2) -> Cell:
    """Show the interval of a difference, in points."""
    if math.isnan(test.low):
        return Cell()
    return Cell(text=f"{scale * test.low:+z.{decimals}f} to {scale * test.high:+z.{decimals}f}")


def _notes(tests: pd.DataFrame) -> list[str]:
    """Say what the numbers mean, and which comparisons claim nothing."""
    if tests.empty:
        return []
    tested = tests[tests["p"].notna()]
    units = (tested if len(tested) else tests)["unit"].unique()
    notes = [
        "Differences in points, paired by target and trial. "
        + " ".join(f"Over {unit}: a difference would hold for {UNITS[unit]}." for unit in units)
    ]
    if len(tested):
        notes.append(
            "p is exact (sign flips), or Student’s t where there are too few units (t). Corrected p: Holm, for all "
            "methods of a dataset. ↑ and ↓: corrected p of at most 0.05; –: no difference shown. Intervals are not "
            "corrected."
        )
    missing = {test.dataset: test.missing_targets for test in tests.itertuples() if test.missing_targets}
    notes += [
        f"On {dataset}, the comparisons lack "
        + (f"the target {names[0]}, which has" if len(names) == 1 else f"the targets {', '.join(names)}, which have")
        + " no results."
        for dataset, names in missing.items()
    ]
    if ((tests["n_trials"] == 1) & (tests["unit"] != "domains")).any():
        notes.append(
            "One trial shows no spread between trainings: no interval, no test, and no difference is claimed. "
            "Train more trials."
        )
    if (tests["p"].isna() & (tests["n_trials"] > 1)).any():
        notes.append("No test where all paired differences are the same: they show no spread.")
    return notes


def comparisons_csv(tests: pd.DataFrame) -> str:
    """Return comparisons as comma-separated values in full precision, one line for each."""
    in_points = {name: 100 * tests[name].astype(float) for name in ("difference", "low", "high")}
    in_points |= {name: 100 * tests[name] for name in ("value", "baseline_value")}
    words = {
        "test": tests["test"].where(tests["p"].notna(), "none"),
        "verdict": [VERDICTS[arrow(test)] for test in tests.itertuples()],
    }
    text: str = tests.assign(**in_points, **words)[list(FIELDS)].to_csv(index=False)
    return text
