"""Checks of drawn figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def text_boxes(figure: Figure) -> list[Any]:
    """Return the extents of all visible texts of a figure, to check that none overlap."""
    figure.draw_without_rendering()
    found = [
        text.get_window_extent()
        for axes in figure.axes
        for text in (axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label, *axes.texts)
        if text.get_text()
    ]
    found += [text.get_window_extent() for legend in figure.legends for text in legend.get_texts()]
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
            labels = [label for tick in ticks for label in (tick.label1, tick.label2)]
            found += [one.get_window_extent() for one in labels if one.get_visible() and one.get_text()]
    return found
