"""Figures of robustness: the error against the severity of corruptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from swad.results.corruption_errors import SIDES, CorruptionErrors, severity_curves
from swad.results.figures.flatness import DASHES, method_colors
from swad.results.figures.style import PALETTE, add_legend, figure_style, require_matplotlib

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def severity_figure(
    results: Sequence[CorruptionErrors],
    *,
    bare: bool = False,
    size: tuple[float, float] | None = None,
    colors: Mapping[str, int] | None = None,
) -> Figure:
    """Draw the error against the severity, one panel for each dataset and side; severity 0 is the clean image.

    Args:
        results: The errors of each panel.
        bare: Without title and legend, which a page has around the figure.
        size: Width and height in inches.
        colors: Index in the palette by method.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    methods = list(dict.fromkeys(method for each in results for method in each.methods))
    colors = colors or method_colors(methods)
    width, height = size or (max(3.2 * len(results) + 0.4, 4.4), 3.1)
    with figure_style():
        figure = Figure(figsize=(width, height), layout="constrained")
        panels = figure.subplots(1, len(results), squeeze=False)[0]
        for axes, each in zip(panels, results, strict=True):
            for index, (method, (severities, errors)) in enumerate(severity_curves(each).items()):
                percent = [100 * error for error in errors]
                # Methods may have the same errors: a line that covers another is dashed, and its points are smaller.
                style = {"linestyle": DASHES[index % len(DASHES)], "ms": max(7.0 - 1.6 * index, 2.0)}
                axes.plot(severities, percent, marker="o", color=PALETTE[colors[method]], label=method, **style)
            if not bare:
                axes.set_title(each.title)
            axes.set_xlabel("severity")
            axes.set_ylabel("error (%)")
            axes.set_xticks(range(6))
            axes.grid(axis="y")
        if not bare:
            add_legend(figure, list(panels), width)
    figure.set_label("; ".join(SIDES[each.side] for each in results))
    return figure
