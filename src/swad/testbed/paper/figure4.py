"""Figure 4: the loss on the plane through three weights of ERM's trajectory, on the sources and on the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from swad.testbed.measure.run_surface import measure_surfaces, report_surfaces
from swad.testbed.paper.figure3 import write_figure_page
from swad.testbed.paper.reproduction import PaperRuns, Reproduction, each_dataset
from swad.testbed.paper.trainings import ERM
from swad.testbed.results.report import Report
from swad.testbed.results.runs import load_run

DATASETS = ("PACS",)


def _measure(paper_runs: PaperRuns, dataset: str, names: Sequence[str]) -> Report:
    config = paper_runs.config
    paths, notes = measure_surfaces(
        [run.path for run in paper_runs.first_trial(dataset, ERM)],
        data=config.data,
        steps=config.grid,
        n_images=config.images,
        **paper_runs.measure_options,
    )
    stem, folder = "-".join(["figure4", *names]), paper_runs.folder("figure4")
    report = report_surfaces(paths, ["plane"], output=folder, stem=stem, formats=config.formats)
    return replace(report, tables=(*notes, *report.tables))


def _build(paper_runs: PaperRuns) -> Report:
    report = each_dataset(_measure, DATASETS)(paper_runs)
    page = write_figure_page(paper_runs.folder("figure4"), [load_run(path.parent) for path in report.row_files])
    return replace(report, written=(*report.written, page))


ITEMS = (
    Reproduction(
        "figure4",
        "Loss surfaces through three weights of ERM",
        lambda config: (ERM,),
        _build,
        DATASETS,
        measures="the loss on a plane, for every target",
        trial_zero=True,
        snapshots=True,
    ),
)
