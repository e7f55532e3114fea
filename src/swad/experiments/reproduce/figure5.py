"""Figure 5: validation accuracy and loss of every source over training, with t_s and t_e."""

from __future__ import annotations

from pathlib import Path

from swad.experiments.report import Report
from swad.experiments.reproduce.base import Reproduction, Results, availability_notes
from swad.experiments.reproduce.trainings import ERM
from swad.results.figures.training import valley_figure
from swad.results.run_tables import ranges_table
from swad.results.tables import Table

DATASETS = ("PACS",)


def _build(results: Results) -> Report:
    tables: list[Table | str] = []
    written: list[Path] = []
    datasets = results.config.measured_datasets(DATASETS)
    for dataset in datasets:
        runs = results.first_trial(dataset, ERM)
        drawing = valley_figure(runs, "swad", ("accuracy", "loss"))
        written += results.save(drawing, "figure5", *[dataset] * (len(datasets) > 1))
        tables.append(ranges_table(runs))
    return Report((*tables, *availability_notes(results.config, DATASETS)), tuple(written))


ITEMS = (
    Reproduction(
        "figure5",
        "Validation accuracy and loss over training",
        lambda config: (ERM,),
        _build,
        DATASETS,
        trial_zero=True,
    ),
)
