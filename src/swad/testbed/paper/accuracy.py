"""The accuracy of a method on a dataset, and tables with our numbers, the paper's and the difference.

A table has three blocks in the paper's form: ours, the paper's, and ours minus the paper's. Columns of datasets that
are not the paper's come first and have no difference.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from swad.testbed.paper.methods import QUOTED, PaperMethod
from swad.testbed.paper.paper_config import PaperConfig
from swad.testbed.paper.reproduction import PaperRuns
from swad.testbed.results.column_marks import legend, mark_column
from swad.testbed.results.compare import units_of_methods
from swad.testbed.results.published import Number, Printed
from swad.testbed.results.run_data import RunData
from swad.testbed.results.selection import SelectionError, select
from swad.testbed.results.tables import PAPER, Cell, Row, Table, percent_cell
from swad.util.statistics import mean

DIFFERENCE = "ours − paper"
"""Group of the rows with differences."""

INCOMPLETE = "*"
"""Mark of a mean over some of the targets."""

ARROWS = {"up": " ↑", "down": " ↓", "none": " –"}
"""Marks of Table 3: above ERM, below it, or neither."""

Unit = tuple[str, int]
"""Target and trial."""

Accuracies = Mapping[Unit, float]
"""The accuracies of one method by target and trial."""


@dataclass(frozen=True)
class MethodAccuracy:
    """The accuracies of a method on one dataset by target and trial: on the target, and on its sources."""

    out_of_domain: dict[Unit, float]
    in_domain: dict[Unit, float]
    selected: list[RunData] = field(repr=False)
    """The runs behind them."""
    targets: tuple[str, ...]
    """All domains of the dataset, each of which should be a target."""

    def values(self, in_domain: bool = False) -> dict[Unit, float]:
        """Return the accuracies of one side."""
        return self.in_domain if in_domain else self.out_of_domain

    def on(self, targets: Collection[str]) -> dict[Unit, float]:
        """Return the accuracies on some targets."""
        return {unit: value for unit, value in self.out_of_domain.items() if unit[0] in targets}

    def cell(self, in_domain: bool = False) -> Cell:
        """Return the mean over targets in percent, with the standard error over trials."""
        return targets_cell(self.values(in_domain), self.targets)


def targets_cell(accuracies: dict[Unit, float], targets: Sequence[str]) -> Cell:
    """Average over targets within each trial, then over the trials that have all targets.

    >>> targets_cell({("a", 0): 0.5, ("b", 0): 0.7, ("a", 1): 0.7, ("b", 1): 0.7}, ("a", "b")).printed
    '65.0 ± 3.5'
    >>> targets_cell({("a", 0): 0.5}, ("a", "b")).printed                                # b is no target yet
    '50.0*'
    """
    present = [target for target in targets if any(name == target for name, _ in accuracies)]
    trials = sorted({trial for _, trial in accuracies})
    complete = [trial for trial in trials if all((target, trial) in accuracies for target in present)]
    if not present or not complete:
        return Cell()
    cell = percent_cell(mean(accuracies[target, trial] for target in present) for trial in complete)
    return cell if len(present) == len(targets) else replace(cell, mark=INCOMPLETE)


def average_cell(cells: Sequence[Cell]) -> Cell:
    """Return the mean over the datasets of a table; nothing if one is missing, since their levels differ."""
    values = [cell.value for cell in cells if cell.value is not None and not cell.mark]
    return Cell(mean(values)) if len(values) == len(cells) else Cell()


def dataset_cells(
    measured: Mapping[str, MethodAccuracy], others: Sequence[str], datasets: Sequence[str], in_domain: bool = False
) -> tuple[list[Cell], list[Accuracies]]:
    """Return a method's cells and the accuracies behind them: stand-ins, the table's datasets, and their mean."""
    columns = [measured.get(name) for name in (*others, *datasets)]
    cells = [Cell() if each is None else each.cell(in_domain) for each in columns]
    accuracies: list[Accuracies] = [{} if each is None else each.values(in_domain) for each in columns]
    return [*cells, average_cell(cells[len(others) :])], [*accuracies, {}]


def method_accuracy(paper_runs: PaperRuns, dataset: str, method: PaperMethod) -> MethodAccuracy | None:
    """Select the runs of a method on a dataset, and read its accuracies; None if there are none."""
    every_target = replace(paper_runs.config, targets=()).targets_of(dataset)
    return _accuracy(paper_runs.runs(dataset, method.training), method.weights, every_target)


def on_weights(accuracy: MethodAccuracy, weights: str) -> MethodAccuracy | None:
    """Return the accuracies of other weights of the runs that were selected; None if there are none."""
    return _accuracy(accuracy.selected, weights, accuracy.targets)


def _accuracy(runs: Sequence[RunData], weights: str, every_target: tuple[str, ...]) -> MethodAccuracy | None:
    try:
        rows = list(select(runs, "iid", weights).itertuples()) if runs else []
    except SelectionError:
        rows = []
    if not rows:
        return None
    on_target = {(row.target, row.trial): row.value for row in rows}
    on_sources = {(row.target, row.trial): row.source for row in rows if not math.isnan(row.source)}
    return MethodAccuracy(on_target, on_sources, [runs[row.run] for row in rows], every_target)


# ------------------------------------------------------------ tables in three blocks


@dataclass(frozen=True)
class ComparedRow:
    """A row of the paper with ours beside it.

    Args:
        name: Name of the row.
        ours: Our cells; None for a method that is not trained yet.
        paper: The paper's cells.
        accuracies: Our accuracies behind each cell, for the tests of their differences; empty for cells without.
    """

    name: str
    ours: tuple[Cell, ...] | None
    paper: tuple[Cell, ...]
    accuracies: tuple[Accuracies, ...] = ()


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
            row.name: row.accuracies[column]
            for row in rows
            if column < len(row.accuracies)
            and row.accuracies[column]
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
