"""Figure 4: the loss on the plane through three weights of ERM's trajectory, on the sources and on the target."""

from __future__ import annotations

from pathlib import Path

from swad.experiments.flatness_report import measure_surfaces, report_surfaces
from swad.experiments.report import Report
from swad.experiments.reproduce.base import Reproduction, Results, availability_notes
from swad.experiments.reproduce.figure3 import write_run_page
from swad.experiments.reproduce.trainings import ERM
from swad.results.runs import load_run
from swad.results.tables import Table

DATASETS = ("PACS",)


def _build(results: Results) -> Report:
    config = results.config
    tables: list[Table | str] = []
    written: list[Path] = []
    row_files: list[Path] = []
    datasets = config.measured_datasets(DATASETS)
    for dataset in datasets:
        paths, notes = measure_surfaces(
            [run.path for run in results.first_trial(dataset, ERM)],
            data=config.data,
            steps=config.grid,
            n_images=config.images,
            **results.measuring,
        )
        stem = "figure4" if len(datasets) == 1 else f"figure4-{dataset}"
        report = report_surfaces(paths, ["plane"], output=results.folder("figure4"), stem=stem, formats=config.formats)
        tables += [*notes, *report.tables]
        written += report.written
        row_files += report.row_files
    written.append(write_run_page(results.folder("figure4"), [load_run(path.parent) for path in row_files]))
    return Report((*tables, *availability_notes(config, DATASETS)), tuple(written), tuple(row_files))


ITEMS = (
    Reproduction(
        "figure4",
        "Loss surfaces through three weights of ERM",
        lambda config: (ERM,),
        _build,
        DATASETS,
        measures="the loss on a plane, for every target",
        trial_zero=True,
    ),
)
