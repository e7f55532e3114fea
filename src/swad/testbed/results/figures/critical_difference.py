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
    try:
        import pandas
        import scikit_posthocs
    except ImportError:
        raise ImportError("critical-difference diagrams need scikit-posthocs: pip install 'swad[report]'") from None
    from matplotlib.ticker import MaxNLocator

    labels = list(ranked.ranks)
    # Nemenyi's test counts only after Friedman's; 1 stands for a pair without a significant difference.
    p = pandas.DataFrame(
        [[0.0 if ranked.differ(first, second) else 1.0 for second in labels] for first in labels], labels, labels
    )
    with figure_style():
        # Wide enough for two long labels, such as those of imported runs; its height follows from their number.
        figure = new_figure(max(6.4, 2.0 + 0.18 * max(map(len, labels))), 6.4)
        axes = figure.subplots()
        drawn = scikit_posthocs.critical_difference_diagram(
            dict(ranked.ranks),
            p,
            ax=axes,
            label_fmt_left="{label}  {rank:.2f} ",
            label_fmt_right=" {rank:.2f}  {label}",
            label_props={"fontsize": 8.5},
            elbow_props={"color": FAINT, "linewidth": 0.8, "clip_on": False},
            marker_props={"color": INK, "s": 14, "clip_on": False},
            crossbar_props={"color": PALETTE[0], "linewidth": 2.6, "clip_on": False},
            text_h_margin=0.04 * len(labels),
        )
        for label in drawn["labels"]:
            label.set_color(INK)
        for (bar,) in drawn["crossbars"]:  # drawn through a set of names, whose order changes from process to process
            bar.set_xdata(sorted(bar.get_xdata()))
        lines = -min(label.get_position()[1] for label in drawn["labels"])  # of bars and of labels
        figure.set_figheight(0.42 + 0.19 * lines + (0.0 if bare else 0.35))
        axes.set_ylim(-lines - 0.6, 0.3)
        axes.set_xlim(1, len(labels))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.spines["top"].set_visible(True)
        if not bare:
            figure.supxlabel(ranked.summary.replace(". ", ".\n", 1), fontsize=8, color=INK)
    return figure
