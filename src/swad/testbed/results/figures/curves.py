"""Curves with bands: a panel for each dataset and side, a line for each method, paired differences below.

Bands are 95 % intervals over trials. Methods of one training rise and fall together, so their differences are known
better than their values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BANDS = "Bands: 95 % intervals over trials."
MARKED = 8
"""Curves of at most this many points have a mark at each."""


def curves_figure(
    means: pd.DataFrame,
    differences: pd.DataFrame,
    *,
    title: str,
    axis: str,
    scale: float = 1.0,
    log: bool = False,
    bare: bool = False,
    size: tuple[float, float] = (3.2, 3.0),
    colors: Mapping[str, int] | None = None,
) -> Figure:
    """Draw means along an axis, and their paired differences from the first method where these have intervals.

    Args:
        means: panel quantity method mean low high; a row for each point.
        differences: panel quantity method baseline difference low high.
        title: Label of the vertical axis.
        axis: Label of the horizontal axis.
        scale: Factor of the values.
        log: Whether the vertical axis of the means is logarithmic. Points that are not positive are left out, and a
            band ends where its lower end is not positive.
        bare: Leave out titles and legend, for a page that has its own.
        size: Width and height of a panel in inches.
        colors: Index in the palette by method, for figures that are shown together.
    """
    methods = list(dict.fromkeys(means["method"]))
    colors = colors or method_colors(methods)
    style = {name: (PALETTE[colors[name]], DASHES[i % len(DASHES)]) for i, name in enumerate(methods)}
    below = differences.dropna(subset="low").rename(columns={"difference": "mean"})
    panels = list(dict.fromkeys(means["panel"]))
    n_rows = 2 if len(below) and len(means) else 1
    with figure_style():
        figure = new_figure(size[0] * max(1, len(panels)) + 0.3, size[1] * (1 + 0.65 * (n_rows - 1)))
        ratios = [3, 2][:n_rows]
        grid = figure.subplots(n_rows, max(1, len(panels)), squeeze=False, sharex="col", height_ratios=ratios)
        for number, panel in enumerate(panels):
            top = grid[0][number]
            _draw(top, means[means["panel"] == panel], style, scale, log)
            top.set_ylabel(title)
            if not bare:
                top.set_title(panel, loc="left")
            of_panel = below[below["panel"] == panel]
            if n_rows == 2:
                grid[1][number].axhline(0, color=FAINT, linewidth=0.7, zorder=1)
                _draw(grid[1][number], of_panel, style, scale, log=False)
                if len(of_panel):
                    grid[1][number].set_ylabel(f"difference from\n{of_panel['baseline'].iloc[0]}")
            grid[-1][number].set_xlabel(axis)
        if not bare:
            add_legend(figure, title=BANDS if means["low"].notna().any() else "")
    return figure


def _draw(axes: Axes, rows: pd.DataFrame, style: Mapping[str, tuple[str, Any]], scale: float, log: bool) -> None:
    by_method = [
        (name, curve.astype({"quantity": float}).sort_values("quantity"))
        for name, curve in rows.groupby("method", sort=False)
    ]
    for number, (name, curve) in enumerate(by_method):
        mean, low, high = (scale * curve[each].to_numpy(dtype=float) for each in ("mean", "low", "high"))
        points = curve["quantity"].to_numpy()
        if log:
            shown = mean > 0
            points, mean, low, high = points[shown], mean[shown], low[shown], high[shown]
        color, dash = style[name]
        is_point = len(points) == 1
        if is_point:  # beside those of other methods
            points = points + 0.05 * (number - (len(by_method) - 1) / 2)
        marker = "o" if len(points) <= MARKED else None
        axes.plot(points, mean, color=color, linestyle=dash, marker=marker, markersize=3.5, label=name, zorder=3)
        ends = (low > 0) if log else low == low
        axes.fill_between(points, low, high, where=ends, color=color, alpha=0.14, linewidth=0)
        for point, center, bottom, top, whole in zip(points, mean, low, high, ends, strict=True):
            if is_point and whole:
                axes.plot([point, point], [bottom, top], color=color, alpha=0.5, linewidth=1.6)
            elif log and not whole and top == top:  # the interval reaches zero: its upper half shows that there is one
                axes.plot([point, point], [center, top], color=color, alpha=0.5, linewidth=1.0)
    axes.grid(axis="y")
    if log and len(rows):
        from matplotlib.ticker import StrMethodFormatter

        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


def dashed(methods: Sequence[str]) -> dict[str, bool]:
    """Return which of a figure's methods are drawn with a dashed line, for a legend outside of it."""
    return {method: number % len(DASHES) > 0 for number, method in enumerate(methods)}
