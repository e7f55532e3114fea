"""The paper's bound: its terms against the radius."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from swad.testbed.results.figures.style import FAINT, PALETTE, add_legend, figure_style, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def bound_figure(bounds: Sequence[Any]) -> Figure:
    """Draw every term of Theorem 1 against the radius, and their sum with the smallest confidence that is proved.

    Args:
        bounds: What `swad.flatness.bound` returned at several radii.
    """
    if not bounds:
        raise ValueError("a figure needs the bound at one radius or more, got none")
    bounds = sorted(bounds, key=lambda bound: bound.gamma)
    radii = [bound.gamma for bound in bounds]
    lows, highs = [bound.divergence_low / 2 for bound in bounds], [bound.divergence_high / 2 for bound in bounds]
    sums = [bound.theorem1["hoeffding"] for bound in bounds]
    with figure_style():
        figure = new_figure(5.0, 3.9)
        axes = figure.subplots()
        axes.axhspan(1, 1e9, color=FAINT, alpha=0.12, linewidth=0, zorder=0)
        axes.plot(radii, sums, color=FAINT, linewidth=5, label="sum")
        axes.plot(radii, [bound.robust for bound in bounds], color=PALETTE[0], label="robust loss (lower bound)")
        axes.plot(radii, [b.divergence / 2 for b in bounds], color=PALETTE[2], label="½ divergence (estimate)")
        if lows != highs:
            axes.fill_between(radii, lows, highs, color=PALETTE[2], alpha=0.25, linewidth=0, label="its interval")
        labels = {"hoeffding": "confidence, Hoeffding"}
        for form, style in (
            ("printed", (0, (1, 1.5))),
            ("proved", (0, (4, 2))),
            ("guaranteed", (0, (6, 2, 1.2, 2))),
            ("hoeffding", "-"),
        ):
            values = [bound.confidence[form] for bound in bounds]
            if not all(map(math.isnan, values)):  # forms whose VC dimension is unknown
                axes.plot(
                    radii, values, color=PALETTE[1], linestyle=style, label=labels.get(form, f"confidence, {form}")
                )
        axes.set_yscale("log")
        values = [v for b in bounds for v in (b.robust, b.divergence / 2, *b.confidence.values())] + lows
        # Values of 0 have no place on a logarithmic axis: an interval down to 0 reaches its lower end.
        axes.set_ylim(0.6 * min(value for value in values if value > 0), 4 * max(*sums, *highs, 1.0))
        if len(radii) > 1 and radii[0] > 0 and radii[-1] / radii[0] > 20:
            axes.set_xscale("log")
        axes.set_xlabel("radius γ")
        axes.set_ylabel("error (log scale)")
        axes.set_title(
            "Theorem 1. The confidence term grows without limit as γ → 0.\nAbove 1 (shaded) the bound is vacuous.",
            loc="left",
            fontsize=9,
        )
        axes.grid(axis="y")
        add_legend(figure)
        return figure
