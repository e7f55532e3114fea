"""The critical-difference diagram: average ranks on a line, joined where methods do not differ significantly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swad.testbed.results.figures.style import FAINT, INK, PALETTE, figure_style, new_figure, require_matplotlib
from swad.testbed.results.method_ranks import MethodRanks

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def critical_difference_figure(ranked: MethodRanks, *, bare: bool = False) -> Figure:
    """Draw the average ranks of methods. Horizontal bars join methods that do not differ significantly.

    Args:
        ranked: The ranks.
        bare: Leave out the sentence below, for a page that has its own.
    """
    require_matplotlib()
    from matplotlib.ticker import MaxNLocator

    names, bars = list(ranked.ranks), ranked.alike()
    n_left = (len(names) + 1) // 2
    margin = 0.04 * len(names)
    edges = ranked.ranks[names[0]] - margin, ranked.ranks[names[-1]] + margin
    with figure_style():
        # Wide enough for two long labels, such as those of imported runs.
        width = max(6.4, 2.0 + 0.18 * max(map(len, names)))
        figure = new_figure(width, 0.42 + 0.19 * (n_left + len(bars)) + (0.0 if bare else 0.35))
        axes = figure.subplots()
        for number, (first, last) in enumerate(bars, start=1):
            joined = [ranked.ranks[first], ranked.ranks[last]]
            axes.plot(joined, [-number, -number], color=PALETTE[0], linewidth=2.6, clip_on=False)
        for number, (name, rank) in enumerate(ranked.ranks.items()):
            is_left = number < n_left  # the better half; the worst method stands at the top on the right
            line = -len(bars) - 1 - (number if is_left else len(names) - 1 - number)
            edge = edges[0] if is_left else edges[1]
            axes.plot([rank, rank, edge], [0, line, line], color=FAINT, linewidth=0.8, clip_on=False)
            text = f"{name}  {rank:.2f} " if is_left else f" {rank:.2f}  {name}"
            side = "right" if is_left else "left"
            axes.text(edge, line, text, ha=side, va="center", fontsize=8.5, color=INK)
        axes.scatter([*ranked.ranks.values()], [0] * len(names), color=INK, s=14, clip_on=False, zorder=3)
        axes.set_ylim(-n_left - len(bars) - 0.6, 0.3)
        axes.set_xlim(1, len(names))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.xaxis.tick_top()
        axes.yaxis.set_visible(False)
        axes.spines[["left", "right", "bottom"]].set_visible(False)
        axes.spines["top"].set(visible=True, position=("data", 0))
        if not bare:
            figure.supxlabel(ranked.summary.replace(". ", ".\n", 1), fontsize=8, color=INK)
    return figure
