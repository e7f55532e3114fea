"""Figures of robustness: the error against the severity of corruptions, and its differences between methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from swad.testbed.results.corruption_errors import (
    SIDES,
    CorruptionErrors,
    TrialMean,
    severity_curves,
    severity_differences,
)
from swad.testbed.results.figures.flatness import DASHES, method_colors
from swad.testbed.results.figures.style import FAINT, PALETTE, add_legend, figure_style, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BARS = "Bars: 95 % intervals over trials."


def severity_figure(
    results: Sequence[CorruptionErrors],
    *,
    bare: bool = False,
    size: tuple[float, float] | None = None,
    colors: Mapping[str, int] | None = None,
) -> Figure:
    """Draw the error against the severity, one column for each dataset and side; severity 0 is the clean image.

    With several trials there are intervals over trials, and a second row with the paired differences to the first
    method: they are narrower, because methods of one training rise and fall together.

    Args:
        results: The errors of each column.
        bare: The errors only, without title and legend, which a page has around the figure.
        size: Width and height of a row in inches.
        colors: Index in the palette by method.
    """
    methods = list(dict.fromkeys(method for each in results for method in each.methods))
    colors = colors or method_colors(methods)
    width, height = size or (max(3.2 * len(results) + 0.4, 4.4), 3.1)
    curves, differences = ([build(each) for each in results] for build in (severity_curves, severity_differences))
    n_rows = 2 if any(differences) and not bare else 1
    with figure_style():
        figure = new_figure(width, height + 1.9 * (n_rows - 1))
        ratios = [3, 2][:n_rows]
        panels = figure.subplots(n_rows, len(results), squeeze=False, sharex="col", height_ratios=ratios)
        for column, each in enumerate(results):
            axes = panels[0][column]
            _draw_curves(axes, curves[column], colors)
            low, high = axes.get_ylim()
            axes.set_ylim(max(low, 0), min(high, 100))  # margins and intervals may reach beyond
            axes.set_ylabel("error (%)")
            if not bare:
                axes.set_title(each.title)
            if n_rows == 2:
                below = panels[1][column]
                below.axhline(0, color=FAINT, linewidth=0.7, zorder=1)
                # An empty first entry keeps the styles of the methods.
                _draw_curves(below, {each.methods[0]: {}, **differences[column]}, colors)
                below.set_ylabel(f"difference from\n{each.methods[0]} (points)")
            panels[-1][column].set_xlabel("severity (0: clean)" if each.has_clean else "severity")
        if not bare:
            points = [point for each in curves for curve in each.values() for point in curve.values()]
            add_legend(figure, title=BARS if any(point.half is not None for point in points) else "")
    figure.set_label("; ".join(SIDES[each.side] for each in results))
    return figure


def _draw_curves(axes: Axes, curves: Mapping[str, Mapping[int, TrialMean]], colors: Mapping[str, int]) -> None:
    """Draw curves in percent. Intervals stand side by side; without intervals, lines may cover each other."""
    for index, (method, curve) in enumerate(curves.items()):
        halves = [100 * point.half for point in curve.values() if point.half is not None]
        offset = 0.1 * (index - (len(curves) - 1) / 2) if halves else 0.0
        axes.errorbar(
            [severity + offset for severity in curve],
            [100 * point.mean for point in curve.values()],
            yerr=halves or None,
            color=PALETTE[colors[method]],
            label=method,
            marker="o",
            # A line that covers another is dashed, and its points are smaller.
            linestyle=DASHES[index % len(DASHES)],
            markersize=3.5 if halves else max(7.0 - 1.6 * index, 2.0),
            linewidth=1.4,
            elinewidth=1.2,
        )
    axes.set_xticks(range(6))
    axes.grid(axis="y")
