"""The flatness of several runs at once: measure them, draw figures, build tables and a JSON summary.

Nothing here prints. `swad flatness` and `swad reproduce` print the tables and paths of a `Report`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from swad.flatness import check_radii, require_curvlinops
from swad.testbed.experiments.report import Report
from swad.testbed.experiments.run_flatness import FlatnessConfig, run_curvature, run_local, run_worst_case
from swad.testbed.measure.finished_runs import run_progress
from swad.testbed.measure.saved_run import SavedRun
from swad.testbed.results.figures.flatness import flatness_figure, ranking_figure
from swad.testbed.results.figures.style import FORMATS, method_colors, require_matplotlib, save_figures
from swad.testbed.results.flatness_runs import (
    RunFlatness,
    curves_by_target,
    difference_curves,
    method_names,
    null_pairs,
    paired_differences,
    read_flatness,
    with_mean,
)
from swad.testbed.results.flatness_stats import QUANTITIES, SIDES, CurvesBySide
from swad.testbed.results.flatness_summary import (
    by_dataset,
    flatness_summary,
    ranking_notes,
    rankings_at_largest_radius,
)
from swad.testbed.results.flatness_tables import (
    PAIRED,
    THESE_WEIGHTS_ONLY,
    curvature_table,
    curve_table,
    describe_bands,
    describe_settings,
    domain_table,
    holds_for,
    verdict_table,
    worst_case_table,
)
from swad.testbed.results.measurement_rows import FLATNESS
from swad.testbed.results.runs import load_run
from swad.testbed.results.tables import Table
from swad.testbed.training.run_dir import RunError
from swad.util.files import write_json
from swad.util.jsonl import json_values, stored_path
from swad.util.progress import Progress


def measure_flatness(
    weights: Sequence[tuple[SavedRun, Sequence[str]]],
    config: FlatnessConfig,
    *,
    worst_radii: Sequence[float] = (),
    curvature: bool = False,
    device: str = "cpu",
    workers: int | None = None,
    progress: Progress | None = None,
) -> dict[Path, list[str]]:
    """Measure the flatness of several runs, and return the full names of their weights, for `report_flatness`.

    Args:
        weights: Runs, and the names of their weights to measure; the others are compared with the first.
        config: Radii, directions, images and parameters.
        worst_radii: Radii of a worst-case search; empty for none.
        curvature: Whether to compute the curvature too.
        device: Device to measure on.
        workers: Processes that read images.
        progress: Called after every evaluation.
    """
    # Check everything first: a measurement may take hours.
    require_matplotlib()  # for the report
    for radii in (config.radii, worst_radii or None):
        if radii is not None:
            check_radii(radii)
    if curvature:
        require_curvlinops()
    names = {run.path: run.full_names(chosen) for run, chosen in weights}
    for i, (run, _) in enumerate(weights):
        labeled = run_progress(progress, run, i, len(weights))
        measuring: dict[str, Any] = {"device": device, "workers": workers, "progress": labeled}
        run_local(run, names[run.path], config, **measuring)
        if worst_radii:
            run_worst_case(run, names[run.path], worst_radii, config, **measuring)
        if curvature:
            run_curvature(run, names[run.path], config, **measuring)
    return names


def report_flatness(
    weights: Mapping[Path, Sequence[str]],
    *,
    output: Path,
    stem: str = "flatness",
    log: bool = False,
    formats: Sequence[str] = FORMATS,
) -> Report:
    """Draw and summarize the last measurement that each run has stored, which needs neither weights nor images.

    Args:
        weights: Names of the weights to show by run directory; the empty sequence for all that were measured.
        output: Directory for figures and `flatness.json`.
        stem: File name of the main figure.
        log: Whether figures show F on a logarithmic axis.
        formats: Formats of the figures.
    """
    require_matplotlib()
    runs = [load_run(path) for path in weights]
    measured, errors = (
        [result for run in runs if (result := read_flatness(run, weights[run.path], measure)) is not None]
        for measure in QUANTITIES
    )
    if not measured:
        raise RunError(f"no {FLATNESS} has a complete measurement of these weights: run `swad flatness` first")
    written = _draw_flatness(measured, output, stem, formats, log)
    tables, content = flatness_tables(measured), flatness_summary(measured)
    if errors:
        written += _draw_flatness(errors, output, f"{stem}-error", formats, log)
        tables += flatness_tables(errors)
        content["error"] = flatness_summary(errors)
    summary = output / "flatness.json"
    write_json(summary, json_values(content))
    return Report(tuple(tables), (*written, summary), tuple(stored_path(path / FLATNESS) for path in weights))


# --- figures --------------------------------------------------------------------------------------------------------


def _draw_flatness(
    measured: Sequence[RunFlatness], output: Path, stem: str, formats: Sequence[str], log: bool
) -> list[Path]:
    """Draw F against the radius, the rankings and the paired differences of every dataset, and return the files."""
    datasets = by_dataset(measured)
    written = []
    for dataset, runs in datasets.items():
        suffix = "" if len(datasets) == 1 else "-" + dataset.replace(", ", "-").replace(" ", "-")
        colors = method_colors(method_names(runs))  # the same in all figures of a dataset
        groups = with_mean(curves_by_target(runs))
        rises = QUANTITIES[runs[0].measure]
        note = describe_bands(groups, runs)
        figure = flatness_figure(groups, colors=colors, note=note, quantity=rises, log=log)
        written += save_figures(figure, output / f"{stem}{suffix}", formats)
        for side, radius, ranking in rankings_at_largest_radius(runs) if runs[0].measure == "loss" else ():
            quantity = f"$F_γ$ at γ = {radius:g}, {side}"
            figure = ranking_figure(ranking, quantity=quantity, colors=colors)
            written += save_figures(figure, output / f"ranking{suffix}-{side}", formats)
        if units := paired_differences(runs):
            reference, curves = difference_curves(units)
            note = f"F is the rise of {rises}. {describe_bands(curves, runs)}"
            figure = flatness_figure(curves, colors=colors, reference=reference, note=note)
            written += save_figures(figure, output / f"{stem}-paired{suffix}", formats)
    return written


# --- tables ---------------------------------------------------------------------------------------------------------


def flatness_tables(measured: Sequence[RunFlatness]) -> list[Table | str]:
    """Return the tables of a flatness measurement, and the notes below them."""
    datasets = by_dataset(measured)
    items: list[Table | str] = []
    for dataset, runs in datasets.items():
        groups = curves_by_target(runs)
        of_error = " of the 0-1 error" * (runs[0].measure == "error")
        for title, sides in with_mean(groups).items():
            # Among several targets the mean is enough; each target is in the figure and in the JSON file.
            if len(groups) == 1 or title not in groups:
                items += [
                    curve_table(f"{dataset}, {title}: F{of_error} on {side} domains", sides[side])
                    for side in SIDES
                    if side in sides
                ]
        items += [
            domain_table(runs),
            f"F: average rise of {QUANTITIES[runs[0].measure]} at that distance; smaller is flatter. "
            f"Measured with {describe_settings(runs)}. {_interval_note(groups)}",
        ]
        if runs[0].measure == "loss":
            items += ranking_notes(runs)
    for dataset, runs in datasets.items():
        if units := paired_differences(runs):
            of_error = " of the 0-1 error" * (runs[0].measure == "error")
            title = PAIRED.replace(",", f"{of_error},", 1)
            title = f"{dataset}: {title.lower()}" if len(datasets) > 1 else title
            items.append(verdict_table(title, units, null_pairs(runs)))
    if any(run.worst_case for run in measured):
        items.append(worst_case_table(measured))
    if any(run.curvature for run in measured):
        items.append(curvature_table(measured, SIDES))
    return items


def _interval_note(groups: Mapping[str, CurvesBySide]) -> str:
    """Say what the intervals of the tables are."""
    all_curves = [curve for by_side in groups.values() for curves in by_side.values() for curve in curves]
    held = holds_for(all_curves)
    if held == THESE_WEIGHTS_ONLY:
        return (
            "± half of the 95 % interval over directions and images. It holds for these weights; another training may "
            "differ more. Compare methods over several trials."
        )
    if not any(curve.exact_measured for curve in all_curves):
        return f"± half of the 95 % interval {held}."
    return f"± half of the 95 % interval {held}; in parentheses that of the measurement, over directions and images."
