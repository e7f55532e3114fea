"""An item of the paper, and the runs that it is built from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swad.testbed.measure.engine import measure, plan
from swad.testbed.measure.saved_run import SavedRun, find_device
from swad.testbed.measurements import stored_reports
from swad.testbed.paper.paper_config import PAPER_DATASETS, PaperConfig
from swad.testbed.paper.trainings import Training, sweep_specs
from swad.testbed.results.diagnostics import find_problems
from swad.testbed.results.figures.style import save_figures
from swad.testbed.results.page.build import write_page
from swad.testbed.results.records import DONE
from swad.testbed.results.report import Report
from swad.testbed.results.run_data import RunData
from swad.testbed.results.runs import RunList, find_runs, load_run
from swad.testbed.sweep.directory import SweepDir, runs_folder
from swad.testbed.sweep.spec import SweepSpec
from swad.testbed.training.run_dir import RunError
from swad.util.progress import Progress

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from swad.testbed.measure.base import Job, Measurement

Build = Callable[["PaperRuns"], Report]
"""Measures what is missing, draws the figures, and returns the tables."""

BuildDataset = Callable[["PaperRuns", str, Sequence[str]], Report]
"""``build(paper_runs, dataset, names)``: the same for one dataset; the names tell its figures from those of others."""


@dataclass(frozen=True)
class Reproduction:
    """One table, figure or analysis of the paper.

    Args:
        name: Name on the command line.
        title: The paper's title of it, shortened.
        trainings: Returns the trainings that it needs.
        build: Measures, draws, and returns the tables.
        datasets: The paper's datasets of this item, by name.
        measures: What is measured after training, for the statement of cost; empty if nothing is.
        trial_zero: Whether it needs only the first of the requested trials.
        snapshots: Whether it measures snapshots, which only runs of trial 0 keep.
    """

    name: str
    title: str
    trainings: Callable[[PaperConfig], Sequence[Training]]
    build: Build
    datasets: tuple[str, ...] = PAPER_DATASETS
    measures: str = ""
    trial_zero: bool = False
    snapshots: bool = False

    def specs(self, config: PaperConfig) -> list[SweepSpec]:
        """Return the sweeps that the item needs, each once."""
        specs: list[SweepSpec] = []
        for training in self.trainings(config):
            if config.scale == "smoke" and training.algorithm in SLOW:
                continue
            for dataset in config.measured_datasets(self.datasets):
                specs += [spec for spec in sweep_specs(config, dataset, training) if spec not in specs]
        if self.trial_zero:
            first = config.trials[0]
            specs = [replace(spec, trials=(first,)) for spec in specs if first in spec.trials]
        return specs


SLOW = ("arm",)
"""Left out of the scale smoke: ARM's context network would take as long as all other methods together."""

MANY = 100
"""So many runs are read together with all others of the sweep, from its summary."""


class PaperRuns:
    """The finished runs that items are built from, and how to measure on them.

    Args:
        config: Data, scale and resolution.
        progress: Called after every evaluation of a measurement.
    """

    def __init__(self, config: PaperConfig, progress: Progress | None = None) -> None:
        self.config = config
        self.measure_options: dict[str, Any] = {
            "device": config.device,
            "workers": config.workers,
            "progress": progress,
        }
        """Arguments that all measurements have in common."""
        self._sweep = SweepDir(config.output)
        self._loaded: dict[Path, RunData] = {}

    def runs(self, dataset: str, training: Training) -> list[RunData]:
        """Return the finished runs of a training on a dataset."""
        specs = sweep_specs(self.config, dataset, training)
        paths = [planned.config.output for planned in self._sweep.plan(specs).runs]
        unread = [path for path in paths if path not in self._loaded and (path / DONE).exists()]
        if len(unread) >= MANY:
            found = find_runs(runs_folder(self.config.output), warn=False)
            self._loaded.update((run.path, run) for run in found if run.finished)
        else:
            self._loaded.update((path, load_run(path)) for path in unread)
        return [self._loaded[path] for path in paths if path in self._loaded]

    def first_trial(self, dataset: str, training: Training) -> list[RunData]:
        """Return those of the first of the requested trials; `RunError` if there is none."""
        runs = [run for run in self.runs(dataset, training) if run.trial == self.config.trials[0]]
        if not runs:
            raise RunError(f"no run on {dataset} is finished: train failed runs again (--retry-failed)")
        return runs

    def measure(self, chosen: Sequence[tuple[SavedRun, Sequence[str]]], what: Measurement) -> list[Job]:
        """Measure weights of runs; what is stored already is not measured again."""
        device = find_device(self.config.device)
        jobs = plan(chosen, what, device)
        measure(jobs, device, workers=self.config.workers, progress=self.measure_options["progress"])
        return jobs

    def folder(self, item: str) -> Path:
        """Return the directory of an item's files."""
        return self.config.output / item

    def save(self, figure: Figure, item: str, *names: str) -> list[Path]:
        """Write a figure of an item in all formats, named after the item and what tells it from its others."""
        return save_figures(figure, self.folder(item) / "-".join([item, *names]), self.config.formats)


def write_run_page(runs: Sequence[RunData], path: Path, measured: Sequence[RunData] | None = None) -> Path:
    """Write the report page of runs, with what was measured of them or of `measured`."""
    reports, problems = stored_reports(runs if measured is None else measured)
    problems = [*find_problems(runs), *problems]
    return write_page(RunList(runs), path, measured=reports, problems=problems)


def availability_notes(config: PaperConfig, datasets: Sequence[str]) -> list[str]:
    """Say which of an item's datasets were not found, and which others were used."""
    missing = [name for name in datasets if name not in config.datasets]
    others = [name for name in config.datasets if name not in PAPER_DATASETS]
    notes = []
    if missing:
        notes.append(f"Not found, so not trained: {', '.join(missing)}.")
    if others:
        notes.append(f"Not in the paper, so without printed numbers to compare with: {', '.join(others)}.")
    return notes


def each_dataset(build: BuildDataset, datasets: Sequence[str]) -> Build:
    """Return what builds an item for each of its datasets, with notes on those that were not found."""

    def build_all(paper_runs: PaperRuns) -> Report:
        measured = paper_runs.config.measured_datasets(datasets)
        reports = [build(paper_runs, dataset, [dataset] if len(measured) > 1 else []) for dataset in measured]
        tables = [table for report in reports for table in report.tables]
        return Report(
            (*tables, *availability_notes(paper_runs.config, datasets)),
            tuple(path for report in reports for path in report.written),
            tuple(path for report in reports for path in report.row_files),
        )

    return build_all


def first_trial_item(
    name: str, title: str, training: Training, build: BuildDataset, *, measures: str = "", snapshots: bool = False
) -> Reproduction:
    """Return an item of the first trial of one training, built dataset by dataset. The paper has it for PACS."""
    datasets = ("PACS",)
    build_all = each_dataset(build, datasets)
    return Reproduction(name, title, lambda config: (training,), build_all, datasets, measures, True, snapshots)
