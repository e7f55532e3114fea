"""Which weights SWA and SWAD average, as in the paper's Figure 2, but measured.

Above, the validation loss over training with the steps that each method takes. Below, the loss on a plane with the
trajectory projected onto it, and the weights that each method takes in color.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from swad.testbed.results.figures.style import FAINT, INK, PALETTE, RANGE, add_legend, figure_style, new_figure
from swad.testbed.results.figures.surfaces import LABEL_SIZE, MARKER_INK, draw_contours, surface_markers
from swad.testbed.results.labels import weights_label
from swad.testbed.results.measured import SIDES
from swad.testbed.results.surfaces import RunSurface
from swad.testbed.results.training_curves import Valley, mean_curve, source_curves, valleys
from swad.util.names import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 3.3
"""Width of a panel in inches."""


def sampling_figure(surface: RunSurface, sampled: Mapping[str, Sequence[int]]) -> Figure:
    """Draw a column for each average: its steps on the loss curve, then its weights on the loss surface.

    Args:
        surface: The plane, with snapshots of the trajectory and the averages as points.
        sampled: The steps that each average takes, by its name.
    """
    markers = surface_markers({weights_label(surface.run, name) for name in sampled})
    with figure_style():
        ratio = (surface.ys[-1] - surface.ys[0]) / (surface.xs[-1] - surface.xs[0])
        heights = [1.9, *([min(1.0, max(0.35, ratio)) * WIDTH] * len(SIDES))]
        figure = new_figure((WIDTH + 0.7) * len(sampled), sum(heights) + 1.2)
        panels = figure.subplots(1 + len(SIDES), len(sampled), squeeze=False, height_ratios=heights)
        for column, (name, steps) in enumerate(sampled.items()):
            label = weights_label(surface.run, name)
            marker, index = markers[label]
            curve, *planes = (row[column] for row in panels)
            _draw_curve(curve, surface, steps, PALETTE[index], label)
            curve.set_title(f"{label}: {counted(len(steps), 'weight')}", loc="left")
            for axes, side in zip(planes, SIDES, strict=True):
                draw_contours(axes, surface, side)
                _draw_trajectory(axes, surface, steps, PALETTE[index], label)
                axes.plot(
                    *surface.positions[name],
                    marker,
                    color=PALETTE[index],
                    markersize=11,
                    markeredgecolor=MARKER_INK,
                    label=f"average of {label}",
                    zorder=6,
                )
                axes.set_title(SIDES[side], loc="left", fontsize=9)
                axes.set_ylabel("distance from that line", fontsize=LABEL_SIZE)
                axes.set_xlabel(_direction(surface), fontsize=LABEL_SIZE)
        panels[0][0].set_ylabel("validation loss")
        add_legend(figure)
        return figure


def _direction(surface: RunSurface) -> str:
    """Name the horizontal axis."""
    first, second = (int(name.removeprefix("step-")) for name in surface.settings["corners"][:2])
    return f"distance from step {first:,} toward step {second:,}"


def _draw_curve(axes: Axes, surface: RunSurface, steps: Sequence[int], color: str, label: str) -> None:
    import numpy as np

    run = surface.run
    curve = mean_curve(source_curves([run], "loss")[0].values())
    xs, ys = list(curve), list(curve.values())
    axes.plot(xs, ys, color=INK, label="validation loss", zorder=3)
    averaged = valleys([run])[0].get("swad")
    if averaged is not None:
        _draw_regions(axes, averaged, xs[-1])
    # Between two evaluations the loss is not known, so weights are drawn on the line that connects them.
    at = [float(value) for value in np.interp(steps, xs, ys)]
    if len(steps) > len(xs):
        axes.plot(steps, at, color=color, linewidth=4, alpha=0.8, zorder=4, label=f"taken by {label}")
    else:
        axes.plot(steps, at, "o", color=color, markersize=5, zorder=5, label=f"taken by {label}")
    axes.set_xlabel("Step")
    axes.set_ylim(0.9 * min(ys), min(max(ys), 2.2 * min(ys)))
    axes.grid(axis="y")


def _draw_regions(axes: Axes, averaged: Valley, last: int) -> None:
    """Shade the loss valley, and what comes after it."""
    if averaged.start is None or averaged.end is None:
        return
    axes.axvspan(averaged.start, averaged.end, color=RANGE, alpha=0.12, linewidth=0, zorder=0, label="valley of SWAD")
    if averaged.end < last:
        axes.axvspan(averaged.end, last, color=FAINT, alpha=0.15, linewidth=0, zorder=0, label="overfitting")
    if averaged.threshold is not None:
        axes.axhline(averaged.threshold, color=INK, linewidth=0.8, linestyle=(0, (5, 3)), label="threshold", zorder=2)


def trajectory(surface: RunSurface) -> dict[int, tuple[float, float]]:
    """Return the coordinates of the snapshots of the trajectory by their step."""
    points = sorted(surface.positions.items())
    return {int(name.removeprefix("step-")): point for name, point in points if name.startswith("step-")}


def _draw_trajectory(axes: Axes, surface: RunSurface, steps: Sequence[int], color: str, label: str) -> None:
    points = trajectory(surface)
    xs, ys = zip(*points.values(), strict=True)
    axes.plot(xs, ys, "-", color=MARKER_INK, linewidth=0.8, zorder=4, label="trajectory of ERM")
    low, high = min(steps), max(steps)
    for step, point in points.items():
        taken = low <= step <= high
        axes.plot(
            *point,
            "o",
            color=color if taken else "#ffffff",
            markeredgecolor=MARKER_INK,
            markeredgewidth=0.7,
            markersize=5.5,
            zorder=5,
        )
    for step in (min(points), max(points)):
        axes.annotate(
            f"{step:,}",
            points[step],
            (4, 4),
            textcoords="offset points",
            fontsize=7,
            color=MARKER_INK,
            zorder=7,
        )
