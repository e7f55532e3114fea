"""Tables 9 to 13: the full results of Table 2, target by target, one table for each dataset."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from swad.testbed.data import benchmarks
from swad.testbed.paper.accuracy import (
    ComparedRow,
    accuracies,
    all_targets,
    compared_table,
    method_results,
    printed_cell,
    protocol_notes,
    targets_cell,
    trials_note,
)
from swad.testbed.paper.methods import method_of, methods_of, row_name, trainings_of
from swad.testbed.paper.paper_config import PAPER_DATASETS
from swad.testbed.paper.reproduction import PaperRuns, Reproduction, availability_notes
from swad.testbed.results import published
from swad.testbed.results.report import Report
from swad.testbed.results.tables import Cell, Table, percent_cell

if TYPE_CHECKING:
    import pandas as pd


def _build(number: int, dataset: str, paper_runs: PaperRuns) -> Report:
    """Build the table of one dataset, and one of the same methods for each stand-in."""
    others = [name for name in paper_runs.config.measured_datasets((dataset,)) if name not in PAPER_DATASETS]
    tables = [_stand_in_table(paper_runs, number, name) for name in others]
    return Report((*tables, _paper_table(paper_runs, number, dataset)))


def _paper_table(paper_runs: PaperRuns, number: int, dataset: str) -> Table:
    config, entry = paper_runs.config, published.table(number)
    at_hand = dataset in config.datasets
    rows = []
    for row in entry.rows:
        method = method_of(row)
        results = method_results(paper_runs, dataset, method) if at_hand and method else None
        paper, domains = tuple(map(printed_cell, row.values)), benchmarks.get(dataset).domains
        rows.append(_row(row_name(row), results, domains, all_targets(config, dataset), paper))
    notes = ["† from DomainBed’s search, ‡ from the paper’s own."]
    if at_hand:
        notes = [trials_note(config), *protocol_notes(config, methods_of(number)), *notes]
    else:
        notes += [f"{dataset} was not found: the paper’s numbers only."]
    expected = [method.name for method in methods_of(number)] if at_hand else []
    return compared_table(f"Table {number}: {entry.title}", entry.columns, rows, notes, expected)


def _stand_in_table(paper_runs: PaperRuns, number: int, dataset: str) -> Table:
    config = paper_runs.config
    targets, methods = config.targets_of(dataset), methods_of(number)
    columns = (*targets, "Avg.")
    blank = tuple(Cell() for _ in columns)
    every = all_targets(config, dataset)
    rows = [_row(method.name, method_results(paper_runs, dataset, method), targets, every, blank) for method in methods]
    notes = [trials_note(config), *protocol_notes(config, methods), *availability_notes(config, ())]
    title = f"The methods of Table {number} on {dataset}: out-of-domain accuracies"
    return compared_table(title, columns, rows, notes, [method.name for method in methods])


def _row(
    name: str, results: pd.DataFrame | None, targets: Sequence[str], every: Sequence[str], paper: tuple[Cell, ...]
) -> ComparedRow:
    if results is None:
        return ComparedRow(name, None, paper)
    found = accuracies(results)
    by_target = [found[found.index.isin([target], level="target")] for target in targets]
    cells = (*map(percent_cell, by_target), targets_cell(found, every))
    return ComparedRow(name, cells, paper, (*by_target, found))


ITEMS = tuple(
    Reproduction(
        f"table{number}",
        published.table(number).title,
        trainings_of(number),
        partial(_build, number, dataset),
        (dataset,),
    )
    for number, dataset in zip(range(9, 14), PAPER_DATASETS, strict=True)
)
