"""Appendix D.1: are the flattest methods the most accurate? Figure 3's flatness against Table 8's accuracy.

The paper says that the order of the solvers is the same by local flatness as by mean accuracy: SWAD, the SWAs, SAM,
ERM. Kendall's rank correlation with its interval and permutation test says how much five methods can show.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from swad.testbed.measurements.flatness import Flatness
from swad.testbed.paper import figure3
from swad.testbed.paper.reproduction import PaperRuns, Reproduction, availability_notes
from swad.testbed.results import published
from swad.testbed.results.figures.ranking import ranking_figure
from swad.testbed.results.labels import weights_label
from swad.testbed.results.measured import measured
from swad.testbed.results.published import Number
from swad.testbed.results.rank_correlation import Ranking, ranking
from swad.testbed.results.records import LIVE
from swad.testbed.results.report import Report
from swad.testbed.results.run_data import RunData
from swad.testbed.results.runs import load_run
from swad.testbed.results.tables import PAPER, Cell, Row, Table
from swad.util.statistics import mean

if TYPE_CHECKING:
    import pandas as pd

Unit = tuple[str, int]
"""Target and trial."""

DATASETS = figure3.DATASETS

PRINTED_ORDER = ("SWAD", "SWA w/ const", "SWA w/ cyclic", "SAM", "ERM (baseline)")
"""Appendix D.1 and Table 8: from the flattest and most accurate to the sharpest and least accurate."""


def ranking_table(title: str, ranking: Ranking) -> Table:
    """Build the table of one ranking: methods from flattest to sharpest, with their rank by accuracy."""
    rows = tuple(
        Row(
            row.Index,
            (
                Cell(row.flatness, decimals=4),
                Cell(100 * row.accuracy),
                Cell(text=f"{row.flatness_rank:g}"),
                Cell(text=f"{row.accuracy_rank:g}"),
            ),
        )
        for row in ranking.methods.itertuples()
    )
    notes = (
        f"Kendall’s correlation of both ranks {ranking.tau:+.2f}, 95 % interval {ranking.low:+.2f} to "
        f"{ranking.high:+.2f}, {ranking.interval_over}, p = {ranking.p:.2g}.",
        f"The order by flatness is {'' if ranking.same_order else 'not '}the order by accuracy.",
    )
    columns = ("F", "Accuracy, %", "Rank by flatness", "Rank by accuracy")
    return Table(title, columns, rows, notes)


def printed_table() -> Table:
    """Build the paper's order: it prints the accuracies of Table 8, and gives the order by flatness in words."""
    accuracies = {row.name: row.values[-1] for row in published.table(8).rows}
    ranks = {"SWAD": "1", "SWA w/ const": "2 to 3", "SWA w/ cyclic": "2 to 3", "SAM": "4", "ERM (baseline)": "5"}
    rows = []
    for rank, name in enumerate(PRINTED_ORDER, start=1):
        number = accuracies[name]
        assert isinstance(number, Number)
        cells = (Cell(text="–"), Cell(number.value), Cell(text=ranks[name]), Cell(text=str(rank)))
        rows.append(Row(name, cells, PAPER))
    columns = ("F", "Accuracy, %", "Rank by flatness", "Rank by accuracy")
    notes = ("Accuracy: mean over the five datasets (Table 8). Flatness: on PACS (Figure 3), as appendix D.1 puts it.",)
    return Table("The paper: appendix D.1", columns, tuple(rows), notes)


def _build(paper_runs: PaperRuns) -> Report:
    report = figure3.measure(paper_runs, "ranking", "flatness")
    tables: list[Table | str] = []
    written = list(report.written)
    for dataset in paper_runs.config.measured_datasets(DATASETS):
        runs = [load_run(path) for path in figure3.measured_weights(paper_runs, [dataset])]
        values = measured(runs, Flatness)
        for side in dict.fromkeys(values["side"]):
            of_side = values[values["side"] == side]
            radius = max(of_side["quantity"])
            ranked = rank_methods(of_side[of_side["quantity"] == radius], runs)
            if ranked is None:
                tables.append(f"{dataset}, {side} domains: no ranking, because fewer than three methods differ.")
                continue
            title = f"{dataset}: flatness at radius {radius:g} on {side} domains, and accuracy on the target"
            tables.append(ranking_table(title, ranked))
            figure = ranking_figure(ranked, quantity=f"$F_γ$ at γ = {radius:g}, {side}")
            written += paper_runs.save(figure, "ranking", dataset, side)
    tables += [printed_table(), *availability_notes(paper_runs.config, DATASETS)]
    return Report((*report.tables, *tables), tuple(written), report.row_files)


def rank_methods(values: pd.DataFrame, runs: Sequence[RunData]) -> Ranking | None:
    """Rank methods by flatness and by accuracy on the target, over the targets and trials that all have.

    The last step is left out beside the best one of the same method, and methods with the same numbers count once.

    Args:
        values: F of one dataset and side at one radius, as rows of `measured`.
        runs: The runs.

    Returns:
        None with fewer than three methods that differ.
    """
    accuracy: dict[str, dict[Unit, float]] = {}
    for run in runs:
        for weights, value in _target_accuracy(run).items():
            accuracy.setdefault(weights_label(run, weights), {})[run.target, run.trial] = value
    flatness: dict[str, dict[Unit, float]] = {}
    for row in values.itertuples():
        if (row.target, row.trial) in accuracy.get(row.method, {}):
            flatness.setdefault(row.method, {})[row.target, row.trial] = row.value
    candidates = {
        name: by_unit
        for name, by_unit in flatness.items()
        if all(map(math.isfinite, by_unit.values()))
        and ("(last" not in name or name.replace("(last", "(best") not in flatness)
    }
    units = sorted(set.intersection(*(set(by_unit) for by_unit in candidates.values()))) if candidates else []
    distinct: dict[str, tuple[list[float], list[float]]] = {}
    for name in candidates:
        numbers = [flatness[name][unit] for unit in units], [accuracy[name][unit] for unit in units]
        if not any(_equal_numbers(numbers, other) for other in distinct.values()):
            distinct[name] = numbers
    if not units or len(distinct) < 3:
        return None
    order = ranking(*({name: both[index] for name, both in distinct.items()} for index in (0, 1)))
    return order if math.isfinite(order.tau) else None


def _equal_numbers(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> bool:
    pairs = zip((v for values in first for v in values), (v for values in second for v in values), strict=True)
    return all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-12) for a, b in pairs)


def _target_accuracy(run: RunData) -> dict[str, float]:
    """Return the accuracy on the in split of the held-out domain by weights; the mean if several are held out."""
    rows = run.frame
    rows = rows[(rows.metric == "accuracy") & rows.domain.isin(run.targets) & (rows.split == "in")]
    return {str(name): mean(values) for name, values in rows.groupby("weights", observed=True).value if name != LIVE}


ITEMS = (
    Reproduction(
        "ranking",
        "Appendix D.1: ranking by flatness and by accuracy",
        figure3.trainings,
        _build,
        DATASETS,
        measures="the loss around the weights of every method, as Figure 3",
    ),
)
