"""Tables 9 to 13: the full results of Table 2, target by target, one table for each dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from swad.data import benchmarks
from swad.experiments.flatness_report import Report
from swad.experiments.reproduce.accuracy import (
    ComparedRow,
    MethodAccuracy,
    compared_table,
    method_accuracy,
    printed_cell,
    protocol_notes,
    trials_note,
)
from swad.experiments.reproduce.base import Reproduction, Results, availability_notes
from swad.experiments.reproduce.config import PAPER_DATASETS, PaperConfig
from swad.experiments.reproduce.methods import method_of, methods_of, row_name
from swad.results import published
from swad.results.tables import Cell, Table
from swad.util.progress import Progress


@dataclass(frozen=True)
class _Build:
    """Builds the table of one dataset, and one of the same methods for each stand-in."""

    number: int
    dataset: str

    def __call__(self, config: PaperConfig, results: Results, folder: Path, progress: Progress | None) -> Report:
        others = [name for name in config.measured_datasets((self.dataset,)) if name not in PAPER_DATASETS]
        tables = [self._stand_in_table(config, results, name) for name in others]
        return Report((*tables, self._paper_table(config, results)), ())

    def _paper_table(self, config: PaperConfig, results: Results) -> Table:
        entry = published.table(self.number)
        at_hand = self.dataset in config.datasets
        rows = []
        for row in entry.rows:
            method = method_of(row)
            accuracy = method_accuracy(config, results, self.dataset, method) if at_hand and method else None
            paper = tuple(map(printed_cell, row.values))
            rows.append(_row(row_name(row), accuracy, benchmarks.get(self.dataset).domains, paper))
        notes = ["† from DomainBed’s search, ‡ from the paper’s own."]
        if at_hand:
            notes = [trials_note(config), *protocol_notes(config, methods_of(self.number)), *notes]
        else:
            notes += [f"{self.dataset} is not at hand: the paper’s numbers only."]
        expected = [method.name for method in methods_of(self.number)] if at_hand else []
        return compared_table(f"Table {self.number}: {entry.title}", entry.columns, rows, notes, expected)

    def _stand_in_table(self, config: PaperConfig, results: Results, dataset: str) -> Table:
        targets = config.targets_of(dataset)
        columns = (*targets, "Avg.")
        rows = [
            _row(
                method.name, method_accuracy(config, results, dataset, method), targets, tuple(Cell() for _ in columns)
            )
            for method in methods_of(self.number)
        ]
        notes = [trials_note(config), *protocol_notes(config, methods_of(self.number))]
        notes += availability_notes(config, ())
        title = f"The methods of Table {self.number} on {dataset}: out-of-domain accuracies"
        return compared_table(title, columns, rows, notes, [method.name for method in methods_of(self.number)])


def _row(name: str, accuracy: MethodAccuracy | None, targets: Sequence[str], paper: tuple[Cell, ...]) -> ComparedRow:
    if accuracy is None:
        return ComparedRow(name, None, paper)
    by_target = [
        {unit: value for unit, value in accuracy.out_of_domain.items() if unit[0] == target} for target in targets
    ]
    cells = (*(accuracy.target_cell(target) for target in targets), accuracy.cell())
    return ComparedRow(name, cells, paper, (*by_target, accuracy.out_of_domain))


ITEMS = tuple(
    Reproduction(
        f"table{number}",
        published.table(number).title,
        lambda config, number=number: list(  # type: ignore[misc]
            dict.fromkeys(method.training for method in methods_of(number))
        ),
        _Build(number, dataset),
        (dataset,),
    )
    for number, dataset in zip(range(9, 14), PAPER_DATASETS, strict=True)
)
