"""Robust risk minimization and flat minima, as in the paper's Figure 1, but measured.

A line between two weights of a run, with the loss and the worst loss within a radius at every point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from swad.testbed.results.figures.style import FAINT, INK, PALETTE, add_legend, figure_style, new_figure
from swad.testbed.results.labels import run_titles, weights_label
from swad.testbed.results.run_data import RunData

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class RobustLine:
    """The line from one set of weights (x = 0) to another (x = 1), and beyond both.

    The worst losses are lower bounds of the true maxima, because they were searched for.
    """

    run: RunData
    ends: tuple[str, str]
    """Names of the weights at x = 0 and x = 1."""
    length: float
    """Their distance."""
    xs: tuple[float, ...]
    losses: tuple[float, ...]
    """The loss on the sources' training images."""
    worst: Mapping[float, tuple[float, ...]]
    """The worst loss within a radius, by radius."""

    @property
    def curves(self) -> dict[float, tuple[float, ...]]:
        """All curves by radius; radius 0 is the loss itself."""
        return {0.0: self.losses, **self.worst}

    def minimum(self, radius: float) -> tuple[float, float]:
        """Return the position and the value of the lowest point of a curve.

        >>> from pathlib import Path
        >>> run = RunData(Path(), {}, (), True)
        >>> line = RobustLine(run, ("last", "swad"), 2.0, (0.0, 1.0), (0.1, 0.2), {0.5: (2.0, 1.0)})
        >>> line.minimum(0.0), line.minimum(0.5)
        ((0.0, 0.1), (1.0, 1.0))
        """
        values = self.curves[radius]
        return min(zip(self.xs, values, strict=True), key=lambda point: point[1])


def robust_figure(lines: Sequence[RobustLine]) -> Figure:
    """Draw the loss and the worst losses along a line, a panel for each run; a dot marks each curve's lowest point."""
    with figure_style():
        figure = new_figure(3.0 * len(lines) + 0.3, 3.4)
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
