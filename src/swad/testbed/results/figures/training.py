"""Validation curves of runs with the averaged range, in the form of the paper's Figure 5.

A panel shows the validation curve of every source domain against the step, the mean that the valley is found on, the
threshold, and the averaged range shaded between t_s and t_e.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from swad.testbed.results.figures.style import INK, PALETTE, RANGE, add_legend, figure_style, new_figure, save_figures
from swad.testbed.results.labels import is_erm
from swad.testbed.results.run_data import RunData
from swad.testbed.results.runs import RunList
from swad.testbed.results.selection import DatasetResults
from swad.testbed.results.training_curves import ByStep, Curves, Valley, last_steps, mean_curve, source_curves, valleys
from swad.util.grouping import group_by
from swad.util.names import file_stem

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

METRICS = {"loss": "Validation loss", "accuracy": "Validation accuracy, %"}
"""Labels of the metrics that are drawn."""

RANGE_LABEL = "averaged range"
MARGIN = 0.02
"""Space around the data as a share of an axis, so that lines and the range are not cut off at its ends."""

DIVERGED = 100
"""A loss of this many times the median makes the axis logarithmic: on a linear one, all other losses would look 0."""


def valley_figure(
    runs: Sequence[RunData],
    average: str | None = None,
    metrics: Sequence[str] = ("loss", "accuracy"),
) -> Figure:
    """Draw the validation curves of runs, such as one for each target: a column per run and a row per metric.

    Args:
        runs: The runs.
        average: The average whose range is shown; by default the first one with a range.
        metrics: "loss" and "accuracy", or one of them.
    """
    runs = RunList.of(runs)
    shape = (len(metrics), len(runs))
    curves = {metric: source_curves(runs, metric) for metric in metrics}
    ranges = valleys(runs)
    with figure_style():
        figure = new_figure(3.1 * shape[1], 2.2 * shape[0] + 0.45)
        panels = figure.subplots(*shape, squeeze=False, sharex="col")
        # A domain has the same color in every panel, though each panel lacks another domain.
        drawn = {name for of_runs in curves.values() for of_run in of_runs for name in of_run}
        colors = {domain: PALETTE[index % len(PALETTE)] for index, domain in enumerate(sorted(drawn))}
        for column, run in enumerate(runs):
            by_average = ranges[column]
            averaged = by_average.get(average) if average else next(iter(by_average.values()), None)
            for row, metric in enumerate(metrics):
                axes = panels[row][column]
                _panel(axes, run, metric, curves[metric][column], averaged, colors)
                if row == 0:
                    _mark_range(axes, averaged)
                    axes.set_title(f"target: {run.target}", loc="left", pad=18, color=INK)
                if column == 0:
                    axes.set_ylabel(METRICS.get(metric, metric))
                if row == len(metrics) - 1:
                    axes.set_xlabel("Step")
        add_legend(figure, order=lambda label: (label in ("mean", "threshold", RANGE_LABEL), label))
        return figure


def save_valley_figures(
    results: Sequence[DatasetResults],
    directory: Path,
    formats: Sequence[str],
) -> list[Path]:
    """Write one figure for each dataset, algorithm and trial, with a column per target; return the paths.

    Args:
        results: The runs of each dataset and the selection among them.
        directory: Directory of the figures.
        formats: Formats of the files.
    """
    written = []
    for each in results:
        for (algorithm, trial), runs in group_by(shown_runs(each), lambda run: (run.algorithm, run.trial)).items():
            stem = file_stem([f"valley-{each.dataset}-{algorithm}-trial{trial}"])
            written += save_figures(valley_figure(runs), directory / stem, formats)
    return written


def shown_runs(results: DatasetResults) -> list[RunData]:
    """Return one run for each algorithm, target and trial: the selected one, or else the one with the most steps."""
    runs = [run for run in results.members if len(run.targets) < 2]
    groups = group_by(runs, lambda run: (run.algorithm, run.target, run.trial))
    ordered = sorted(groups.items(), key=lambda item: (not is_erm(item[0][0]), item[0]))
    return [_selected_run(results, members) or _longest(members) for _, members in ordered]


def _longest(runs: Sequence[RunData]) -> RunData:
    steps = last_steps(runs)
    return runs[steps.index(max(steps))]


def _selected_run(results: DatasetResults, candidates: Sequence[RunData]) -> RunData | None:
    """Return the run that was selected among those of a target and trial, preferably for the average that is drawn."""
    if len(candidates) == 1:
        return candidates[0]
    drawn = {name for by_average in valleys(candidates) for name in list(by_average)[:1]}
    paths = {run.path: run for run in candidates}
    rows = results.results
    rows = rows[((rows.target == candidates[0].target) & (rows.trial == candidates[0].trial)).to_numpy()]
    selected = [(row.weights not in drawn, results.runs[row.run].path) for row in rows.itertuples()]
    selected = [each for each in selected if each[1] in paths]
    return paths[min(selected, key=lambda each: each[0])[1]] if selected else None


def _panel(
    axes: Axes, run: RunData, metric: str, curves: Curves, averaged: Valley | None, colors: dict[str, str]
) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    scale = 100.0 if metric == "accuracy" else 1.0
    if averaged is not None and averaged.start is not None and averaged.end is not None:
        axes.axvspan(averaged.start, averaged.end, color=RANGE, alpha=0.10, linewidth=0, zorder=0, label=RANGE_LABEL)
        for step in (averaged.start, averaged.end):
            axes.axvline(step, color=RANGE, linewidth=1.0, linestyle=(0, (2, 2)), zorder=1)
    # A line through a single evaluation would be invisible.
    marker = "o" if all(len(curve) == 1 for curve in curves.values()) else None
    for domain, curve in curves.items():
        shown = [scale * value for value in curve.values()]
        axes.plot(list(curve), shown, color=colors[domain], marker=marker, markersize=4, label=domain, zorder=3)
    if len(curves) > 1:
        mean = mean_curve(curves.values())
        shown = [scale * value for value in mean.values()]
        axes.plot(list(mean), shown, color=INK, linewidth=2.0, marker=marker, label="mean", zorder=2.5)
    if metric == "loss" and averaged is not None and averaged.threshold is not None:
        axes.axhline(averaged.threshold, color=INK, linewidth=1.0, linestyle=(0, (5, 3)), label="threshold", zorder=2)
    total = run.config.get("steps")
    last = max((step for curve in curves.values() for step in curve), default=1)
    right = max(last, total if isinstance(total, int) else 0)
    axes.set_xlim(-MARGIN * right, (1 + MARGIN) * right)
    axes.grid(axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
    _fit_values(axes, list(curves.values()), metric, averaged)


def _fit_values(axes: Axes, curves: Sequence[ByStep], metric: str, averaged: Valley | None) -> None:
    """Fit the axis of losses to the steps after the first tenth, because the initial fall would flatten the valley."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

    axes.yaxis.set_major_locator(MaxNLocator(5))
    points = [point for curve in curves for point in curve.items() if math.isfinite(point[1])]
    last = max((step for step, _ in points), default=0)
    late = [value for step, value in points if step >= 0.1 * last]
    if not late:
        return
    if metric == "accuracy":
        low, high = min(value for _, value in points), max(value for _, value in points)
        margin = 0.06 * (high - low or 0.1)
        axes.set_ylim(100 * max(-MARGIN, low - margin), 100 * min(1 + MARGIN, high + margin))
        return
    if averaged is not None and averaged.threshold is not None:
        late.append(1.1 * averaged.threshold)
    low, high = min(value for _, value in points), max(late)
    if low > 0 and high > DIVERGED * statistics.median(late):
        axes.set_yscale("log")
        axes.set_ylim(low / 1.5, 1.5 * high)
        axes.yaxis.set_major_locator(LogLocator(numticks=6))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _power(value)))
        axes.minorticks_off()
    else:
        axes.set_ylim(-MARGIN * high, 1.06 * high)


def _power(value: float) -> str:
    return f"{value:g}" if 1e-3 <= value < 1e4 else f"1e{round(math.log10(value))}"


def _mark_range(axes: Axes, averaged: Valley | None) -> None:
    """Write t_s and t_e above the panel in one label, because two would overlap when the range is short."""
    if averaged is None or averaged.start is None or averaged.end is None:
        return
    left, right = axes.get_xlim()
    middle = ((averaged.start + averaged.end) / 2 - left) / ((right - left) or 1)
    # The label is centered over the range, unless it would leave the panel.
    x, align = (0.0, "left") if middle <= 0.5 else (1.0, "right")
    if 0.3 <= middle <= 0.7:
        x, align = middle, "center"
    axes.text(
        x,
        1.03,
        f"$t_s$ = {averaged.start:,}   $t_e$ = {averaged.end:,}",
        transform=axes.transAxes,
        ha=align,
        va="bottom",
        color=RANGE,
        fontsize=8.5,
    )
