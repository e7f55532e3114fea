"""Heat maps of all windows of a training: accuracy minus that of SWAD, with the windows that SWAD chose marked."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from swad.testbed.results.comparisons import Comparison
from swad.testbed.results.figures.style import INK, figure_style, new_figure, require_matplotlib
from swad.testbed.results.windows import LAST_SHARE, RunWindows, Window, WindowGroup
from swad.util.names import counted
from swad.util.statistics import mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = "RdBu"
"""White where a window is as accurate as SWAD, blue where it is better."""
MIN_LIMIT = 3.0
"""The smallest end of the color scale, in points."""
TICKS = (0.5, 1, 3, 10, 30)
MAX_TICKS = 8
TITLES = {"target": "Held-out target", "validation": "Source validation"}


def windows_figure(group: WindowGroup, compared: Mapping[str, Mapping[Window, Comparison]]) -> Figure:
    """Draw the mean difference of every window to the runs' own average, one panel for each side.

    Args:
        group: The runs.
        compared: The comparisons of all windows by side; see `WindowGroup.compare_windows`.
    """
    require_matplotlib()
    from matplotlib.cm import ScalarMappable

    points = [100 * comparison.difference for windows in compared.values() for comparison in windows.values()]
    with figure_style():
        figure = new_figure(1.3 + 3.9 * len(compared), 4.5)
        figure.set_layout_engine("constrained", h_pad=0.06)
        panels = figure.subplots(1, len(compared), squeeze=False)[0]
        colors = _color_scale(points)
        for axes, (side, windows) in zip(panels, compared.items(), strict=True):
            _draw_panel(axes, group, side, windows, colors)
        bar = figure.colorbar(ScalarMappable(colors, COLORS), ax=list(panels), shrink=0.8, pad=0.02, aspect=26)
        ticks = [sign * size for sign in (-1, 1) for size in TICKS if size <= colors.vmax]
        bar.set_ticks([0, *ticks], labels=["0", *(f"{tick:+g}".replace("-", "−") for tick in ticks)], minor=False)
        bar.minorticks_off()
        bar.outline.set_visible(False)
        bar.set_label(f"Accuracy minus that of {group.baseline}, points")
        # Below the diagonal there are no windows, so there is room; with a few segments the legend covers some.
        handles = {text: mark for axes in panels for mark, text in zip(*axes.get_legend_handles_labels(), strict=True)}
        style = {"fontsize": 7.5, "handlelength": 1.4, "borderaxespad": 0, "frameon": True, "edgecolor": "none"}
        panels[-1].legend(handles.values(), handles, loc="lower right", **style)
        trials = len({run.run.trial for run in group.runs})
        over = counted(len(group.runs), "run") + (f", {trials} trials" if trials > 1 else "")
        figure.suptitle(f"{group.name}: all windows ({over})", fontsize=10)
    return figure


def _color_scale(points: Sequence[float]) -> Any:
    """Return a scale that is linear up to one point and logarithmic beyond.

    Early windows are tens of points worse. A linear scale would hide all others, and one that is cut off would show
    differences of a tenth of a point in strong colors.
    """
    from matplotlib.colors import SymLogNorm

    limit = max(MIN_LIMIT, *map(abs, points))
    return SymLogNorm(linthresh=1, linscale=1.2, vmin=-limit, vmax=limit)


def _draw_panel(axes: Axes, group: WindowGroup, side: str, windows: Mapping[Window, Comparison], colors: Any) -> None:
    n = len(group.segments)
    points = {window: 100 * comparison.difference for window, comparison in windows.items()}
    grid = [[points.get((begin, end), math.nan) for begin in range(n)] for end in range(n)]
    axes.imshow(grid, cmap=COLORS, norm=colors, origin="lower", interpolation="nearest")
    _outline(axes, [window for window, comparison in windows.items() if comparison.is_clear])
    alone = [window for window, each in windows.items() if each.is_clear_alone and not each.is_clear]
    if alone:
        dot_size = (140 / n) ** 2 / 20  # a fifth of a cell wide
        xs, ys = zip(*alone, strict=True)
        axes.scatter(xs, ys, s=dot_size, color=INK, linewidths=0, label="difference shown (tested alone)")
    _mark_windows(axes, group, side)
    _mark_runs(axes, group)
    accuracy = next(iter(windows.values())).baseline_accuracy
    axes.set_title(f"{TITLES[side]} ({group.baseline}: {100 * accuracy:.1f} %)")
    every = math.ceil(n / MAX_TICKS)
    starts, ends = range(0, n, every), range(n - 1, -1, -every)
    axes.set_xticks(list(starts), [f"{group.segments[k][0] - 1:,}" for k in starts])
    axes.set_yticks(list(ends), [f"{group.segments[k][1]:,}" for k in ends])
    axes.set_xlabel("Window starts after step")
    axes.set_ylabel("Window ends with step")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _outline(axes: Axes, windows: Sequence[Window]) -> None:
    """Draw a line around the cells of some windows, without lines between them."""
    from matplotlib.collections import LineCollection

    inside = set(windows)
    lines = []
    for x, y in windows:
        sides = {
            (x - 1, y): [(x - 0.5, y - 0.5), (x - 0.5, y + 0.5)],
            (x + 1, y): [(x + 0.5, y - 0.5), (x + 0.5, y + 0.5)],
            (x, y - 1): [(x - 0.5, y - 0.5), (x + 0.5, y - 0.5)],
            (x, y + 1): [(x - 0.5, y + 0.5), (x + 0.5, y + 0.5)],
        }
        lines += [line for neighbor, line in sides.items() if neighbor not in inside]
    if lines:
        axes.add_collection(LineCollection(lines, colors=INK, linewidths=1.3, capstyle="projecting"))
        axes.plot([], [], color=INK, linewidth=1.3, label="difference shown (corrected)")


def _mark_windows(axes: Axes, group: WindowGroup, side: str) -> None:
    """Mark the window with the best mean on this side, and that of SWA."""
    means = {window: mean(run.windows[side][window] for run in group.runs) for window in group.runs[0].windows[side]}
    best = max(means, key=lambda window: (means[window], group.runs[0].n_updates(window)))
    for window, marker, label in ((best, "D", "best in this panel"), (group.dense_swa, "s", LAST_SHARE)):
        axes.scatter(*window, s=34, marker=marker, facecolors="none", edgecolors=INK, linewidths=1.1, label=label)


def _mark_runs(axes: Axes, group: WindowGroup) -> None:
    """Mark the average of every run, and the median of all. Runs with the same window stand side by side."""
    places = [_place(run) for run in group.runs]
    seen: Counter[tuple[float, float]] = Counter()
    xs, ys = [], []
    for x, y in places:
        angle, radius = 2.4 * seen[x, y], 0.16 * math.sqrt(seen[x, y])  # a spiral of sunflower seeds
        seen[x, y] += 1
        xs.append(x + radius * math.cos(angle))
        ys.append(y + radius * math.sin(angle))
    style: dict[str, Any] = {"facecolors": "#ffd24d", "edgecolors": INK}
    if len(places) > 1:
        axes.scatter(xs, ys, s=14, linewidths=0.6, label=f"{group.baseline} of a run", zorder=3, **style)
    x, y = (median(place[axis] for place in places) for axis in (0, 1))
    label = f"{group.baseline}{', median' if len(places) > 1 else ''}"
    axes.scatter(x, y, s=150, marker="*", linewidths=0.9, label=label, zorder=4, **style)


def _place(run: RunWindows) -> tuple[float, float]:
    """Return where the run's average lies between the windows of whole segments."""
    import numpy as np

    starts, ends = zip(*run.segments, strict=True)
    numbers = range(len(run.segments))
    return float(np.interp(run.start, starts, numbers)), float(np.interp(run.end, ends, numbers))
