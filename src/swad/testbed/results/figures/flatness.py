"""Figures of flatness: F against the radius as in the paper's Figure 3, F against accuracy, and the paper's bound."""

from __future__ import annotations

import math
import textwrap
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from swad.testbed.results.figures.style import (
    DASHES,
    FAINT,
    PALETTE,
    add_legend,
    figure_style,
    method_colors,
    new_figure,
)
from swad.testbed.results.flatness_stats import CurvesBySide, FlatnessCurve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from swad.testbed.results.rank_correlation import Ranking

MARKERS = ("*", "D", "s", "P", "o", "v")
OVERLAP = 0.003
"""Curves whose distance is below this share of the panel's height overlap."""
SIDE_LABELS = {"seen": "Seen domains", "unseen": "Unseen domain"}


def method_dashes(groups: Mapping[str, CurvesBySide], colors: Mapping[str, int]) -> dict[str, int]:
    """Return an index in `DASHES` for every method: above 0 if its curve overlaps another one or shares its color."""
    dashes: dict[str, int] = {}
    for curves in (curves for by_side in groups.values() for curves in by_side.values()):
        values = [value for curve in curves for value in curve.mean if math.isfinite(value)]
        distance = OVERLAP * (max(values) - min(values)) if values else 0.0
        for index, curve in enumerate(curves):
            n_below = sum(
                _overlap(curve, other, distance) or colors[other.method] == colors[curve.method]
                for other in curves[:index]
            )
            dashes[curve.method] = max(dashes.get(curve.method, 0), n_below, curve.method == "SWA (cyclic)")
    return dashes


def _overlap(first: FlatnessCurve, second: FlatnessCurve, distance: float) -> bool:
    pairs = list(zip(first.mean, second.mean, strict=False))
    near = [abs(a - b) <= distance for a, b in pairs if math.isfinite(a) or math.isfinite(b)]
    return first.radii == second.radii and len(first.radii) > 1 and bool(near) and all(near)


def flatness_figure(
    groups: Mapping[str, CurvesBySide],
    *,
    sides: Sequence[str] = ("seen", "unseen"),
    size: tuple[float, float] = (2.6, 2.2),
    bare: bool = False,
    colors: Mapping[str, int] | None = None,
    dashes: Mapping[str, int] | None = None,
    reference: str = "",
    note: str = "",
    quantity: str = "the loss",
    log: bool = False,
) -> Figure:
    """Draw F against the radius with its interval for every method: a column for each group, a row for each side.

    If the interval is over trials, thin bars at the radii are that of the measurement.

    Args:
        groups: Curves by title, such as the mean over targets and each target.
        sides: "seen" and "unseen", or one of them.
        size: Width and height of a panel in inches.
        bare: Leave out titles and legend, for a page that has its own.
        colors: Indices in the palette by method, for figures that are shown together; see `method_colors`.
        dashes: Indices of line styles by method, for figures that are shown together; see `method_dashes`.
        reference: With the name of a method, the curves are differences to it: below zero is flatter.
        note: What the bands are, written above the legend.
        quantity: What rises.
        log: Whether the axis of F is logarithmic, which shows small radii next to large ones. It leaves out radius 0,
            and a band that reaches zero goes down to the edge.
    """
    sides = [side for side in sides if any(by_side.get(side) for by_side in groups.values())]  # no target, no unseen
    methods = list(dict.fromkeys(c.method for each in groups.values() for side in sides for c in each.get(side, ())))
    colors = method_colors(methods) if colors is None else colors
    dashes = method_dashes(groups, colors) if dashes is None else dashes
    with figure_style():
        shape = (len(sides), len(groups))
        lines = textwrap.wrap(note, int(17 * size[0] * shape[1]))
        height = size[1] * shape[0] + (0 if bare else 0.4) + 0.15 * len(lines)
        figure = new_figure(size[0] * shape[1] + 0.3, height)
        panels = figure.subplots(*shape, squeeze=False, sharex="col")
        for column, (title, by_side) in enumerate(groups.items()):
            for row, side in enumerate(sides):
                axes = panels[row][column]
                _draw_panel(axes, by_side.get(side, ()), colors, dashes, log)
                if row == 0 and not bare:
                    axes.set_title(title, loc="left")
                if row == len(sides) - 1:
                    axes.set_xlabel("radius γ")
                if column == 0:
                    label = f"$F_γ$ minus that of {reference}" if reference else f"$F_γ$: rise of {quantity}"
                    axes.set_ylabel(label if bare else f"{SIDE_LABELS.get(side, side)}\n{label}")
        if not bare:
            add_legend(figure, title="\n".join(lines))
        return figure


def _draw_panel(
    axes: Axes, curves: Sequence[FlatnessCurve], colors: Mapping[str, int], dashes: Mapping[str, int], log: bool
) -> None:
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    if log:
        curves = _for_log_axis(curves)
    radii = {radius for curve in curves for radius in curve.radii}
    single_radius = len(radii) == 1
    for index, curve in enumerate(curves):
        color, offset = PALETTE[colors[curve.method]], index - (len(curves) - 1) / 2
        if single_radius:
            _draw_point(axes, curve, color, offset)
        else:
            _draw_band(axes, curve, color, dashes[curve.method])
            _draw_measured(axes, curve, color, 0.01 * offset * (max(radii) - min(radii)))
    axes.grid(axis="y")
    if not log:
        axes.axhline(0, color=FAINT, linewidth=0.7, zorder=1)
    axes.margins(x=0.3 if single_radius else 0.02)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    if single_radius:
        axes.set_xticks(list(radii))
    if log:
        axes.set_yscale("log", nonpositive="clip")
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    else:
        axes.yaxis.set_major_locator(MaxNLocator(5))
    _fit(axes, curves, log)


def _for_log_axis(curves: Sequence[FlatnessCurve]) -> list[FlatnessCurve]:
    """Leave out radius 0, where F is zero, and let bands end at the edge that `_fit` sets."""
    edge = _lower_edge(curves)
    shown = []
    for curve in curves:
        first = bisect_right(curve.radii, 0.0)
        columns = {name: getattr(curve, name)[first:] for name in ("radii", "mean", "low", "high", "measured")}
        columns["low"] = tuple(max(value, edge) for value in columns["low"])  # keeps nan, which has no band
        shown.append(replace(curve, **columns))
    return shown


def _lower_edge(curves: Sequence[FlatnessCurve]) -> float:
    above_zero = (m for c in curves for radius, m in zip(c.radii, c.mean, strict=True) if radius > 0 and m > 0)
    return min(above_zero, default=1.0) / 3


def _draw_point(axes: Axes, curve: FlatnessCurve, color: str, offset: float) -> None:
    """Draw the only radius as a point with its interval, next to those of other methods."""
    x = curve.radii[0] + 0.1 * offset
    if math.isfinite(curve.low[0]) and math.isfinite(curve.high[0]):
        axes.plot([x, x], [curve.low[0], curve.high[0]], color=color, alpha=0.5, linewidth=1.6, zorder=2)
    if curve.exact_measured:
        ends = [curve.mean[0] - curve.measured[0], curve.mean[0] + curve.measured[0]]
        axes.plot([x, x], ends, color=color, alpha=0.8, linewidth=3, zorder=2)
    axes.plot(x, curve.mean[0], color=color, label=curve.method, linestyle="none", marker="o", markersize=5, zorder=3)


def _draw_band(axes: Axes, curve: FlatnessCurve, color: str, dash: int) -> None:
    emphasized = curve.method.startswith("SWAD")
    axes.fill_between(curve.radii, curve.low, curve.high, color=color, alpha=0.14, linewidth=0, zorder=2)
    axes.plot(
        curve.radii,
        curve.mean,
        color=color,
        label=curve.method,
        linestyle=DASHES[min(dash, len(DASHES) - 1)],
        linewidth=2.0 if emphasized else 1.4,
        zorder=3 + emphasized + 2 * dash,
    )


def _draw_measured(axes: Axes, curve: FlatnessCurve, color: str, offset: float) -> None:
    """Draw bars for the measurement. They may be wider than the band: all trials share the directions."""
    bars = zip(curve.radii, curve.mean, curve.exact_measured, strict=False)  # without the exact width, no bars
    for radius, mean, half in (bar for bar in bars if bar[2] > 0):
        x = radius + offset
        axes.plot([x, x], [mean - half, mean + half], color=color, alpha=0.6, linewidth=0.9, zorder=2)


def _fit(axes: Axes, curves: Sequence[FlatnessCurve], log: bool) -> None:
    """Show the whole lines and bands. A band that the axes cut off would look narrower than it is."""
    values = [value for c in curves for value in (*c.mean, *c.low, *c.high)]
    for mean, half in (bar for c in curves for bar in zip(c.mean, c.exact_measured, strict=False)):
        values += (mean - half, mean + half)
    shown = [value for value in values if math.isfinite(value)]
    if log:
        edge = _lower_edge(curves)
        axes.set_ylim(edge, max([1.3 * value for value in shown if value > edge], default=10 * edge))
    elif shown and max(shown) > min(shown):
        margin = 0.04 * (max(shown) - min(shown))
        axes.set_ylim(min(shown) - margin, max(shown) + margin)


# ------------------------------------------------------------ ranking and bound


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
        colors = method_colors([row.method for row in ranking.rows]) if colors is None else colors
        others = [row.method for row in ranking.rows if row.method != "SWAD"]
        for row in ranking.rows:
            marker = "*" if row.method == "SWAD" else MARKERS[1 + others.index(row.method) % 5]
            axes.plot(
                row.flatness,
                100 * row.accuracy,
                linestyle="none",
                marker=marker,
                markersize=11 if marker == "*" else 8,
                color=PALETTE[colors[row.method]],
                label=row.method,
            )
        axes.margins(0.12)
        axes.locator_params(axis="x", nbins=5)  # values that are close have long labels
        axes.grid()
        axes.invert_xaxis()  # so that the points rise where the correlation of flatness and accuracy is positive
        axes.set_xlabel(f"{quantity}: flatter to the right")
        axes.set_ylabel("accuracy on the target, %")
        axes.set_title(
            f"Spearman {ranking.spearman.value:+.2f} (p = {ranking.spearman.p:.2g}), "
            f"Kendall {ranking.kendall.value:+.2f} (p = {ranking.kendall.p:.2g})",
            loc="left",
            fontsize=9,
        )
        add_legend(figure)
        return figure


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
