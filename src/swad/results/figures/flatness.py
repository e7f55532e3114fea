"""Figures of the flatness lab, in the form of the paper's Figures 3 and 4: curves against gamma, contours on planes.

Drawn and saved as the other figures are (`swad.results.figures.training`); `bare` drawings are for a page with its own legend.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from swad.results.figures.training import FAINT, PALETTE, _style
from swad.results.flatness_stats import MEAN, FlatCurve, RunSurface, Sides, method, titles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from swad.flatness._bound import Bound
    from swad.results.rank_correlation import Ranking

COLORS = {"ERM": 0, "SAM": 3, "SWA (cyclic)": 4, "SWA": 2, "SWAD": 1}
"""Places in the palette of the paper's five methods; others take what is left."""
MARKS = ("*", "D", "s", "P", "o", "v")
OTHER_MARKS = "ov<>ph"
SURFACE_COLORS = "viridis_r"
LEVELS = 14
MARK_INK = "#101010"
"""Of marks on a colored ground, which is the same on a dark page."""
DASHES: tuple[Any, ...] = ("-", (0, (4, 2)), (0, (1.2, 1.6)), (0, (6, 2, 1.2, 2)))
"""Lines of methods that lie on another's: the one below shows in the gaps."""
LABEL = 1.5
"""Inches that a label beside a panel needs in one line."""
ALIKE = 0.003
"""Curves whose distance is below this share of the panel's height lie on each other."""
TITLES = {"seen": "Seen domains", "unseen": "Unseen domain"}


def colors_of(methods: Sequence[str]) -> dict[str, int]:
    """A place in the palette for every method, the same in every figure for those of the paper."""
    found: dict[str, int] = {}
    for name in methods:
        plain = name.split(" (best")[0].split(" (last")[0]
        if plain in COLORS and COLORS[plain] not in found.values():
            found[name] = COLORS[plain]
    free = [place for place in range(len(PALETTE)) if place not in found.values()]
    for name in methods:
        if name not in found:
            found[name] = free.pop(0) if free else len(found) % len(PALETTE)
    return found


def dashes_of(groups: Mapping[str, Sides], colors: Mapping[str, int]) -> dict[str, int]:
    """A place in `DASHES` for every method: 0 but where its line, in any panel, hides another or has its color."""
    found: dict[str, int] = {}
    for curves in (some for by_side in groups.values() for some in by_side.values()):
        values = [value for curve in curves for value in curve.mean if math.isfinite(value)]
        near = ALIKE * (max(values) - min(values)) if values else 0.0
        for place, curve in enumerate(curves):
            below = [
                other.method
                for other in curves[:place]
                if _lie_on_each_other(curve, other, near) or colors[other.method] == colors[curve.method]
            ]
            found[curve.method] = max(found.get(curve.method, 0), len(below), curve.method == "SWA (cyclic)")
    return found


def _lie_on_each_other(one: FlatCurve, other: FlatCurve, near: float) -> bool:
    pairs = list(zip(one.mean, other.mean, strict=False))
    shown = [abs(a - b) <= near for a, b in pairs if math.isfinite(a) or math.isfinite(b)]
    return one.radii == other.radii and len(one.radii) > 1 and bool(shown) and all(shown)


def flatness_figure(
    groups: Mapping[str, Sides],
    *,
    sides: Sequence[str] = ("seen", "unseen"),
    size: tuple[float, float] = (2.6, 2.2),
    bare: bool = False,
    colors: Mapping[str, int] | None = None,
    dashes: Mapping[str, int] | None = None,
    versus: str = "",
) -> Figure:
    """F_gamma against gamma, a line with its interval for every method: a column for each group, a row for each side.

    `groups` are titles with curves, as a rule a target each, and their mean first. `size` is that of a panel.
    `colors` are places in the palette by method and `dashes` kinds of lines, for figures to be shown together. With
    `versus` the curves are paired differences to that method: below zero is flatter.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    if not groups:
        raise ValueError("a figure needs flatness of one run at least, got none: measure with `swad flatness`")
    methods = list(dict.fromkeys(c.method for by_side in groups.values() for side in sides for c in by_side[side]))
    colors = colors_of(methods) if colors is None else colors
    dashes = dashes_of(groups, colors) if dashes is None else dashes
    with _style():
        shape = (len(sides), len(groups))
        figure = Figure(
            figsize=(size[0] * shape[1] + 0.3, size[1] * shape[0] + (0 if bare else 0.4)), layout="constrained"
        )
        panels = figure.subplots(*shape, squeeze=False, sharex="col")
        for column, (title, by_side) in enumerate(groups.items()):
            for row, side in enumerate(sides):
                axes = panels[row][column]
                radii = {radius for curve in by_side[side] for radius in curve.radii}
                single = len(radii) == 1
                for place, curve in enumerate(by_side[side]):
                    color = PALETTE[colors[curve.method]]
                    if single:
                        _spot(axes, curve, color, place - (len(by_side[side]) - 1) / 2)
                    else:
                        _band(axes, curve, color, dashes[curve.method])
                axes.grid(axis="y")
                axes.set_axisbelow(True)
                axes.axhline(0, color=FAINT, linewidth=0.7, zorder=1)
                axes.margins(x=0.3 if single else 0)
                axes.xaxis.set_major_locator(MaxNLocator(5))
                if single:
                    axes.set_xticks(list(radii))
                axes.yaxis.set_major_locator(MaxNLocator(5))
                axes.tick_params(length=3)
                # Of a difference the band is the message, and marks alone have no shape to be pressed flat.
                _fit(axes, by_side[side], room=100 if single else 1.5 if versus else 0.4)
                if row == 0 and not bare:
                    axes.set_title(title, loc="left")
                if row == len(sides) - 1:
                    axes.set_xlabel("radius γ")
                if column == 0 and not bare:
                    what = f"$F_γ$ minus that of {versus}" if versus else "$F_γ$: rise of the loss"
                    axes.set_ylabel(f"{TITLES.get(side, side)}\n{what}")
        if not bare:
            _legend(figure, [axes for some in panels for axes in some], size[0] * shape[1])
        return figure


def _spot(axes: Axes, curve: FlatCurve, color: str, aside: float) -> None:
    """A radius alone has no line: marks with their intervals beside each other."""
    x = curve.radii[0] + 0.1 * aside
    if math.isfinite(curve.low[0]) and math.isfinite(curve.high[0]):
        axes.plot([x, x], [curve.low[0], curve.high[0]], color=color, alpha=0.5, linewidth=1.6, zorder=2)
    axes.plot(x, curve.mean[0], color=color, label=curve.method, linestyle="none", marker="o", markersize=5, zorder=3)


def _band(axes: Axes, curve: FlatCurve, color: str, dash: int) -> None:
    strong = curve.method.startswith("SWAD")
    axes.fill_between(curve.radii, curve.low, curve.high, color=color, alpha=0.14, linewidth=0, zorder=2)
    axes.plot(
        curve.radii,
        curve.mean,
        color=color,
        label=curve.method,
        linestyle=DASHES[min(dash, len(DASHES) - 1)],
        linewidth=2.0 if strong else 1.4,
        zorder=3 + strong + 2 * dash,
    )


def _fit(axes: Axes, curves: Sequence[FlatCurve], room: float) -> None:
    """Show the lines whole, and of the bands what does not press them flat."""
    means = [value for curve in curves for value in curve.mean if math.isfinite(value)]
    ends = [value for curve in curves for value in (*curve.low, *curve.high) if math.isfinite(value)] or means
    if not means or max(means) <= min(means):
        return
    span = max(means) - min(means)
    low, high = max(min(ends), min(means) - room * span), min(max(ends), max(means) + room * span)
    axes.set_ylim(low - 0.04 * span, high + 0.04 * span)


# ------------------------------------------------------------ surfaces


def surface_figure(
    surfaces: Sequence[RunSurface],
    *,
    sides: Sequence[str] = ("seen", "unseen"),
    width: float = 2.3,
    bare: bool = False,
) -> Figure:
    """Contours of the loss on the plane through three weights: a column for each run, seen above unseen.

    Triangles are the three weights, the cross is their mean; averages stand where they are projected to. Columns say
    algorithm and trial where these differ. `width` is that of a panel, in inches.
    """
    from matplotlib.figure import Figure

    if not surfaces:
        raise ValueError("a figure needs one measured surface at least, got none: measure with `swad surface`")
    marks = marks_of({method(one.run, name) for one in surfaces for name in one.further})
    with _style():
        shape = (len(sides), len(surfaces))
        # Distances on a plane are true in both directions, so a panel is as high as its plane is.
        slopes = [(one.ys[-1] - one.ys[0]) / (one.xs[-1] - one.xs[0]) for one in surfaces]
        height = width * min(1.3, max(0.26, *slopes)) + 0.35
        figure = Figure(
            figsize=((width + 0.75) * shape[1], height * shape[0] + (0.1 if bare else 0.5)), layout="constrained"
        )
        panels = figure.subplots(*shape, squeeze=False)
        for column, (one, title) in enumerate(zip(surfaces, titles([one.run for one in surfaces]), strict=True)):
            for row, side in enumerate(sides):
                axes = panels[row][column]
                _contours(axes, one, side)
                _marks(axes, one, marks)
                if row == 0 and not bare:
                    axes.set_title(f"target: {title}", loc="left")
                if column == 0 and not bare:
                    words = f"{TITLES[side]}, loss"
                    axes.set_ylabel(words if height > LABEL else words.replace(" ", "\n", 1))
        if not bare:
            _legend(figure, [axes for some in panels for axes in some], (width + 0.75) * shape[1])
        return figure


def _contours(axes: Axes, surface: RunSurface, side: str) -> None:
    import numpy as np
    from matplotlib.colors import LogNorm, Normalize

    values = np.array(surface.grids[side], dtype=float)
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if high <= low:
        low, high = low - 0.5, high + 0.5
    # Training losses fall over orders of magnitude: equal steps would show one ring and a plain.
    steep = low > 0 and high / low > 10
    levels = np.geomspace(low, high, LEVELS) if steep else np.linspace(low, high, LEVELS)
    levels[0], levels[-1] = low, high
    grid = np.ma.masked_invalid(values)
    scale = LogNorm(low, high) if steep else Normalize(low, high)
    filled = axes.contourf(surface.xs, surface.ys, grid, levels, cmap=SURFACE_COLORS, norm=scale)
    axes.contour(surface.xs, surface.ys, grid, levels, colors="white", linewidths=0.4, alpha=0.6)
    axes.set_aspect("equal", adjustable="box")
    axes.locator_params(nbins=4)
    axes.tick_params(length=2, labelsize=7)
    for spine in axes.spines.values():
        spine.set_visible(False)
    # Inside the panel's own frame: a bar beside it would keep its height when the panel is made flat.
    bar = axes.figure.colorbar(filled, cax=axes.inset_axes((1.04, 0, 0.05, 1)))
    shown = [float(levels[place]) for place in (0, LEVELS // 3, 2 * LEVELS // 3, LEVELS - 1)]
    bar.set_ticks(shown, labels=told_apart(shown))
    bar.ax.minorticks_off()
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=7, length=0)


def told_apart(values: Sequence[float]) -> list[str]:
    """Numbers with as few digits as tell neighbors apart, two at least.

    >>> told_apart([0.02, 0.5, 12.0]), told_apart([1.021, 1.027, 1.034])
    (['0.02', '0.5', '12'], ['1.021', '1.027', '1.034'])
    """
    gaps = [abs(b - a) for a, b in pairwise(values)]
    nearest = [min(sides) for sides in zip([*gaps[:1], *gaps], [*gaps, *gaps[-1:]], strict=True)]
    for digits in range(2, 8):
        texts = [f"{value:.{digits}g}" for value in values]
        if all(abs(float(t) - v) <= gap / 5 for t, v, gap in zip(texts, values, nearest, strict=True)):
            break
    return texts


def marks_of(methods: Collection[str]) -> dict[str, tuple[str, int]]:
    """A mark and a place in the palette for every method, the same in every figure for the usual ones.

    >>> marks_of(["SAM + SWAD", "SWAD"])
    {'SWAD': ('*', 1), 'SAM + SWAD': ('o', 6)}
    """
    usual = {"SWAD": ("*", 1), "SWA": ("P", 5), "EMA": ("D", 4), "SMA": ("s", 3)}
    others = sorted(set(methods) - set(usual))
    found = {name: mark for name, mark in usual.items() if name in methods}
    return found | {name: (OTHER_MARKS[i % 6], (6, 7, 2, 0, 3)[i % 5]) for i, name in enumerate(others)}


def _marks(axes: Axes, surface: RunSurface, marks: Mapping[str, tuple[str, int]]) -> None:
    edge: dict[str, Any] = {"linestyle": "none", "markeredgecolor": MARK_INK, "zorder": 5}
    corners = surface.corners.values()
    axes.plot(
        *zip(*corners, strict=True), marker="^", markersize=7, markerfacecolor="#ffffff", label="three weights", **edge
    )
    axes.plot(
        *surface.mean, marker="x", markersize=7, markeredgecolor=MARK_INK, markeredgewidth=1.8, linestyle="none",
        zorder=6, label="their mean",
    )  # fmt: skip
    for name, (x, y, _) in surface.further.items():
        label = method(surface.run, name)
        mark, color = marks[label]
        axes.plot(
            x, y, marker=mark, markersize=9 if mark == "*" else 6, label=label, markerfacecolor=PALETTE[color],
            markeredgewidth=0.7, **edge,
        )  # fmt: skip


def line_figure(
    surfaces: Sequence[RunSurface], *, size: tuple[float, float] = (3.4, 2.5), bare: bool = False
) -> Figure:
    """The loss on the straight line between two weights, seen and unseen: a panel for each run.

    Marks are the mean of the two and averages near the line, at their own loss and where they are projected to.
    """
    from matplotlib.figure import Figure

    if not surfaces:
        raise ValueError("a figure needs one measured line at least, got none: measure with `swad surface --line`")
    marks = marks_of({method(one.run, name) for one in surfaces for name in one.further})
    with _style():
        figure = Figure(figsize=(size[0] * len(surfaces) + 0.3, size[1] + (0 if bare else 0.4)), layout="constrained")
        panels = figure.subplots(1, len(surfaces), squeeze=False)[0]
        for axes, one, title in zip(panels, surfaces, titles([one.run for one in surfaces]), strict=True):
            for color, side in zip(PALETTE, ("seen", "unseen"), strict=False):
                axes.plot(one.xs, one.grids[side][0], color=color, label=TITLES[side])
            for name, label in on_line(one).items():
                mark = "x" if name == MEAN else marks[label][0]
                size_ = 10 if mark == "*" else 6
                for color, side in zip(PALETTE, ("seen", "unseen"), strict=False):
                    axes.plot(
                        one.points[name][0], one.losses[name][side], mark, color=color, markersize=size_, zorder=5
                    )
                axes.plot([], [], mark, color=FAINT, markersize=size_, label=label)  # of both sides, for the legend
            first, last = (method(one.run, weights) for weights in one.corners)
            axes.set_xticks([0.0, 0.5, 1.0], [first, "", last])
            for x in (0.0, 1.0):
                axes.axvline(x, color=FAINT, linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
            axes.set_ylim(bottom=0)
            axes.grid(axis="y")
            axes.tick_params(length=3)
            axes.set_ylabel("loss")
            if not bare:
                axes.set_title(f"target: {title}", loc="left")
        if not bare:
            _legend(figure, list(panels), size[0] * len(surfaces))
        return figure


def on_line(surface: RunSurface) -> dict[str, str]:
    """Points that a line's figure marks, and what they are called: those projected to the part that is drawn."""
    return {
        name: "mean of the two" if name == MEAN else method(surface.run, name)
        for name in (MEAN, *surface.further)
        if name in surface.losses and surface.xs[0] <= surface.points[name][0] <= surface.xs[-1]
    }


# ------------------------------------------------------------ ranking and bound


def ranking_figure(
    ranking: Ranking,
    *,
    where: str = "",
    size: tuple[float, float] = (4.2, 3.0),
    colors: Mapping[str, int] | None = None,
) -> Figure:
    """Flatness against accuracy on the target, a point for each method: down to the right is sharp and wrong.

    `colors` are places in the palette by method, for figures to be shown together.
    """
    from matplotlib.figure import Figure

    with _style():
        figure = Figure(figsize=(size[0], size[1] + 0.4), layout="constrained")
        axes = figure.subplots()
        colors = colors_of([row.method for row in ranking.rows]) if colors is None else colors
        others = [row.method for row in ranking.rows if row.method != "SWAD"]
        for row in ranking.rows:
            mark = "*" if row.method == "SWAD" else MARKS[1 + others.index(row.method) % 5]
            axes.plot(
                row.flatness, 100 * row.accuracy, linestyle="none", marker=mark, markersize=11 if mark == "*" else 8,
                color=PALETTE[colors[row.method]], label=row.method,
            )  # fmt: skip
        axes.margins(0.12)
        axes.grid()
        axes.set_axisbelow(True)
        axes.tick_params(length=3)
        axes.set_xlabel(f"$F_γ${where}: less is flatter")
        axes.set_ylabel("accuracy on the target, %")
        axes.set_title(
            f"Spearman {ranking.spearman.value:+.2f} (p = {ranking.spearman.p:.2g}), "
            f"Kendall {ranking.kendall.value:+.2f} (p = {ranking.kendall.p:.2g})",
            loc="left",
            fontsize=9,
        )
        _legend(figure, [axes], size[0])
        return figure


def bound_figure(bounds: Sequence[Bound], *, size: tuple[float, float] = (5.0, 3.4)) -> Figure:
    """Every term of Theorem 1 against the radius, and their sum as printed and with a cover that is guaranteed."""
    from matplotlib.figure import Figure

    if not bounds:
        raise ValueError("a figure needs the bound at one radius at least, got none")
    some = sorted(bounds, key=lambda one: one.gamma)
    radii = [one.gamma for one in some]
    lows, highs = [one.divergence_low / 2 for one in some], [one.divergence_high / 2 for one in some]
    with _style():
        figure = Figure(figsize=(size[0], size[1] + 0.5), layout="constrained")
        axes = figure.subplots()
        axes.axhspan(1, 1e9, color=FAINT, alpha=0.12, linewidth=0, zorder=0)
        axes.plot(radii, [one.theorem1["guaranteed"] for one in some], color=FAINT, linewidth=5, label="their sum")
        axes.plot(radii, [one.robust for one in some], color=PALETTE[0], label="robust loss (lower bound)")
        axes.plot(radii, [one.divergence / 2 for one in some], color=PALETTE[2], label="½ divergence (estimate)")
        if lows != highs:
            axes.fill_between(radii, lows, highs, color=PALETTE[2], alpha=0.25, linewidth=0, label="its interval")
        for form, style in (("printed", (0, (1, 1.5))), ("proved", (0, (4, 2))), ("guaranteed", "-")):
            values = [one.confidence[form] for one in some]  # type: ignore[index]
            axes.plot(radii, values, color=PALETTE[1], linestyle=style, label=f"confidence, {form}")
        axes.set_yscale("log")
        values = [v for one in some for v in (one.robust, one.divergence / 2, *one.confidence.values()) if v > 0]
        top = max(*(one.theorem1["guaranteed"] for one in some), 1.0)
        axes.set_ylim(0.6 * min(values), 4 * top)
        if len(radii) > 1 and radii[0] > 0 and radii[-1] / radii[0] > 20:
            axes.set_xscale("log")
        axes.set_xlabel("radius γ")
        axes.set_title(
            "Theorem 1. The confidence term grows without end as γ → 0;\nabove 1 (shaded) the bound says nothing.",
            loc="left",
            fontsize=9,
        )
        axes.grid(axis="y")
        axes.set_axisbelow(True)
        axes.tick_params(length=3)
        _legend(figure, [axes], size[0])
        return figure


def _legend(figure: Figure, panels: Sequence[Axes], width: float) -> None:
    """One legend below all panels, in the order of drawing, in as many lines as it needs."""
    entries: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if not entries:
        return
    fit = max(1, int(width / (0.45 + 0.075 * max(map(len, entries)))))
    lines = math.ceil(len(entries) / fit)
    figure.legend(
        list(entries.values()),
        list(entries),
        loc="outside lower center",
        ncols=math.ceil(len(entries) / lines),
        fontsize=8.5,
        handlelength=1.6,
        columnspacing=1.2,
    )
