"""Figure 3: local flatness of ERM, SAM, SWA with cyclic and constant learning rate, and SWAD.

F is the average rise of the loss at a distance from the weights, on seen and on unseen domains. ERM, SWA with a
constant learning rate and SWAD are of one training; SAM and the cyclic learning rate need their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from swad.testbed.measure.saved_run import open_run
from swad.testbed.measurements.flatness import Flatness
from swad.testbed.paper.paper_config import PaperConfig
from swad.testbed.paper.reproduction import PaperRuns, Reproduction, availability_notes, write_run_page
from swad.testbed.paper.trainings import ERM, ERM_CYCLIC, Training
from swad.testbed.results.measured import measured
from swad.testbed.results.measured_report import report
from swad.testbed.results.measurement_rows import FLATNESS
from swad.testbed.results.report import Report
from swad.testbed.results.run_data import RunData
from swad.testbed.results.runs import load_run
from swad.testbed.training.run_dir import RunError

WEIGHTS: dict[Training, tuple[str, ...]] = {
    ERM: ("best", "swa", "swad"),
    Training("sam"): ("best",),
    ERM_CYCLIC: ("swa",),
}
"""The weights of each training that are the five methods of Figure 3."""

DATASETS = ("PACS",)


def trainings(config: PaperConfig) -> list[Training]:
    """Return the trainings of the methods."""
    return list(WEIGHTS)


def measured_weights(paper_runs: PaperRuns, datasets: Sequence[str] | None = None) -> dict[Path, tuple[str, ...]]:
    """Return the weights to measure by run directory, of all datasets of the figure or of some."""
    chosen = paper_runs.config.measured_datasets(DATASETS) if datasets is None else datasets
    return {
        run.path: weights
        for dataset in chosen
        for training, weights in WEIGHTS.items()
        for run in paper_runs.runs(dataset, training)
    }


def measure(paper_runs: PaperRuns, item: str, stem: str) -> Report:
    """Measure the flatness of all methods and draw it."""
    config, weights = paper_runs.config, measured_weights(paper_runs)
    if not weights:
        datasets = ", ".join(config.measured_datasets(DATASETS))
        raise RunError(f"no run on {datasets} is finished: train failed runs again (--retry-failed)")
    what = Flatness(images=config.images, radii=tuple(config.radii or ()), directions=config.directions)
    paper_runs.measure([(open_run(path, config.data), names) for path, names in weights.items()], what)
    shown = report(measured([load_run(path) for path in weights], Flatness), Flatness)
    folder = paper_runs.folder(item)
    written = (*shown.write(folder, ()), *shown.save_figures(folder / stem, config.formats))
    return Report(shown.tables, written, tuple(path / FLATNESS for path in weights))


def write_figure_page(folder: Path, runs: Sequence[RunData]) -> Path:
    """Write the report page of the runs behind a figure."""
    # The table would choose between SWA with cyclic and with constant learning rate, which are two methods.
    constant = [run for run in runs if run.config.get("lr_schedule") != "cyclic"]
    return write_run_page(constant or runs, folder / "report.html", runs)


def _build(paper_runs: PaperRuns) -> Report:
    built = measure(paper_runs, "figure3", "figure3")
    page = write_figure_page(paper_runs.folder("figure3"), [load_run(path) for path in measured_weights(paper_runs)])
    tables = (*built.tables, *availability_notes(paper_runs.config, DATASETS))
    return Report(tables, (*built.written, page), built.row_files)


ITEMS = (
    Reproduction(
        "figure3",
        "Local flatness of ERM, SAM, SWA and SWAD",
        trainings,
        _build,
        DATASETS,
        measures="the loss around the weights of every method",
    ),
)
