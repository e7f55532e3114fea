"""Figures of loss surfaces: contours on planes as in the paper's Figure 4, and losses along lines."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from swad.testbed.results.figures.style import FAINT, PALETTE, add_legend, figure_style, new_figure
from swad.testbed.results.labels import run_titles, weights_label
from swad.testbed.results.measured import SIDES
from swad.testbed.results.surfaces import CORNERS, MEAN, RunSurface

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEAN_LABEL = "mean of 1, 2, 3"
OTHER_MARKERS = "ov<>ph"
SURFACE_COLORS = "viridis_r"
LEVELS = 14
MARKER_INK = "#101010"
"""Edge color of markers. It is not a color of the page, because the ground below them is the same on a dark page."""
LABEL_LENGTH = 1.5
"""Inches that the label of an axis needs in one line."""
LABEL_SIZE = 8
WIDTH = 2.3
"""Inches of a panel."""


def surface_figure(surfaces: Sequence[RunSurface]) -> Figure:
    """Draw contours of the loss on the plane through three weights: a column for each run, seen above unseen.

    Numbered triangles are the three weights, the cross is their mean, and averages are projected onto the plane. Both
    axes are distances between weights: along the line from the first to the second, and from that line.
    """
    sides = [side for side in SIDES if any(side in surface.grids for surface in surfaces)]
    markers = surface_markers({weights_label(s.run, name) for s in surfaces for name in s.projected})
    titles = run_titles([surface.run for surface in surfaces])
    corner_labels = [corner_label(surface) for surface in surfaces]
    if len(set(corner_labels)) > 1:
        corner_labels = [f"{label}, target {title}" for label, title in zip(corner_labels, titles, strict=True)]
    with figure_style():
        shape = (len(sides), len(surfaces))
        # Both axes have the same scale, so a panel has the proportions of its plane.
        ratios = [(surface.ys[-1] - surface.ys[0]) / (surface.xs[-1] - surface.xs[0]) for surface in surfaces]
        height = WIDTH * min(1.3, max(0.26, *ratios)) + 0.6
        figure = new_figure((WIDTH + 0.95) * shape[1], height * shape[0] + 0.7)
        panels = figure.subplots(*shape, squeeze=False)
        for column, surface in enumerate(surfaces):
            for row, side in enumerate(sides):
                axes = panels[row][column]
                if side not in surface.grids:
                    axes.set_axis_off()
                    continue
                draw_contours(axes, surface, side, short=height <= LABEL_LENGTH)
                _draw_points(axes, surface, markers, corner_labels[column])
                title = f"target: {titles[column]}\n" if row == 0 else ""
                axes.set_title(f"{title}{SIDES[side]}", loc="left", fontsize=9)
                if row == len(sides) - 1:
                    axes.set_xlabel("distance from 1 toward 2", fontsize=LABEL_SIZE)
                if column == 0:
                    separator = "\n" if height <= LABEL_LENGTH else " "
                    axes.set_ylabel(f"distance from{separator}line 1–2", fontsize=LABEL_SIZE)
        add_legend(figure)
        return figure


def corner_label(surface: RunSurface) -> str:
    """Explain the numbers of a plane's corners."""
    steps = [int(name.removeprefix("step-")) for name in surface.corners if name.startswith("step-")]
    if len(steps) < len(surface.corners):
        names = [weights_label(surface.run, name) for name in surface.corners]
        return ", ".join(f"{number}: {name}" for number, name in zip(CORNERS, names, strict=False))
    numbers = ", ".join(CORNERS[: len(steps)])
    label = weights_label(surface.run, None)
    return f"{numbers}: {label} after {', '.join(f'{step:,}' for step in steps)} steps"


def draw_contours(axes: Axes, surface: RunSurface, side: str, *, short: bool = False) -> None:
    """Draw the losses of one side with their color bar; `short` shortens its label."""
    import numpy as np
    from matplotlib.colors import LogNorm, Normalize

    values = np.array(surface.grids[side], dtype=float)
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if high <= low:
        low, high = low - 0.5, high + 0.5
    # Training losses span orders of magnitude, and equal steps would show a single ring.
    steep = low > 0 and high / low > 10
    levels = np.geomspace(low, high, LEVELS) if steep else np.linspace(low, high, LEVELS)
    levels[0], levels[-1] = low, high
    grid = np.ma.masked_invalid(values)
    scale = LogNorm(low, high) if steep else Normalize(low, high)
    filled = axes.contourf(surface.xs, surface.ys, grid, levels, cmap=SURFACE_COLORS, norm=scale)
    axes.contour(surface.xs, surface.ys, grid, levels, colors="white", linewidths=0.4, alpha=0.6)
    axes.set_aspect("equal", adjustable="box", anchor="N")  # titles of a row stay level if the planes' heights differ
    axes.locator_params(nbins=4)
    axes.tick_params(length=2, labelsize=7)
    for spine in axes.spines.values():
        spine.set_visible(False)
    # An inset follows the height of the panel, which the equal aspect may reduce; a separate axes would not.
    bar = axes.figure.colorbar(filled, cax=axes.inset_axes((1.04, 0, 0.05, 1)))
    ticks = [float(levels[index]) for index in (0, LEVELS // 3, 2 * LEVELS // 3, LEVELS - 1)]
    bar.set_ticks(ticks, labels=distinct_labels(ticks))
    bar.ax.minorticks_off()
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=7, length=0)
    bar.set_label(("loss\n(log scale)" if short else "loss (log scale)") if steep else "loss", fontsize=LABEL_SIZE)


def distinct_labels(values: Sequence[float]) -> list[str]:
    """Format numbers with as few digits as distinguish neighbors, but at least two.

    >>> distinct_labels([0.02, 0.5, 12.0]), distinct_labels([1.021, 1.027, 1.034])
    (['0.02', '0.5', '12'], ['1.021', '1.027', '1.034'])
    """
    gaps = [abs(b - a) for a, b in pairwise(values)]
    nearest = [min(sides) for sides in zip([*gaps[:1], *gaps], [*gaps, *gaps[-1:]], strict=True)]
    for digits in range(2, 8):
        labels = [f"{value:.{digits}g}" for value in values]
        if all(abs(float(t) - v) <= gap / 5 for t, v, gap in zip(labels, values, nearest, strict=True)):
            break
    return labels


def surface_markers(methods: Collection[str]) -> dict[str, tuple[str, int]]:
    """Return a marker and an index in the palette for every method; the usual ones have the same in every figure.

    >>> surface_markers(["SAM + SWAD", "SWAD"])
    {'SWAD': ('*', 1), 'SAM + SWAD': ('o', 6)}
    """
    usual = {"SWAD": ("*", 1), "SWA": ("P", 5), "EMA": ("D", 4), "SMA": ("s", 3)}
    others = sorted(set(methods) - set(usual))
    markers = {name: marker for name, marker in usual.items() if name in methods}
    return markers | {name: (OTHER_MARKERS[i % 6], (6, 7, 2, 0, 3)[i % 5]) for i, name in enumerate(others)}


def _draw_points(axes: Axes, surface: RunSurface, markers: Mapping[str, tuple[str, int]], corner_text: str) -> None:
    common: dict[str, Any] = {"linestyle": "none", "markeredgecolor": MARKER_INK, "clip_on": False}
    corners = list(surface.corners.values())
    xs, ys = zip(*corners, strict=True)
    axes.plot(xs, ys, marker="^", markersize=12, markerfacecolor="#ffffff", label=corner_text, zorder=5, **common)
    for number, corner in zip(CORNERS, corners, strict=True):
        # The center of a triangle's area is below the middle of its height.
        axes.annotate(
            number,
            corner,
            (0, -1.6),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=6.5,
            color=MARKER_INK,
            zorder=5.5,
        )
    axes.plot(*surface.mean, marker="x", markersize=7, markeredgewidth=1.8, label=MEAN_LABEL, zorder=6, **common)
    for name, (x, y, _) in surface.projected.items():
        label = weights_label(surface.run, name)
        marker, color = markers[label]
        axes.plot(
            x,
            y,
            marker=marker,
            markersize=9 if marker == "*" else 6,
            label=label,
            markerfacecolor=PALETTE[color],
            markeredgewidth=0.7,
            zorder=5,
            **common,
        )


def line_figure(surfaces: Sequence[RunSurface]) -> Figure:
    """Draw the loss on the straight line between two weights, seen and unseen: a panel for each run.

    Markers show the mean of the two and the averages near the line, at their own loss.
    """
    markers = surface_markers({weights_label(s.run, name) for s in surfaces for name in s.projected})
    with figure_style():
        figure = new_figure(3.4 * len(surfaces) + 0.3, 2.9)
        panels = figure.subplots(1, len(surfaces), squeeze=False)[0]
        titles = run_titles([surface.run for surface in surfaces])
        for axes, surface, title in zip(panels, surfaces, titles, strict=True):
            _draw_line(axes, surface, markers)
            axes.set_title(f"target: {title}", loc="left")
        add_legend(figure)
        return figure


def _draw_line(axes: Axes, surface: RunSurface, markers: Mapping[str, tuple[str, int]]) -> None:
    sides = list(zip(PALETTE, surface.grids, strict=False))
    for color, side in sides:
        axes.plot(surface.xs, surface.grids[side][0], color=color, label=SIDES[side])
    for name in (MEAN, *surface.projected):
        if not surface.xs[0] <= surface.points[name][0] <= surface.xs[-1]:
            continue
        label = "mean of the two" if name == MEAN else weights_label(surface.run, name)
        marker = "x" if name == MEAN else markers[label][0]
        size = 10 if marker == "*" else 6
        for color, side in sides:
            axes.plot(
                surface.points[name][0], surface.losses[name][side], marker, color=color, markersize=size, zorder=5
            )
        axes.plot([], [], marker, color=FAINT, markersize=size, label=label)  # one legend entry for both sides
    first, last = (weights_label(surface.run, weights) for weights in surface.corners)
    axes.set_xticks([0.0, 0.5, 1.0], [first, "", last])
    for x in (0.0, 1.0):
        axes.axvline(x, color=FAINT, linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
    axes.set_ylim(bottom=-0.02 * axes.get_ylim()[1])  # markers at 0 are not cut off
    axes.grid(axis="y")
    axes.set_xlabel("position on the line through both weights")
    axes.set_ylabel("loss")
