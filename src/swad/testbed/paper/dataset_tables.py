"""Tables 1, 2, 4 and 8: methods x datasets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from swad.testbed.paper.accuracy import (
    DIFFERENCE,
    ComparedRow,
    average_cell,
    compared_table,
    dataset_cells,
    method_results,
    printed_cell,
    protocol_notes,
    trials_note,
)
from swad.testbed.paper.methods import COMPETITOR, PaperMethod, method_of, methods_of, row_name, trainings_of
from swad.testbed.paper.paper_config import PAPER_DATASETS
from swad.testbed.paper.reproduction import PaperRuns, Reproduction, availability_notes
from swad.testbed.paper.with_swad import swad_tables
from swad.testbed.results import published
from swad.testbed.results.report import Report
from swad.testbed.results.tables import PAPER, Cell, Table
from swad.util.statistics import mean

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = dict(zip(PAPER_DATASETS, ("PACS", "VLCS", "OfficeHome", "TerraInc", "DomainNet"), strict=True))
"""The tables' columns by dataset."""


def _table(paper_runs: PaperRuns, number: int) -> Table:
    """Build the table of one number: stand-ins, the five datasets, and the average of the five."""
    config = paper_runs.config
    entry = published.table(number)
    others = [name for name in config.measured_datasets(PAPER_DATASETS) if name not in PAPER_DATASETS]
    rows = []
    for row in entry.rows:
        values = dict(zip(entry.columns, row.values, strict=True))
        paper = (*(Cell() for _ in others), *(printed_cell(values[column]) for column in (*COLUMNS.values(), "Avg.")))
        method = method_of(row)
        measured = {} if method is None else _results(paper_runs, method)
        cells, accuracies = dataset_cells(config, measured, others, PAPER_DATASETS)
        rows.append(ComparedRow(row_name(row), tuple(cells) if measured else None, paper, tuple(accuracies)))
    if number == 1:
        rows = [_with_competitor(paper_runs, others, row) if row.name == COMPETITOR else row for row in rows]
    columns = [*others, *COLUMNS.values(), "Avg."]
    notes = [
        trials_note(config),
        *protocol_notes(config, methods_of(number)),
        *availability_notes(config, PAPER_DATASETS),
    ]
    if any("†" in row.name for row in rows):
        notes.append("† The paper quotes this row from DomainBed, where DomainNet is trained for 5,000 steps.")
    if number == 1:
        notes.append(
            f"{COMPETITOR}: the most accurate method of Table 2 besides ERM and SWAD, for each dataset. As the largest "
            "of many numbers it is biased upwards."
        )
    expected = [method.name for method in methods_of(number)] if config.measured_datasets(PAPER_DATASETS) else []
    return compared_table(f"Table {number}: {entry.title}", columns, rows, notes, expected)


def _results(paper_runs: PaperRuns, method: PaperMethod) -> dict[str, pd.DataFrame]:
    """Return the results of a method by dataset."""
    return {
        dataset: results
        for dataset in paper_runs.config.measured_datasets(PAPER_DATASETS)
        if (results := method_results(paper_runs, dataset, method)) is not None
    }


def _with_competitor(paper_runs: PaperRuns, others: Sequence[str], row: ComparedRow) -> ComparedRow:
    """Fill in the best of our numbers of Table 2, column by column."""
    competitors = [
        dataset_cells(paper_runs.config, measured, others, PAPER_DATASETS)[0]
        for method in methods_of(2)
        if not method.name.startswith(("ERM", "SWAD")) and (measured := _results(paper_runs, method))
    ]
    if not competitors:
        return row
    best = [
        max(column, key=lambda cell: -1.0 if cell.value is None else cell.value)
        for column in zip(*competitors, strict=True)
    ]
    # The error of a maximum is not the error of the one that happens to be the largest.
    best = [replace(cell, error=None) for cell in best[:-1]]
    return replace(row, ours=(*best, average_cell(best[len(others) :])))


# ------------------------------------------------------------ Table 4: what SWAD adds


BASES = {
    "ERM + SWA w/ const": "ERM",
    "ERM + SWAD": "ERM",
    "CORAL + SWAD": "CORAL",
    "SAM + SWAD": "SAM",
}
"""The row of Table 4 that each combination is compared with."""


def _with_gains(table: Table) -> Table:
    """Add the column Δ: the gain over the method without averaging."""
    by_name = {(row.group, row.name): row for row in table.rows}
    rows = []
    for row in table.rows:
        base = by_name.get((row.group, BASES.get(row.name, "")))
        # The paper's is the difference of its averages; ours is over the available datasets.
        columns = slice(-1, None) if row.group == PAPER else slice(0, -1)
        gain = Cell()
        if base is not None and row.group != DIFFERENCE:
            pairs = zip(row.cells[columns], base.cells[columns], strict=True)
            gains = [a.value - b.value for a, b in pairs if a.value is not None and b.value is not None]
            gain = Cell(mean(gains), signed=True) if gains else gain
        rows.append(replace(row, cells=(*row.cells, gain)))
    note = "Δ: gain over the method without averaging, mean over the datasets that have both."
    return replace(table, columns=(*table.columns, "Δ"), rows=tuple(rows), notes=(*table.notes, note))


# ------------------------------------------------------------ the items


def _build(number: int, paper_runs: PaperRuns) -> Report:
    config = paper_runs.config
    table = _table(paper_runs, number)
    if number == 4:
        table = _with_gains(table)
    tables = [table]
    if number == 2:
        datasets = config.measured_datasets(PAPER_DATASETS)
        tables += swad_tables(paper_runs, "Table 2", methods_of(2), datasets)
    return Report(tuple(tables))


TRAININGS = {1: trainings_of(1, 2), **{number: trainings_of(number) for number in (2, 4, 8)}}
"""Table 1 takes its best competitor from Table 2."""

ITEMS = tuple(
    Reproduction(f"table{number}", published.table(number).title, trainings, partial(_build, number))
    for number, trainings in TRAININGS.items()
)
