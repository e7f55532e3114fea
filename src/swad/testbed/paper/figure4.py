"""Figure 4: the loss on the plane through three weights of ERM's trajectory, on the sources and on the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from swad.testbed.measure.run_surface import measure_surfaces, report_surfaces
from swad.testbed.paper.base import Reproduction, Results, each_dataset
from swad.testbed.paper.figure3 import write_figure_page
from swad.testbed.paper.trainings import ERM
from swad.testbed.results.report import Report
from swad.testbed.results.runs import load_run

DATASETS = ("PACS",)


def _measure(results: Results, dataset: str, names: Sequence[str]) -> Report:
    config = results.config
    paths, notes = measure_surfaces(
        [run.path for run in results.first_trial(dataset, ERM)],
        data=config.data,
        steps=config.grid,
        n_images=config.images,
        **results.measuring,
    )
    stem, folder = "-".join(["figure4", *names]), results.folder("figure4")
    report = report_surfaces(paths, ["plane"], output=folder, stem=stem, formats=config.formats)
    return replace(report, tables=(*notes, *report.tables))


def _build(results: Results) -> Report:
    report = each_dataset(_measure, DATASETS)(results)
    page = write_figure_page(results.folder("figure4"), [load_run(path.parent) for path in report.row_files])
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
