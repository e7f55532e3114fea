"""Table 7: the search spaces, read from the code that searches, with the paper's beside."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Any

from swad.testbed.algorithms.hyperparameters import Choice, Constant, Hyperparameters, Power, search_range
from swad.testbed.data import benchmarks
from swad.testbed.paper.paper_config import PAPER_DATASETS
from swad.testbed.paper.reproduction import PaperRuns, Reproduction
from swad.testbed.results import published
from swad.testbed.results.report import Report
from swad.testbed.results.tables import PAPER, Cell, Row, Table
from swad.testbed.sweep.search import PAPER_GRID, grid_points

HYPERPARAMETERS = {
    "batch size": "batch_size",
    "learning rate": "lr",
    "ResNet dropout": "dropout",
    "weight decay": "weight_decay",
}
"""Our hyperparameters by the paper's name, in the order of Table 7."""

COMPARISON = "same as the paper"
"""Group of the rows that say whether a setting is the paper's."""


def search_space_table() -> Table:
    """Build Table 7 from the hyperparameters and the grid that searches use."""
    entry = published.table(7)
    declared = {field.name: field for field in dataclasses.fields(Hyperparameters)}
    ours, paper, same = [], [], []
    for row in entry.rows:
        name = HYPERPARAMETERS[row.name]
        field = declared[name]
        texts = (
            notation(field.default),
            notation(search_range(field, "PACS")),
            notation(PAPER_GRID.get(name, field.default)),
        )
        printed = tuple(str(value) for value in row.values)
        ours.append(Row(row.name, tuple(Cell(text=text) for text in texts)))
        paper.append(Row(row.name, tuple(Cell(text=text) for text in printed), PAPER))
        same.append(Row(row.name, tuple(map(_comparison, texts, printed)), COMPARISON))
    n_points = len(grid_points(PAPER_GRID))
    n_targets = sum(len(benchmarks.get(name).domains) for name in PAPER_DATASETS)
    exceptions = [
        f"{name}: {label} {notation(search_range(declared[HYPERPARAMETERS[label]], name))} in DomainBed’s search"
        for name in PAPER_DATASETS
        for label in HYPERPARAMETERS
        if search_range(declared[HYPERPARAMETERS[label]], name)
        != search_range(declared[HYPERPARAMETERS[label]], "PACS")
    ]
    notes = [
        "Ours are read from the code that searches. U: uniform distribution; [...]: one of these values.",
        f"The grid has {n_points} points x {n_targets} targets = {n_points * n_targets} runs for one algorithm; the "
        "paper says 396.",
        *(f"{exception}." for exception in exceptions),
    ]
    return Table(f"Table 7: {entry.title}", entry.columns, (*ours, *paper, *same), tuple(notes), "Hyperparameter")


def notation(value: Any) -> str:
    """Write a value or a search range as Table 7 does.

    >>> notation(5e-5), notation(1e-4), notation(Power(10, -5, -3.5)), notation(Choice((0, 0.1, 0.5)))
    ('5e-5', '1e-4', '10^U(-5,-3.5)', '[0, 0.1, 0.5]')
    """
    if isinstance(value, Power):
        return f"{value.base:g}^U({value.low:g},{value.high:g})"
    if isinstance(value, Constant):
        return notation(value.value)
    if isinstance(value, Choice | tuple):
        values: Iterable[float] = value.values if isinstance(value, Choice) else value
        return f"[{', '.join(map(notation, values))}]"
    if isinstance(value, int | float):
        text = f"{value:e}" if 0 < abs(value) < 1e-3 else f"{value:g}"
        return re.sub(r"\.?0*e([+-])0*", r"e\1", text)
    return str(value)


def _comparison(ours: str, printed: str) -> Cell:
    """Compare two settings by their numbers: 0 is 0.0, and blanks do not matter."""
    return Cell(text="yes" if _numbers(ours) == _numbers(printed) else f"no: {ours}, not {printed}")


def _numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", text)]


def _build(paper_runs: PaperRuns) -> Report:
    return Report((search_space_table(),))


ITEMS = (Reproduction("table7", published.table(7).title, lambda config: (), _build),)
