"""Accuracies of settings of SWAD: lines against each of N_s, N_e and r."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from swad.testbed.results.figures.style import (
    FAINT,
    PALETTE,
    add_legend,
    figure_style,
    new_figure,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curves = Mapping[str, Sequence[tuple[float, float]]]
"""Points (value of the setting, accuracy) by the name of a line."""


def sensitivity_figure(panels: Mapping[str, Curves], marked: Mapping[str, float], title: str = "") -> Figure:
    """Draw accuracies in percent against the settings; a vertical line marks the paper's value.

    Args:
        panels: Lines by the label of a setting.
        marked: The paper's value by the label of a setting.
        title: Title above all panels.
    """
    with figure_style():
        figure = new_figure(2.7 * len(panels), 2.9)
        grid = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
        for axes, (label, curves) in zip(grid, panels.items(), strict=True):
            if label in marked:
                axes.axvline(marked[label], color=FAINT, linewidth=0.8, linestyle=":")
            for name, points in curves.items():
                values, accuracies = zip(*points, strict=True)
                color = PALETTE[names.index(name) % len(PALETTE)]
                axes.plot(values, accuracies, marker="o", markersize=3, color=color, label=name)
            axes.set_xlabel(label)
            axes.set_xticks(sorted({value for points in curves.values() for value, _ in points}))
            axes.grid(axis="y")
        grid[0].set_ylabel("Accuracy, %")
        if title:
            figure.suptitle(title, fontsize=10)
        add_legend(figure)
    return figure
