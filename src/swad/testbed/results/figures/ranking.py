"""Flatness against accuracy, a point for each method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from swad.testbed.results.figures.style import PALETTE, add_legend, figure_style, method_colors, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from swad.testbed.results.rank_correlation import Ranking

MARKERS = ("*", "D", "s", "P", "o", "v")


def ranking_figure(
    ranking: Ranking,
    *,
    quantity: str = "$F_γ$",
    colors: Mapping[str, int] | None = None,
) -> Figure:
    """Draw flatness against accuracy on the target, one point per method. Methods at the top right are best.

    Args:
        ranking: The methods and their rank correlation.
        quantity: Label of the flatness.
        colors: Indices in the palette by method, for figures that are shown together.
    """
    with figure_style():
        figure = new_figure(4.2, 3.4)
        axes = figure.subplots()
        colors = method_colors(list(ranking.methods.index)) if colors is None else colors
        others = [method for method in ranking.methods.index if method != "SWAD"]
        for row in ranking.methods.itertuples():
            marker = "*" if row.Index == "SWAD" else MARKERS[1 + others.index(row.Index) % 5]
            axes.plot(
                row.flatness,
                100 * row.accuracy,
                linestyle="none",
                marker=marker,
                markersize=11 if marker == "*" else 8,
                color=PALETTE[colors[row.Index]],
                label=row.Index,
            )
        axes.margins(0.12)
        axes.locator_params(axis="x", nbins=5)  # values that are close have long labels
        axes.grid()
        axes.invert_xaxis()  # so that the points rise where the correlation of flatness and accuracy is positive
        axes.set_xlabel(f"{quantity}: flatter to the right")
        axes.set_ylabel("accuracy on the target, %")
        axes.set_title(f"Kendall {ranking.tau:+.2f} (p = {ranking.p:.2g})", loc="left", fontsize=9)
        add_legend(figure)
        return figure
