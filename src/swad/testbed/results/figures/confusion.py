"""The confusion matrix of a method."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swad.testbed.results.figures.style import INK, RANGE, figure_style, new_figure
from swad.testbed.results.mistakes import MAX_SHADE, ShownPredictions

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def confusion_figure(shown: ShownPredictions) -> Figure:
    """Draw the confusion matrix in percent of each class."""
    with figure_style():
        from matplotlib.colors import LinearSegmentedColormap, to_rgba

        n, size = len(shown.shares), 1.6 + 0.34 * len(shown.shares)
        figure = new_figure(size, size)
        axes = figure.subplots()
        colors = LinearSegmentedColormap.from_list("shares", [to_rgba(RANGE, 0), to_rgba(RANGE, MAX_SHADE)])
        axes.pcolormesh(shown.shares, cmap=colors, vmin=0, vmax=100)
        for row, shares in enumerate(shown.shares.to_numpy()):
            for column, share in enumerate(shares):
                if share >= 0.5:
                    axes.text(
                        column + 0.5, row + 0.5, f"{share:.0f}", color=INK, fontsize=7.5, ha="center", va="center"
                    )
        names = [str(name).replace("$", r"\$") for name in shown.shares.index]  # no formulas
        axes.set_xticks([k + 0.5 for k in range(n)], names, rotation=0 if max(map(len, names)) < 4 else 90)
        axes.set_yticks([k + 0.5 for k in range(n)], names)
        axes.tick_params(length=0)
        axes.invert_yaxis()
        axes.set_aspect("equal")
        axes.set_xlabel("taken for")
        axes.set_ylabel("class")
        axes.set_title(f"{shown.dataset}, {shown.method}, %".replace("$", r"\$"))
    return figure
