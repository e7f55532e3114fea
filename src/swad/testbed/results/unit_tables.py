"""Tables of means and of paired differences, and the marks of a column.

Bold says which number is the highest, and claims nothing. ↓ claims a difference that a test shows. So few trials give
few arrows, and one trial gives none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from swad.testbed.results.compare import UNITS, VERDICTS, arrow, lower_than_best, means, p_text
from swad.testbed.results.tables import OURS, Cell, Row, Table, mean_cell
from swad.util.names import counted

if TYPE_CHECKING:
    import pandas as pd

# ------------------------------------------------------------ means


def mean_table(
    title: str,
    columns: Mapping[str, pd.DataFrame],
    notes: Sequence[str] = (),
    *,
    scale: float = 100,
    decimals: int | None = 1,
) -> Table:
    """Build a table of means with a row for each method.

    Args:
        title: Its title.
        columns: Units by heading.
        notes: Notes below it.
        scale: What numbers are multiplied with.
        decimals: Decimals of numbers; None: more for small ones.
    """
    summaries = [means(units) for units in columns.values()]
    rows = []
    for name in next(iter(columns.values())).columns:
        of_method = [summary.loc[name] for summary in summaries]
        cells = (mean_cell(each, scale, decimals_of(scale * each["mean"], decimals)) for each in of_method)
        rows.append(Row(name, tuple(cells)))
    return Table(title, tuple(columns), tuple(rows), tuple(notes))


def decimals_of(value: float, decimals: int | None = None) -> int:
    """Return the decimals of a number in a table: more for a small one, unless they are given."""
    if decimals is not None:
        return decimals
    return 4 if abs(value) < 0.1 else 3 if abs(value) < 10 else 1


LOWER = "↓"

TEST = "paired test over trials or runs, 5 % level, Holm correction over all pairs of methods"


def mark_column(cells: Mapping[str, Cell], units: pd.DataFrame, tests: bool = True) -> tuple[dict[str, Cell], str]:
    """Return the cells of a column with their marks, and why differences were not tested; empty if they were.

    What prints like the highest mean is bold, too, unless it is shown to be lower.

    Args:
        cells: The means in percent, by method.
        units: The accuracies behind each mean, of the methods whose means are comparable. Other cells get no mark.
        tests: Whether to mark means that are significantly below the highest.
    """
    numbers = {
        label: value for label in units.columns if (value := cells[label].value) is not None and math.isfinite(value)
    }
    if len(numbers) < 2:
        return dict(cells), ""
    best, lower, error = max(numbers, key=lambda label: numbers[label]), set[str](), ""
    if tests:
        try:
            lower = lower_than_best(units[list(numbers)], best)
        except ImportError as missing:  # without the extra, the table still works
            error = str(missing)
    marked = dict(cells)
    for label in numbers:
        cell = cells[label]
        if label in lower:
            marked[label] = replace(cell, mark=cell.mark + LOWER)
        else:
            marked[label] = replace(cell, best=cell.number == cells[best].number)
    return marked, error


def legend(rows: Iterable[Row], error: str = "", tests: bool = True) -> str:
    """Explain the marks of a table in one sentence; empty if it has none.

    Args:
        rows: The rows of the table.
        error: Why differences were not tested.
        tests: Whether means below the highest were to be marked.
    """
    rows = list(rows)
    cells = [cell for row in rows if row.group == OURS for cell in row.cells]
    if not any(cell.best for cell in cells):
        return ""
    bold = f"Bold: {'our' if any(row.group != OURS for row in rows) else 'the'} highest mean in the column"
    if not tests:
        return f"{bold}."
    if error:
        return f"{bold}. Differences are not tested: {error}."
    if any(LOWER in cell.mark for cell in cells):
        return f"{bold}; {LOWER}: significantly below it ({TEST})."
    if all(cell.error is None for cell in cells):
        return f"{bold}; without a second trial, no difference can be tested."
    return f"{bold}. No other is significantly below it ({TEST})."


# ------------------------------------------------------------ differences


FIELDS = (
    *("dataset", "method", "baseline", "value", "baseline_value", "difference", "low", "high", "p"),
    *("corrected_p", "n_comparisons", "n", "unit", "n_trials", "test", "verdict"),
)
"""Columns of the CSV file. Values, differences and intervals are in percent and points."""


COLUMNS = ("95 % interval", "p", "Corrected p", "n")
"""Headings after the difference."""


def difference_table(
    title: str,
    tests: pd.DataFrame,
    notes: Sequence[str] = (),
    *,
    scale: float = 100,
    decimals: int | None = 1,
    quantity: str = "",
) -> Table:
    """Build a table of paired differences: size, interval, p-values and number of units.

    Args:
        title: Its title.
        tests: The tests of `compare`.
        notes: Notes below it.
        scale: What numbers are multiplied with.
        decimals: Decimals of the means; differences have at least two.
        quantity: How rows name the quantity that is compared, a format; empty where there is one.
    """
    rows = []
    for test in tests.itertuples():
        name = f"{test.method}, {quantity.format(test.quantity)}" if quantity else test.method
        shown = max(2, decimals_of(scale * test.difference, decimals))
        rows.append(Row(name, _difference_cells(test, scale, shown, with_trials=bool(quantity))))
    heading = "Points" if scale == 100 else "Difference"
    return Table(title, (heading, *COLUMNS), tuple(rows), tuple(notes), "Difference" if quantity else "Method")


def _difference_cells(test: Any, scale: float, decimals: int, with_trials: bool) -> tuple[Cell, ...]:
    interval = Cell()
    if not math.isnan(test.low):
        interval = Cell(text=f"{scale * test.low:+z.{decimals}f} to {scale * test.high:+z.{decimals}f}")
    n = counted(test.n, test.unit.removesuffix("s"))
    if with_trials and test.unit == "runs":
        n += f", {counted(test.n_trials, 'trial')}"
    return (
        Cell(scale * test.difference, decimals=decimals, signed=True, mark=f" {arrow(test)}".rstrip()),
        interval,
        *(Cell() if math.isnan(p) else Cell(p, text=p_text(p)) for p in (test.p, test.corrected_p)),
        Cell(text=f"{n}{', t' * (test.test == 't')}"),
    )


def comparisons_tables(tests: pd.DataFrame, further_notes: Sequence[str] = ()) -> list[Table]:
    """Build a table for each dataset: difference, interval, p-values and number of units. The last one has the notes.

    Args:
        tests: The comparisons, with the columns `swad.testbed.results.comparisons.TESTS`.
        further_notes: Notes to put below the others.
    """
    tables = []
    for dataset, of_dataset in tests.groupby("dataset", sort=False):
        title = f"Comparisons with {' and '.join(of_dataset['baseline'].unique())}"
        tables.append(difference_table(f"{title}: {dataset}", of_dataset))
    if len(tables) == 1:
        tables[0] = replace(tables[0], title=title)
    return [*tables[:-1], *(replace(last, notes=(*_notes(tests), *further_notes)) for last in tables[-1:])]


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
