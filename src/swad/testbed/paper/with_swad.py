"""Every method of a table with SWAD on top, beside the method alone.

SWAD averages the trajectory of the very run that was selected for the method, so no further run is trained, and the
two accuracies differ by nothing but the average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from swad.testbed.paper.accuracy import Accuracies, accuracies, all_targets, method_results, results_of, targets_cell
from swad.testbed.paper.methods import PaperMethod
from swad.testbed.paper.paper_config import PaperConfig
from swad.testbed.paper.reproduction import PaperRuns
from swad.testbed.results.compare import compare, units_of_methods
from swad.testbed.results.comparisons import on_dataset
from swad.testbed.results.tables import Table
from swad.testbed.results.unit_tables import comparisons_tables

if TYPE_CHECKING:
    import pandas as pd

ALONE = "the method alone"
NOTE = (
    "Alone: live weights at the selected step. SWAD averages the trajectories of the same runs. Methods with the "
    "same runs share a row."
)


def swad_tables(
    paper_runs: PaperRuns, title: str, methods: Sequence[PaperMethod], datasets: Sequence[str]
) -> list[Table]:
    """Build one table for each dataset: accuracy alone and with SWAD, and the paired gain with interval and test."""
    from pandas import concat

    pairs = {dataset: _pairs(paper_runs, methods, dataset) for dataset in datasets}
    gains = {dataset: _gains(paper_runs.config, dataset, pairs[dataset]) for dataset in datasets}
    measured = [dataset for dataset in datasets if len(gains[dataset])]
    if not measured:
        return []
    tables = comparisons_tables(concat([gains[dataset] for dataset in measured], ignore_index=True), [NOTE])
    shown = []
    for dataset, table in zip(measured, tables, strict=True):
        every = all_targets(paper_runs.config, dataset)
        rows = (
            replace(row, cells=(*(targets_cell(each, every) for each in pairs[dataset][row.name]), *row.cells))
            for row in table.rows
        )
        heading = f"{title} with SWAD on top: {dataset}"
        shown.append(replace(table, title=heading, columns=("Alone", "+ SWAD", *table.columns), rows=tuple(rows)))
    return shown


def _pairs(
    paper_runs: PaperRuns, methods: Sequence[PaperMethod], dataset: str
) -> dict[str, tuple[Accuracies, Accuracies]]:
    """Return the accuracies alone and with SWAD by the name of the method, each training once."""
    pairs: dict[object, tuple[str, tuple[Accuracies, Accuracies]]] = {}
    for method in methods:
        key = method.training.searched(paper_runs.config)
        if method.weights == "best" and key not in pairs:
            alone = method_results(paper_runs, dataset, method)
            runs = paper_runs.runs(dataset, method.training)
            averaged = None if alone is None else results_of([runs[number] for number in alone.run], "swad")
            if alone is not None and averaged is not None:
                pairs[key] = method.name, (accuracies(alone), accuracies(averaged))
    return dict(pairs.values())


def _gains(config: PaperConfig, dataset: str, pairs: dict[str, tuple[Accuracies, Accuracies]]) -> pd.DataFrame:
    """Compare each method with SWAD to the method alone, on the trials that have all requested targets."""
    targets = config.targets_of(dataset)
    family = {
        name: units_of_methods({ALONE: alone, name: averaged}, targets).loc[list(targets)]
        for name, (alone, averaged) in pairs.items()
    }
    return on_dataset(compare(family, ALONE), dataset, sorted({*all_targets(config, dataset)} - {*targets}))
