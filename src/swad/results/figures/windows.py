"""Heat maps of all windows of a training: accuracy minus that of SWAD, with the windows that SWAD chose marked."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from swad.results.comparisons import Comparison
from swad.results.figures.style import INK, add_legend, figure_style, require_matplotlib
from swad.results.window_tables import SIDE_NAMES, is_single
from swad.results.windows import DENSE_SWA, RunWindows, Window, WindowGroup
from swad.util.statistics import mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = "RdBu"
"""White where a window is as accurate as SWAD, blue where it is better."""
MIN_LIMIT = 0.5
"""The smallest end of the color scale in points; smaller differences are noise."""
MAX_TICKS = 8


def windows_figure(group: WindowGroup, compared: Mapping[str, Mapping[Window, Comparison]]) -> Figure:
    """Draw the mean difference of every window to the runs' own average, one panel for each side.

    Args:
        group: The runs.
        compared: The comparisons of all windows by side; see `WindowGroup.compare_windows`.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    width = 0.9 + 4.3 * len(compared)
    with figure_style():
        figure = Figure(figsize=(width, 4.9), layout="constrained")
        panels = figure.subplots(1, len(compared), squeeze=False)[0]
        for axes, (side, windows) in zip(panels, compared.items(), strict=True):
            _draw_panel(axes, group, side, windows)
        add_legend(figure, list(panels), width)
        trials = len({run.trial for run in group.runs})
        counted = f"{len(group.runs)} runs" + (f", {trials} trials" if trials > 1 else "")
        figure.suptitle(f"{group.name}: every window of the training ({counted})", fontsize=10)
    return figure


def _draw_panel(axes: Axes, group: WindowGroup, side: str, windows: Mapping[Window, Comparison]) -> None:
    n = len(group.segments)
    points = {window: 100 * comparison.difference for window, comparison in windows.items()}
    limit = color_limit(list(points.values()))
    grid = [[points.get((begin, end), math.nan) for begin in range(n)] for end in range(n)]
    image = axes.imshow(grid, cmap=COLORS, vmin=-limit, vmax=limit, origin="lower", interpolation="nearest")
    extend = "min" if min(points.values()) < -limit else "neither"
    axes.figure.colorbar(
        image, ax=axes, shrink=0.85, extend=extend, label=f"Accuracy minus that of {group.baseline}, points"
    )
    _outline(axes, [window for window, comparison in windows.items() if comparison.is_clear])
    single = [window for window, comparison in windows.items() if is_single(comparison) and not comparison.is_clear]
    if single:
        xs, ys = zip(*single, strict=True)
        axes.scatter(xs, ys, s=2.5, color=INK, linewidths=0, label="shown by itself, not corrected")
    _mark_windows(axes, group, side)
    _mark_runs(axes, group)
    accuracy = next(iter(windows.values())).baseline_accuracy
    axes.set_title(f"{SIDE_NAMES[side].capitalize()} ({group.baseline}: {100 * accuracy:.1f} %)")
    ticks = range(0, n, math.ceil(n / MAX_TICKS))
    axes.set_xticks(list(ticks), [f"{group.segments[k][0] - 1:,}" for k in ticks])
    ends = range(n - 1, -1, -math.ceil(n / MAX_TICKS))
    axes.set_yticks(list(ends), [f"{group.segments[k][1]:,}" for k in ends])
    axes.set_xlabel("Window starts after step")
    axes.set_ylabel("Window ends with step")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def color_limit(points: Sequence[float]) -> float:
    """Return the end of the color scale: differences beyond it, those of early windows, have the darkest red.

    >>> color_limit([-40.0, -1.0, -0.8, 0.2, 1.5]), color_limit([0.0])
    (1.5, 0.5)
    """
    sizes = sorted(abs(value) for value in points)
    return max(MIN_LIMIT, sizes[len(sizes) // 2], *points)


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
        axes.plot([], [], color=INK, linewidth=1.3, label="difference shown, corrected for all windows")


def _mark_windows(axes: Axes, group: WindowGroup, side: str) -> None:
    """Mark the window with the best mean on this side, and that of SWA."""
    means = {window: mean(run.windows[side][window] for run in group.runs) for window in group.runs[0].windows[side]}
    best = max(means, key=lambda window: (means[window], group.runs[0].n_updates(window)))
    dense = group.choices()[f"last {100 * DENSE_SWA:g} % (SWA)"][0]
    for window, marker, label in ((best, "D", "best mean of the panel"), (dense, "s", f"last {100 * DENSE_SWA:g} %")):
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
    x, y = (_median([place[axis] for place in places]) for axis in (0, 1))
    label = f"{group.baseline}{', median' if len(places) > 1 else ''}"
    axes.scatter(x, y, s=150, marker="*", linewidths=0.9, label=label, zorder=4, **style)


def _place(run: RunWindows) -> tuple[float, float]:
    """Return where the run's average lies between the windows of whole segments."""
    starts, ends = zip(*run.segments, strict=True)
    return _between(starts, run.start), _between(ends, run.end)


def _between(steps: Sequence[int], step: int) -> float:
    """Return the position of a step in a list of steps, between two of them if need be.

    >>> _between([1, 101, 201], 101), _between([1, 101, 201], 51), _between([1, 101], 150)
    (1.0, 0.5, 1.0)
    """
    import numpy as np

    return float(np.interp(step, steps, range(len(steps))))


def _median(values: Sequence[float]) -> float:
    import numpy as np

    return float(np.median(values))
