"""Tables 3 and 5, with the 60/20/20 split: accuracy on unseen domains, and on test images of the seen ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from swad.testbed.averages.registry import Plan
from swad.testbed.data import benchmarks
from swad.testbed.paper.accuracy import (
    Accuracies,
    ComparedRow,
    Side,
    accuracies,
    all_targets,
    compared_table,
    dataset_cells,
    method_results,
    over_trials,
    printed_cell,
    protocol_notes,
    targets_cell,
)
from swad.testbed.paper.fit_on_val import fit_run
from swad.testbed.paper.methods import PaperMethod, algorithm_of, row_name
from swad.testbed.paper.paper_config import PaperConfig
from swad.testbed.paper.reproduction import PaperRuns, Reproduction, availability_notes
from swad.testbed.paper.trainings import ERM_THREE_WAY, SWA_WEIGHTS
from swad.testbed.results import published
from swad.testbed.results.compare import arrow, compare, units_of_methods
from swad.testbed.results.report import Report
from swad.testbed.results.tables import Cell

if TYPE_CHECKING:
    import pandas as pd

CYCLIC = replace(ERM_THREE_WAY, lr_schedule="cyclic")


def _captions(config: PaperConfig, methods: Sequence[PaperMethod], datasets: Sequence[str]) -> list[str]:
    return [
        "Accuracy in % with 60 % training, 20 % validation and 20 % test images of every domain. Out-of-domain: on the "
        "60 % of the held-out domain; in-domain: on the sources’ test images. Means over targets; "
        f"{over_trials(config)}; selected by iid.",
        *protocol_notes(config, methods),
        *availability_notes(config, datasets),
    ]


# ------------------------------------------------------------ Table 3


def table3_methods() -> list[PaperMethod]:
    """Return the rows of Table 3. Its SWA has the cyclic learning rate, as Table 5 says."""
    special = {
        "EMA": PaperMethod("EMA", ERM_THREE_WAY, "ema"),
        "SWA": PaperMethod("SWA", CYCLIC, "swa"),
        "SWAD": PaperMethod("SWAD", ERM_THREE_WAY, "swad"),
    }
    return [
        special.get(row.name) or PaperMethod(row.name, replace(ERM_THREE_WAY, algorithm=algorithm_of(row.name)))
        for row in published.table(3).rows
    ]


def _table3(paper_runs: PaperRuns) -> Report:
    config = paper_runs.config
    entry, methods = published.table(3), table3_methods()
    datasets = config.measured_datasets(("PACS",))
    others = [name for name in datasets if name != "PACS"]
    columns: list[tuple[str, Side]] = [(name, side) for name in (*others, "PACS") for side in ("value", "source")]
    measured = {
        (name, method.name): results
        for name in datasets
        for method in methods
        if (results := method_results(paper_runs, name, method)) is not None
    }
    by_column = [
        {method: accuracies(results, side) for (dataset, method), results in measured.items() if dataset == name}
        for name, side in columns
    ]
    # The comparisons of a column are one family.
    column_arrows = [
        {test.method: arrow(test) for test in compare(units_of_methods(column), "ERM").itertuples()}
        for column in by_column
    ]
    rows = []
    for method, row in zip(methods, entry.rows, strict=True):
        ours = []
        for index, (name, _) in enumerate(columns):
            behind = by_column[index].get(method.name)
            cell = Cell() if behind is None else targets_cell(behind, all_targets(config, name))
            ours.append(replace(cell, mark=f"{cell.mark} {column_arrows[index].get(method.name, '')}".rstrip()))
        paper = (*(Cell() for _ in columns[2:]), *map(printed_cell, row.values))
        of_method = [column.get(method.name) for column in by_column]
        has_value = any(cell.value is not None for cell in ours)
        rows.append(ComparedRow(row.name, tuple(ours) if has_value else None, paper, tuple(of_method)))
    names = [f"{'In' if side == 'source' else 'Out-of'}-domain: {name}" for name, side in columns]
    notes = [
        *_captions(config, methods, ("PACS",)),
        "↑ ↓: clearly above or below ERM; –: no clear difference. Ours: paired tests over targets and trials, "
        "corrected for the number of methods (Holm); none with one trial. The paper does not name its test.",
    ]
    expected = [method.name for method in methods] if datasets else []
    return Report((compared_table(f"Table 3: {entry.title}", names, rows, notes, expected),))


# ------------------------------------------------------------ Table 5


FIT_ON_VAL = "SWAD fit-on-val"

TABLE5 = {
    "SWA w/ cyclic": PaperMethod("SWA w/ cyclic", CYCLIC, "swa"),
    "SWA w/ const": PaperMethod("SWA w/ const", ERM_THREE_WAY, "swa"),
    "SWAD w/o Dense": PaperMethod("SWAD w/o Dense", ERM_THREE_WAY, "without_dense"),
    "SWAD w/o Opt-Overfit": PaperMethod("SWAD w/o Opt-Overfit", ERM_THREE_WAY, "without_opt_overfit"),
    "SWAD w/o Overfit": PaperMethod("SWAD w/o Overfit", ERM_THREE_WAY, "without_overfit"),
    FIT_ON_VAL: PaperMethod(FIT_ON_VAL, ERM_THREE_WAY, "swad"),  # its window is chosen after training
    "SWAD": PaperMethod("SWAD", ERM_THREE_WAY, "swad"),
}


def _table5(paper_runs: PaperRuns) -> Report:
    config = paper_runs.config
    entry, table_datasets = published.table(5), ("PACS", "VLCS")
    datasets = config.measured_datasets(table_datasets)
    others = [name for name in datasets if name not in table_datasets]
    sides = {"Out": "Out-of-domain", "In": "In-domain"}
    settings = ("t_s", "t_e", "lr", "interval")
    columns = [*settings, *(f"{side}: {name}" for side in sides for name in (*others, *table_datasets, "Avg."))]
    shown = (*datasets, "PACS")[0]
    rows = []
    for row in entry.rows:
        method = TABLE5[row_name(row)]
        measured = {name: found for name in datasets if (found := _results(paper_runs, name, method)) is not None}
        values = dict(zip(entry.columns, row.values, strict=True))
        ours = _settings_cells(config, shown, method.name)
        behind: list[Accuracies | None] = [None for _ in settings]
        paper = [printed_cell(values[f"Configuration / {name}"]) for name in settings]
        for side, printed_side in sides.items():
            column: Side = "source" if side == "In" else "value"
            side_cells, side_accuracies = dataset_cells(config, measured, others, table_datasets, column)
            ours += side_cells
            behind += side_accuracies
            paper += [Cell() for _ in others]
            paper += [printed_cell(values[f"{printed_side} / {name}"]) for name in (*table_datasets, "Avg.")]
        rows.append(ComparedRow(method.name, tuple(ours) if measured else None, tuple(paper), tuple(behind)))
    methods = list(TABLE5.values())
    notes = [
        *_captions(config, [method for method in methods if method.name != FIT_ON_VAL], table_datasets),
        f"Our t_s, t_e and interval are those on {shown}. Opt and Overfit: found by SWAD; Val: the window whose "
        "average is most accurate on source validation.",
    ]
    expected = [method.name for method in methods] if datasets else []
    return Report((compared_table(f"Table 5: {entry.title}", columns, rows, notes, expected),))


def _settings_cells(config: PaperConfig, dataset: str, name: str) -> list[Cell]:
    """Return t_s, t_e, the learning rate and the interval of a row, from the averages' own defaults."""
    steps, every = config.steps_of(dataset), config.evaluate_every_of(dataset)
    sparse = max(1, steps // SWA_WEIGHTS)
    cyclic = "cyclic" in name
    plan = Plan(steps, every, benchmarks.get(dataset).defaults.tolerance_ratio, cycle=sparse if cyclic else None)
    window = (str(plan.late), str(steps))
    start, end, interval = {
        "SWA w/ cyclic": (*window, sparse),
        "SWA w/ const": (*window, sparse),
        "SWAD w/o Dense": ("Opt", "Overfit", sparse),
        "SWAD w/o Opt-Overfit": (*window, 1),
        "SWAD w/o Overfit": ("Opt", str(steps), 1),
        FIT_ON_VAL: ("Val", "Val", 1),
        "SWAD": ("Opt", "Overfit", 1),
    }[name]
    return [Cell(text=text) for text in (start, end, "Cyclic" if cyclic else "Const", str(interval))]


def _results(paper_runs: PaperRuns, dataset: str, method: PaperMethod) -> pd.DataFrame | None:
    results = method_results(paper_runs, dataset, method)
    if results is None or method.name != FIT_ON_VAL:
        return results
    runs = paper_runs.runs(dataset, method.training)
    fitted = [
        fit_run(runs[number].path, data=paper_runs.config.data, **paper_runs.measure_options) for number in results.run
    ]
    return results.assign(
        value=[window.out_of_domain for window in fitted], source=[window.in_domain for window in fitted]
    )


ITEMS = (
    Reproduction(
        "table3",
        published.table(3).title,
        lambda config: [method.training for method in table3_methods()],
        _table3,
        ("PACS",),
    ),
    Reproduction(
        "table5",
        published.table(5).title,
        lambda config: [method.training for method in TABLE5.values()],
        _table5,
        ("PACS", "VLCS"),
        measures="fit-on-val: every window of the kept segments on source validation",
    ),
)
