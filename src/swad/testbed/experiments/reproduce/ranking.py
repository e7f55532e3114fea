"""Appendix D.1: are the flattest methods the most accurate? Figure 3's flatness against Table 8's accuracy.

The paper says that the order of the solvers is the same by local flatness as by mean accuracy: SWAD, the SWAs, SAM,
ERM. Rank correlations with their intervals and permutation tests say how much five methods can show.
"""

from __future__ import annotations

from swad.testbed.experiments.report import Report
from swad.testbed.experiments.reproduce import figure3
from swad.testbed.experiments.reproduce.base import Reproduction, Results, availability_notes
from swad.testbed.results import published
from swad.testbed.results.flatness_runs import rank_methods, read_flatness
from swad.testbed.results.flatness_stats import SIDES
from swad.testbed.results.published import Number
from swad.testbed.results.rank_correlation import Ranking
from swad.testbed.results.runs import load_run
from swad.testbed.results.tables import PAPER, Cell, Row, Table

DATASETS = figure3.DATASETS

PRINTED_ORDER = ("SWAD", "SWA w/ const", "SWA w/ cyclic", "SAM", "ERM (baseline)")
"""Appendix D.1 and Table 8: from the flattest and most accurate to the sharpest and least accurate."""


def ranking_table(title: str, ranking: Ranking) -> Table:
    """Build the table of one ranking: methods from flattest to sharpest, with their rank by accuracy."""
    rows = tuple(
        Row(
            row.method,
            (
                Cell(row.flatness, decimals=4),
                Cell(100 * row.accuracy),
                Cell(text=f"{row.flatness_rank:g}"),
                Cell(text=f"{row.accuracy_rank:g}"),
            ),
        )
        for row in ranking.rows
    )
    notes = []
    for name, correlation in (("Spearman", ranking.spearman), ("Kendall", ranking.kendall)):
        notes.append(
            f"{name} of both ranks {correlation.value:+.2f}, 95 % interval {correlation.low:+.2f} to "
            f"{correlation.high:+.2f}, {ranking.interval_over}, p = {correlation.p:.2g}."
        )
    notes.append(
        "The order by flatness is the order by accuracy."
        if ranking.same_order
        else "The order by flatness is not the order by accuracy."
    )
    columns = ("F", "Accuracy, %", "Rank by flatness", "Rank by accuracy")
    return Table(title, columns, rows, tuple(notes))


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


def _build(results: Results) -> Report:
    report = figure3.measure(results, "ranking", "flatness")  # it draws the rankings, too
    tables: list[Table | str] = []
    for dataset in results.config.measured_datasets(DATASETS):
        weights = figure3.measured_weights(results, [dataset])
        read = (read_flatness(load_run(path), names) for path, names in weights.items())
        flatness = [value for value in read if value is not None]
        for side in SIDES:
            radius = max(flatness[0].curves[side][0].radii)
            ranking = rank_methods(flatness, side, radius)
            if ranking is None:
                tables.append(f"{dataset}, {side} domains: no ranking, because fewer than three methods differ.")
            else:
                title = f"{dataset}: flatness at radius {radius:g} on {side} domains, and accuracy on the target"
                tables.append(ranking_table(title, ranking))
    tables += [printed_table(), *availability_notes(results.config, DATASETS)]
    return Report(tuple(tables), report.written, report.row_files)


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
