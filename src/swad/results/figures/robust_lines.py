"""Robust risk minimization and flat minima, as in the paper's Figure 1, but measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from swad.results.figures.style import FAINT, INK, PALETTE, add_legend, figure_style, new_figure
from swad.results.labels import run_titles, weights_label
from swad.results.robust_lines import RobustLine

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def robust_figure(lines: Sequence[RobustLine], *, size: tuple[float, float] = (3.0, 2.9)) -> Figure:
    """Draw the loss and the worst losses along a line, a panel for each run; a dot marks each curve's lowest point.

    Args:
        lines: One line per run.
        size: Width and height of a panel in inches.
    """
    if not lines:
        raise ValueError("a figure needs at least one line, got none")
    with figure_style():
        figure = new_figure(size[0] * len(lines) + 0.3, size[1] + 0.5)
        panels = figure.subplots(1, len(lines), squeeze=False)[0]
        titles = run_titles([line.run for line in lines])
        for axes, line, title in zip(panels, lines, titles, strict=True):
            _draw(axes, line)
            radii = ", ".join(f"{radius:.2g}" for radius in line.worst)
            axes.set_title(f"target: {title}\nγ = {radii}", loc="left", fontsize=9)
        panels[0].set_ylabel("loss on the sources (log scale)")
        add_legend(figure)
        return figure


def curve_labels(line: RobustLine) -> list[str]:
    """Name the curves: radii differ between runs, because they are shares of the distance between the weights."""
    return ["loss", *(f"worst within γ = {100 * radius / line.length:.2g} % of distance" for radius in line.worst)]


def _draw(axes: Axes, line: RobustLine) -> None:
    colors = (INK, *PALETTE)
    for color, label, (radius, values) in zip(colors, curve_labels(line), line.curves.items(), strict=False):
        axes.plot(line.xs, values, color=color, label=label)
        axes.plot(*line.minimum(radius), "o", color=color, markersize=6, zorder=5)
    axes.plot([], [], "o", color=FAINT, markersize=6, label="lowest point")
    for x in (0.0, 1.0):
        axes.axvline(x, color=FAINT, linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
    axes.set_yscale("log")
    axes.set_xticks([0.0, 1.0], [weights_label(line.run, name) for name in line.ends])
    axes.grid(axis="y")
    axes.set_xlabel("position on the line")
