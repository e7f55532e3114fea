"""The accuracy of a method on a dataset, and tables with our numbers, the paper's and the difference.

A table has three blocks in the paper's form: ours, the paper's, and ours minus the paper's. Columns of datasets that
are not the paper's come first and have no difference.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from swad.testbed.paper.methods import QUOTED, PaperMethod
from swad.testbed.paper.paper_config import PaperConfig
from swad.testbed.paper.reproduction import PaperRuns
from swad.testbed.results.compare import units_of_methods
from swad.testbed.results.published import Number, Printed
from swad.testbed.results.run_data import RunData
from swad.testbed.results.selection import SelectionError, select
from swad.testbed.results.tables import PAPER, Cell, Row, Table, percent_cell
from swad.testbed.results.unit_tables import legend, mark_column
from swad.util.statistics import mean

if TYPE_CHECKING:
    import pandas as pd

DIFFERENCE = "ours − paper"
"""Group of the rows with differences."""

INCOMPLETE = "*"
"""Mark of a mean over some of the targets."""

ARROWS = {"up": " ↑", "down": " ↓", "none": " –"}
"""Marks of Table 3: above ERM, below it, or neither."""

Side = Literal["value", "source"]
"""The column of results: accuracies on the targets, or on their sources."""

Accuracies: TypeAlias = "pd.Series"
"""The accuracies of one method by target and trial."""


def method_results(paper_runs: PaperRuns, dataset: str, method: PaperMethod) -> pd.DataFrame | None:
    """Return the results of a method on a dataset, as `select` does; None if there are none."""
    return results_of(paper_runs.runs(dataset, method.training), method.weights)


def results_of(runs: Sequence[RunData], weights: str) -> pd.DataFrame | None:
    """Return the results of some weights of runs; None if there are none."""
    try:
        results = select(runs, "iid", weights) if runs else None
    except SelectionError:
        return None
    return None if results is None or results.empty else results


def accuracies(results: pd.DataFrame, side: Side = "value") -> Accuracies:
    """Return the accuracies of one side by target and trial."""
    return results.set_index(["target", "trial"])[side].dropna()


def all_targets(config: PaperConfig, dataset: str) -> tuple[str, ...]:
    """Return the domains of a dataset, each of which should be a target."""
    return replace(config, targets=()).targets_of(dataset)


def targets_cell(accuracies: Accuracies, targets: Sequence[str]) -> Cell:
    """Average over targets within each trial, then over the trials that have all of those with a result; in percent.

    >>> import pandas as pd
    >>> units = pd.MultiIndex.from_product([("a", "b"), (0, 1)], names=["target", "trial"])
    >>> targets_cell(pd.Series([0.5, 0.7, 0.7, 0.7], units), ("a", "b")).printed
    '65.0 ± 3.5'
    >>> targets_cell(pd.Series([0.5], units[:1]), ("a", "b")).printed                    # b is no target yet
    '50.0*'
    """
    complete = accuracies.unstack("trial").dropna(axis="columns")
    cell = percent_cell(mean(of_trial) for _, of_trial in complete.items())
    return replace(cell, mark=INCOMPLETE) if 0 < len(complete) < len(targets) and len(complete.columns) else cell


def average_cell(cells: Sequence[Cell]) -> Cell:
    """Return the mean over the datasets of a table; nothing if one is missing, since their levels differ."""
    values = [cell.value for cell in cells if cell.value is not None and not cell.mark]
    return Cell(mean(values)) if len(values) == len(cells) else Cell()


def dataset_cells(
    config: PaperConfig,
    measured: Mapping[str, pd.DataFrame],
    others: Sequence[str],
    datasets: Sequence[str],
    side: Side = "value",
) -> tuple[list[Cell], list[Accuracies | None]]:
    """Return a method's cells and the accuracies behind them: stand-ins, the table's datasets, and their mean."""
    cells: list[Cell] = []
    columns: list[Accuracies | None] = []
    for name in (*others, *datasets):
        columns.append(accuracies(measured[name], side) if name in measured else None)
        cells.append(Cell() if columns[-1] is None else targets_cell(columns[-1], all_targets(config, name)))
    return [*cells, average_cell(cells[len(others) :])], [*columns, None]


# ------------------------------------------------------------ tables in three blocks


@dataclass(frozen=True)
class ComparedRow:
    """A row of the paper with ours beside it.

    Args:
        name: Name of the row.
        ours: Our cells; None for a method that is not trained yet.
        paper: The paper's cells.
        accuracies: Our accuracies behind each cell, for the tests of their differences; None for cells without.
    """

    name: str
    ours: tuple[Cell, ...] | None
    paper: tuple[Cell, ...]
    accuracies: tuple[Accuracies | None, ...] = ()


def printed_cell(value: Printed) -> Cell:
    """Return a published value as a cell."""
    if isinstance(value, Number):
        return Cell(value.value, value.error, best=value.best, mark=ARROWS.get(value.change or "", ""))
    return Cell(text=value) if value is not None else Cell()


def compared_table(
    title: str, columns: Sequence[str], rows: Iterable[ComparedRow], notes: Sequence[str], expected: Iterable[str] = ()
) -> Table:
    """Build a table of three blocks: ours, the paper's, and the difference where both have a number.

    Args:
        title: Title of the table.
        columns: Names of the columns.
        rows: The rows of the paper, with ours where there are runs.
        notes: Notes below the table.
        expected: Names of the rows that should have numbers of ours. Those that have none are named.
    """
    rows = list(rows)
    own_cells = [cell for row in rows for cell in row.ours or ()]
    # The arrows of Table 3 compare with ERM. Others beside them would be misread.
    tests = not any(cell.mark.removeprefix(INCOMPLETE) for cell in own_cells)
    ours, error = _with_marks([row for row in rows if row.ours is not None], tests)
    paper = [Row(row.name, row.paper, PAPER) for row in rows if any(_has_content(cell) for cell in row.paper)]
    differences = []
    for row in rows:
        if row.ours is not None:
            cells = tuple(difference_cell(*pair) for pair in zip(row.ours, row.paper, strict=True))
            if any(cell.value is not None for cell in cells):
                differences.append(Row(row.name, cells, DIFFERENCE))
    notes = list(notes)
    if lacking := [row.name for row in rows if row.ours is None and row.name in set(expected)]:
        notes.append(f"No finished run of ours: {', '.join(lacking)}.")
    if marks := legend([*ours, *paper], error, tests):
        notes.append(marks)
    if any(cell.mark.startswith(INCOMPLETE) for row in ours for cell in row.cells):
        notes.append(f"{INCOMPLETE} Mean over some of the targets: do not compare it with other means.")
    return Table(title, tuple(columns), (*ours, *paper, *differences), tuple(notes))


def _with_marks(rows: Sequence[ComparedRow], tests: bool) -> tuple[list[Row], str]:
    """Return our rows with the marks of each column, and why differences were not tested."""
    cells = {row.name: list(row.ours or ()) for row in rows}
    error = ""
    for column in range(len(rows[0].accuracies) if rows else 0):
        compared = {
            row.name: behind
            for row in rows
            if column < len(row.accuracies)
            and (behind := row.accuracies[column]) is not None
            and len(behind)
            and not cells[row.name][column].mark.startswith(INCOMPLETE)
        }
        own_column = {name: own[column] for name, own in cells.items()}
        marked, not_tested = mark_column(own_column, units_of_methods(compared), tests)
        error = error or not_tested
        for name, cell in marked.items():
            cells[name][column] = cell
    return [Row(name, tuple(own)) for name, own in cells.items()], error


def difference_cell(ours: Cell, paper: Cell) -> Cell:
    """Return ours minus the paper's, with the standard error of the difference if both have one.

    >>> difference_cell(Cell(88.4, 0.3), Cell(88.1, 0.4)).printed
    '+0.3 ± 0.5'
    >>> difference_cell(Cell(88.4, mark="*"), Cell(88.1)).printed         # a mean over some of the targets
    '–'
    """
    if ours.value is None or paper.value is None or ours.mark.startswith(INCOMPLETE):
        return Cell()
    error = None if ours.error is None or paper.error is None else math.hypot(ours.error, paper.error)
    return Cell(ours.value - paper.value, error, signed=True)


def _has_content(cell: Cell) -> bool:
    return cell.value is not None or cell.text is not None


# ------------------------------------------------------------ captions


def protocol_notes(config: PaperConfig, methods: Sequence[PaperMethod]) -> list[str]:
    """Say how the hyperparameters of every row were found, and which rows are the same runs."""
    names = {
        "domainbed": "DomainBed’s random search",
        "paper": "the paper’s grid search, chosen on trial 0",
        "defaults": "the defaults",
    }
    by_search: dict[str, list[str]] = {}
    same: dict[tuple[object, str], list[str]] = {}
    for method in methods:
        training = method.training.searched(config)
        by_search.setdefault(training.search, []).append(method.name)
        same.setdefault((training, method.weights), []).append(method.name)
    several = len(by_search) > 1
    parts = [names[search] + f" ({', '.join(rows)})" * several for search, rows in by_search.items()]
    notes = [f"Our hyperparameters: {'; '.join(parts)}."]
    notes += [f"{' and '.join(rows)} are the same runs." for rows in same.values() if len(rows) > 1]
    if quoted := [method.name for method in methods if method.name in QUOTED]:
        notes.append(
            f"{', '.join(quoted)}: quoted by the paper from the methods’ own papers, with other settings. Ours are "
            "trained under its protocol, so they do not reproduce those numbers."
        )
    return notes


def trials_note(config: PaperConfig) -> str:
    """Say what the numbers are."""
    return (
        f"Accuracy in % on the in split of the held-out domain, mean over targets; {over_trials(config)}; selected by "
        "iid."
    )


def over_trials(config: PaperConfig) -> str:
    """Say how many trials the numbers are of."""
    n = len(config.trials)
    return f"mean ± standard error over {n} trials" if n > 1 else "one trial"
