"""The marks of a column of accuracies: bold for the highest mean, ↓ for means that are significantly below it.

Bold says which number is the highest, and claims nothing. ↓ claims a difference that a test shows. So few trials give
few arrows, and one trial gives none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from swad.testbed.results.compare import lower_than_best
from swad.testbed.results.tables import OURS, Cell, Row

if TYPE_CHECKING:
    import pandas as pd

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
