"""Figure 4: the loss on the plane through three weights of ERM's trajectory, on the sources and on the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from swad.testbed.measure.saved_run import open_run
from swad.testbed.measurements.surface import Surface
from swad.testbed.paper.figure3 import write_figure_page
from swad.testbed.paper.reproduction import PaperRuns, Reproduction, each_dataset
from swad.testbed.paper.trainings import ERM
from swad.testbed.results.figures.surfaces import surface_figure
from swad.testbed.results.measurement_rows import SURFACE
from swad.testbed.results.report import Report
from swad.testbed.results.runs import load_run
from swad.testbed.results.surfaces import points_table, read_surface

DATASETS = ("PACS",)


def _measure(paper_runs: PaperRuns, dataset: str, names: Sequence[str]) -> Report:
    config, runs = paper_runs.config, paper_runs.first_trial(dataset, ERM)
    saved = [open_run(run.path, config.data) for run in runs]
    paper_runs.measure([(run, ()) for run in saved], Surface(images=config.images, steps=config.grid))
    planes = [surface for run in runs if (surface := read_surface(load_run(run.path))) is not None]
    written = paper_runs.save(surface_figure(planes), "figure4", *names)
    return Report((points_table(planes),), tuple(written), tuple(run.path / SURFACE for run in runs))


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
