"""Heat maps of differences: a cell for each pair, with claims outlined and the runs' own places marked."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from swad.testbed.results.figures.style import INK, add_legend, figure_style, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = "RdBu"
"""White where there is no difference, blue where it is positive."""
MIN_LIMIT = 3.0
"""The smallest end of the color scale, in points."""
TICKS = (0.5, 1, 3, 10, 30)
MAX_TICKS = 8

Cell = tuple[int, int]
"""Column and row."""


@dataclass(frozen=True)
class Mark:
    """A marked cell."""

    label: str
    cell: Cell
    marker: str


@dataclass(frozen=True)
class HeatMap:
    """One panel."""

    title: str
    cells: Mapping[Cell, float]
    """Differences; pairs that do not exist are left out."""
    columns: Sequence[str]
    rows: Sequence[str]
    outlined: Collection[Cell] = ()
    """Cells whose difference is shown."""
    dotted: Collection[Cell] = ()
    """Cells whose difference is shown only without a correction."""
    marks: Sequence[Mark] = ()
    runs: Sequence[tuple[float, float]] = field(default=())
    """Where the own average of every run lies."""


def heat_map_figure(panels: Sequence[HeatMap], *, title: str, x: str, y: str, label: str, runs: str = "") -> Figure:
    """Draw panels side by side with one color scale.

    Args:
        panels: The panels.
        title: Title above all of them.
        x: Label of the horizontal axes.
        y: Label of the vertical axes.
        label: Label of the color scale.
        runs: What the places of runs are; without any, no corner is free, and the legend is below.
    """
    from matplotlib.cm import ScalarMappable

    with figure_style():
        figure = new_figure(1.3 + 3.9 * len(panels), 4.5)
        figure.set_layout_engine("constrained", h_pad=0.06)
        grid = figure.subplots(1, len(panels), squeeze=False)[0]
        colors = _color_scale([value for panel in panels for value in panel.cells.values()])
        for axes, panel in zip(grid, panels, strict=True):
            _draw_panel(axes, panel, colors, runs)
            axes.set_xlabel(x)
            axes.set_ylabel(y)
        bar = figure.colorbar(ScalarMappable(colors, COLORS), ax=list(grid), shrink=0.8, pad=0.02, aspect=26)
        ticks = [sign * size for sign in (-1, 1) for size in TICKS if size <= colors.vmax]
        bar.set_ticks([0, *ticks], labels=["0", *(f"{tick:+g}".replace("-", "−") for tick in ticks)], minor=False)
        bar.minorticks_off()
        bar.outline.set_visible(False)
        bar.set_label(label)
        if not runs:
            add_legend(figure)
        else:
            # Below the diagonal there are no windows, so there is room; with a few segments the legend covers some.
            handles = {t: mark for axes in grid for mark, t in zip(*axes.get_legend_handles_labels(), strict=True)}
            style = {"fontsize": 7.5, "handlelength": 1.4, "borderaxespad": 0, "frameon": True, "edgecolor": "none"}
            grid[-1].legend(handles.values(), handles, loc="lower right", **style)
        figure.suptitle(title, fontsize=10)
    return figure


def _color_scale(points: Sequence[float]) -> Any:
    """Return a scale that is linear up to one point and logarithmic beyond.

    Early windows are tens of points worse. A linear scale would hide all others, and one that is cut off would show
    differences of a tenth of a point in strong colors.
    """
    from matplotlib.colors import SymLogNorm

    limit = max(MIN_LIMIT, *map(abs, points))
    return SymLogNorm(linthresh=1, linscale=1.2, vmin=-limit, vmax=limit)


def _draw_panel(axes: Axes, panel: HeatMap, colors: Any, runs: str) -> None:
    n_columns, n_rows = len(panel.columns), len(panel.rows)
    grid = [[panel.cells.get((column, row), math.nan) for column in range(n_columns)] for row in range(n_rows)]
    axes.imshow(grid, cmap=COLORS, norm=colors, origin="lower", interpolation="nearest")
    _outline(axes, panel.outlined)
    if panel.dotted:
        dot_size = (140 / n_columns) ** 2 / 20  # a fifth of a cell wide
        xs, ys = zip(*panel.dotted, strict=True)
        axes.scatter(xs, ys, s=dot_size, color=INK, linewidths=0, label="difference shown (tested alone)")
    for mark in panel.marks:
        style: dict[str, Any] = {"facecolors": "none", "edgecolors": INK, "linewidths": 1.1}
        axes.scatter(*mark.cell, s=34, marker=mark.marker, label=mark.label, **style)
    if panel.runs:
        _mark_runs(axes, panel.runs, runs)
    axes.set_title(panel.title)
    step_x, step_y = math.ceil(n_columns / MAX_TICKS), math.ceil(n_rows / MAX_TICKS)
    starts, ends = range(0, n_columns, step_x), range(n_rows - 1, -1, -step_y)
    axes.set_xticks(list(starts), [panel.columns[k] for k in starts])
    axes.set_yticks(list(ends), [panel.rows[k] for k in ends])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _outline(axes: Axes, cells: Collection[Cell]) -> None:
    """Draw a line around some cells, without lines between them."""
    from matplotlib.collections import LineCollection

    lines = []
    for x, y in cells:
        sides = {
            (x - 1, y): [(x - 0.5, y - 0.5), (x - 0.5, y + 0.5)],
            (x + 1, y): [(x + 0.5, y - 0.5), (x + 0.5, y + 0.5)],
            (x, y - 1): [(x - 0.5, y - 0.5), (x + 0.5, y - 0.5)],
            (x, y + 1): [(x - 0.5, y + 0.5), (x + 0.5, y + 0.5)],
        }
        lines += [line for neighbor, line in sides.items() if neighbor not in cells]
    if lines:
        axes.add_collection(LineCollection(lines, colors=INK, linewidths=1.3, capstyle="projecting"))
        axes.plot([], [], color=INK, linewidth=1.3, label="difference shown (corrected)")


def _mark_runs(axes: Axes, places: Sequence[tuple[float, float]], label: str) -> None:
    """Mark the place of every run, and the median of all. Runs with the same place stand side by side."""
    seen: Counter[tuple[float, float]] = Counter()
    xs, ys = [], []
    for x, y in places:
        angle, radius = 2.4 * seen[x, y], 0.16 * math.sqrt(seen[x, y])  # a spiral of sunflower seeds
        seen[x, y] += 1
        xs.append(x + radius * math.cos(angle))
        ys.append(y + radius * math.sin(angle))
    style: dict[str, Any] = {"facecolors": "#ffd24d", "edgecolors": INK}
    if len(places) > 1:
        axes.scatter(xs, ys, s=14, linewidths=0.6, label=f"{label} of a run", zorder=3, **style)
    x, y = (median(place[axis] for place in places) for axis in (0, 1))
    median_label = f"{label}{', median' if len(places) > 1 else ''}"
    axes.scatter(x, y, s=150, marker="*", linewidths=0.9, label=median_label, zorder=4, **style)
