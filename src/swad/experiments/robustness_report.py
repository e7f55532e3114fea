"""Errors under corruption of several runs at once: measure them, draw the figure and build the tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from swad.experiments.finished_runs import run_progress
from swad.experiments.report import Report
from swad.experiments.run_robustness import CorruptionConfig, measure_corruptions
from swad.experiments.saved_run import SavedRun
from swad.results.corruption_errors import ROBUSTNESS, read_corruption_errors
from swad.results.corruption_tables import cases_csv, comparison_table, corruption_summary, corruption_table
from swad.results.figures.robustness import severity_figure
from swad.results.figures.style import FORMATS, require_matplotlib, save_figures
from swad.results.runs import load_run
from swad.training.run_dir import RunError
from swad.util.files import write_json, write_text
from swad.util.progress import Progress


def measure_robustness(
    weights: Sequence[tuple[SavedRun, Sequence[str]]],
    config: CorruptionConfig,
    *,
    output: Path,
    formats: Sequence[str] = FORMATS,
    device: str = "cpu",
    workers: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Measure the errors of several runs under corruption, draw them and compare them.

    Args:
        weights: Runs, and the names of their weights to measure; the others are compared with the first.
        config: Corruptions, severities and images.
        output: Directory for the figure, `robustness.json` and `robustness.csv`.
        formats: Formats of the figure.
        device: Device to measure on.
        workers: Processes that read images.
        progress: Called after every corruption and severity.
    """
    require_matplotlib()  # before measuring for hours
    for i, (run, names) in enumerate(weights):
        labeled = run_progress(progress, run, i, len(weights))
        measure_corruptions(run, names, config, device=device, workers=workers, progress=labeled)
    return stored_robustness([run.path for run, _ in weights], output=output, formats=formats)


def stored_robustness(paths: Sequence[Path], *, output: Path, formats: Sequence[str] = FORMATS) -> Report:
    """Draw and compare the errors that runs have stored, which needs neither weights nor images.

    Args:
        paths: Run directories.
        output: Directory for the figure, `robustness.json` and `robustness.csv`.
        formats: Formats of the figure.
    """
    require_matplotlib()
    results = read_corruption_errors([load_run(path) for path in paths])
    if not results:
        raise RunError(f"no {ROBUSTNESS} has a complete measurement: run `swad robustness` first")
    figure = severity_figure(results)
    written = save_figures(figure, output / "robustness", formats)
    summary = output / "robustness.json"
    write_json(summary, {"results": corruption_summary(results)})
    cases = output / "robustness.csv"
    write_text(cases, cases_csv(results))
    tables = [table for each in results for table in (corruption_table(each), comparison_table(each)) if table]
    return Report(tuple(tables), (*written, summary, cases), tuple(path / ROBUSTNESS for path in paths))
