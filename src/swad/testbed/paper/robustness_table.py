"""Table 6: robustness on ImageNet, of runs by the recipe of appendix B.6; on the digits, errors under corruption.

ImageNet is not trained here: `--runs` names the directory of the three runs of `swad train imagenet`, and `--data` the
directory of the benchmarks. ERM is the training that decays to zero, with EMA beside it; SWAD is of the one with a
constant learning rate at the end, SWA of the cyclic one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from swad.testbed.measure import engine
from swad.testbed.measure.imagenet import Benchmarks, plan_models, stored_results
from swad.testbed.measure.imagenet_models import ImageNetModel, saved_model
from swad.testbed.measure.imagenet_report import ALL_19, PARTIAL, Parts, notes, scores
from swad.testbed.measure.saved_run import SavedRun, find_device, open_run, open_runs
from swad.testbed.measurements.corruption import Corruption
from swad.testbed.paper.accuracy import ComparedRow, compared_table, printed_cell
from swad.testbed.paper.methods import row_name
from swad.testbed.paper.reproduction import PaperRuns, Reproduction, write_run_page
from swad.testbed.paper.trainings import ERM_THREE_WAY
from swad.testbed.results import published
from swad.testbed.results.corruption_means import COMPARED
from swad.testbed.results.imagenet_parts import ImageNetC, stored_values
from swad.testbed.results.measured import Reading, measured
from swad.testbed.results.measured_report import report
from swad.testbed.results.measurement_rows import ROBUSTNESS
from swad.testbed.results.report import Report
from swad.testbed.results.run_data import RunData
from swad.testbed.results.runs import load_run
from swad.testbed.results.tables import Cell, Table
from swad.testbed.training.run_dir import RunError
from swad.util.names import plain
from swad.util.statistics import summarize

if TYPE_CHECKING:
    import pandas as pd

WEIGHTS = {"ERM": "last", "EMA": "ema", "SWA": "swa", "SWAD": "swad"}
"""The weights of each row. The paper has no EMA."""
SCHEDULES = {
    "ERM": ("decay",),
    "EMA": ("decay", "constant", "cyclic"),
    "SWA": ("cyclic", "constant", "decay"),
    "SWAD": ("constant", "cyclic", "decay"),
}
"""The learning rates whose trainings a row may be of. All of its trials are of the first one that has its weights: the
trainings of one trial share a trajectory or its seed, so two of them are not two trials."""

FOLDERS = {
    "imagenet": ("imagenet", "ilsvrc", "ilsvrc2012"),
    "imagenet_c": ("imagenetc",),
    "imagenet_r": ("imagenetr",),
    "backgrounds": ("bgchallenge", "backgroundschallenge", "backgrounds"),
}
"""Names of the benchmarks' folders in --data, without case and punctuation."""

COLUMNS = {
    "ImageNet (%) ↑": "ImageNet top-1",
    "ImageNet-C (mCE) ↓": f"mean error over {len(ALL_19)} corruptions",
    "BGC (%) ↑": "Background Challenge",
    "ImageNet-R (%) ↑": "ImageNet-R, among its 200 classes",
}
"""The score of ours in each column of the paper."""
OWN = ("mean error over 15 corruptions", "mCE, normalized by AlexNet", "relative mCE, normalized by AlexNet")
"""Further scores of ImageNet-C, in columns of their own."""

NEEDS = (
    "No runs on ImageNet were given: train them with `swad train imagenet`, and name their directory as runs (--runs).",
    "Needed in data (--data): imagenet/val, imagenet-c, imagenet-r and bg_challenge.",
)
MEANING = (
    "The paper's mCE of ERM, 57.6, is most likely a mean error that was not divided by AlexNet's: ResNet-50 has an mCE "
    "of 76.7 in the paper of ImageNet-C. Ours in that column is the mean error over 19 corruptions."
)


def find_benchmarks(data: Path | None) -> Benchmarks:
    """Return the benchmarks that are in a directory, by the names of their folders."""
    folders = {plain(entry.name): entry for entry in sorted(data.iterdir()) if entry.is_dir()} if data else {}
    found = {
        field: next((folders[name] for name in names if name in folders), None) for field, names in FOLDERS.items()
    }
    return Benchmarks(**found)


def find_rows(runs: Sequence[SavedRun]) -> dict[str, list[ImageNetModel]]:
    """Return the models of each row, one for each trial."""
    rows: dict[str, list[ImageNetModel]] = {}
    for name, weights in WEIGHTS.items():
        trained = [run for run in runs if weights in run.weights]
        present = {run.config.lr_schedule for run in trained}
        schedule = next((schedule for schedule in SCHEDULES[name] if schedule in present), None)
        for run in trained:
            if schedule is not None and run.config.lr_schedule == schedule:
                label = f"{name} ({run.path})" if name in rows else name
                rows.setdefault(name, []).append(saved_model(run.file(weights), label, weights, run.path))
    return rows


def _build(paper_runs: PaperRuns) -> Report:
    config = paper_runs.config
    if config.runs is not None:
        return _imagenet(paper_runs, config.runs)
    runs = [run for name in config.measured_datasets(()) for run in paper_runs.runs(name, ERM_THREE_WAY)]
    if runs:
        return _stand_in(paper_runs, runs)
    return Report((_compared((), {}, (*NEEDS, MEANING)),))


def _imagenet(paper_runs: PaperRuns, directory: Path) -> Report:
    """Evaluate runs on ImageNet, and compare them with the paper."""
    config = paper_runs.config
    runs, lines = open_runs([directory])
    benchmarks = find_benchmarks(config.data)
    if benchmarks == Benchmarks():
        given = "none was given" if config.data is None else f"{config.data} has none of them"
        raise RunError(f"data (--data) must hold imagenet, imagenet-c, imagenet-r or bg_challenge: {given}")
    rows = find_rows(runs)
    lines += [f"No run has the weights of {name}" for name in WEIGHTS if name not in rows]
    models = [model for members in rows.values() for model in members]
    jobs = plan_models(models, benchmarks)
    engine.measure(
        jobs, find_device(config.device), workers=config.workers, progress=paper_runs.measure_options["progress"]
    )
    found = stored_results(jobs)
    by_row = {name: [found[model.label] for model in members] for name, members in rows.items()}
    ours = {name: [score_cell(trials, score) for score in (*OWN, *COLUMNS.values())] for name, trials in by_row.items()}
    captions = (*(f"{line}." for line in lines), *notes(models, benchmarks, found), MEANING)
    written = _draw(stored_values(by_row), ImageNetC, [load_run(run.path) for run in runs], paper_runs)
    files = dict.fromkeys(model.directory / ROBUSTNESS for model in models)
    return Report((_compared(OWN, ours, captions),), written, tuple(files))


def score_cell(trials: Sequence[Parts], name: str) -> Cell:
    """Return the mean of a score over trials; empty if a trial lacks it."""
    found = [score for parts in trials if (score := scores(parts).get(name)) is not None]
    if len(found) < len(trials):
        return Cell()
    summary = summarize(score.value for score in found)
    return Cell(summary.mean, summary.error, mark=PARTIAL * any(score.partial for score in found))


def _stand_in(paper_runs: PaperRuns, runs: Sequence[RunData]) -> Report:
    """Measure errors under corruption on the datasets that stand in for ImageNet."""
    config = paper_runs.config
    what = Corruption(images=config.images)
    if config.scale == "smoke":
        what = replace(what, corruptions=("gaussian_noise", "fog"), severities=(1, 5))
    weights = ["best" if name == "ERM" else weights for name, weights in WEIGHTS.items()]
    paper_runs.measure([(open_run(run.path, config.data), weights) for run in runs], what)
    values = measured(runs, Corruption)
    means = report(values, Corruption).means
    seen = means[means["side"] == "seen"].set_index(["dataset", "quantity", "method"])
    ours: dict[str, list[Cell]] = {name: [] for name in WEIGHTS}
    datasets = list(dict.fromkeys(values["dataset"]))
    for dataset in datasets:
        for name, method in zip(WEIGHTS, dict.fromkeys(values["method"]), strict=True):
            clean, corrupted = (seen.loc[dataset, quantity, method] for quantity in COMPARED)
            ours[name] += [_percent(1 - clean["mean"], clean["error"]), _percent(*corrupted[["mean", "error"]])]
    columns = [f"{each}: {score}" for each in datasets for score in ("accuracy (%) ↑", "corruption error (%) ↓")]
    captions = (
        "Ours: validation images of the sources, corrupted by the definitions of ImageNet-C. ERM is its "
        f"{weights[0]} weights; all rows are of one training, SWA with a constant learning rate. These images, not "
        "corrupted, also chose the best weights and SWAD's range.",
        *NEEDS,
        MEANING,
    )
    table = _compared(columns, {name: [*cells, *[Cell()] * len(COLUMNS)] for name, cells in ours.items()}, captions)
    written = _draw(values, Corruption, runs, paper_runs)
    return Report((table,), written, tuple(run.path / ROBUSTNESS for run in runs))


def _compared(own: Sequence[str], ours: Mapping[str, Sequence[Cell]], captions: Sequence[str]) -> Table:
    """Build the table: columns of our own, then the paper's; our rows, the paper's, and the difference."""
    entry = published.table(6)
    columns, printed = (*own, *entry.columns), {row_name(row): row.values for row in entry.rows}
    rows = []
    for name in dict.fromkeys([*ours, *printed]):
        values = (*(None for _ in own), *printed.get(name, [None] * len(entry.columns)))
        rows.append(ComparedRow(name, tuple(ours[name]) if name in ours else None, tuple(map(printed_cell, values))))
    return compared_table(f"Table 6: {entry.title}", columns, rows, captions)


def _percent(mean: float, error: float) -> Cell:
    return Cell(100 * mean, None if math.isnan(error) else 100 * error)


def _draw(
    values: pd.DataFrame, what: type[Reading], runs: Sequence[RunData], paper_runs: PaperRuns
) -> tuple[Path, ...]:
    """Draw the error against the severity, and write the page of the runs."""
    folder = paper_runs.folder("table6")
    written = report(values, what).save_figures(folder / "table6", paper_runs.config.formats) if len(values) else []
    return (*written, write_run_page(runs, folder / "report.html"))


ITEMS = (
    Reproduction(
        "table6",
        published.table(6).title,
        lambda config: () if config.runs is not None else (ERM_THREE_WAY,),
        _build,
        datasets=(),
        measures="errors under corruption",
    ),
)
