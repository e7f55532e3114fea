"""Accuracies of settings of SWAD: heat maps of a search over N_s, N_e and r, and lines against each of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from swad.testbed.results.figures.style import (
    FAINT,
    INK,
    PALETTE,
    add_legend,
    figure_style,
    new_figure,
    require_matplotlib,
)
from swad.testbed.results.labels import algorithm_label
from swad.testbed.results.tuning import TuneRow, TuneSelect, ValleySetting, score_settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_COLUMNS = 4

Curves = Mapping[str, Sequence[tuple[float, float]]]
"""Points (value of the setting, accuracy) by the name of a line."""


def tuning_figure(rows: Sequence[TuneRow], chosen: ValleySetting | None = None, select: TuneSelect = "iid") -> Figure:
    """Draw the mean accuracy of every setting on the runs of one dataset and algorithm.

    Args:
        rows: Every setting on every run.
        chosen: The setting to frame.
        select: The accuracy to show: on the sources' validation splits, or on the target's for "oracle".
    """
    require_matplotlib()
    from matplotlib.patches import Rectangle

    scores = {setting: 100 * score for setting, score in score_settings(rows, select).items()}
    starts = sorted({setting.n_converge for setting in scores})
    ends = sorted({setting.n_tolerance for setting in scores})
    panels = list(dict.fromkeys((setting.semantics, setting.tolerance_ratio) for setting in scores))
    panels.sort(key=lambda panel: (panel[0] != "paper", panel))
    columns = min(MAX_COLUMNS, len({ratio for _, ratio in panels}))
    lines = math.ceil(len(panels) / columns)
    low, high = min(scores.values()), max(scores.values())
    with figure_style():
        figure = new_figure(1.2 + columns * (0.7 + 0.55 * len(ends)), 0.9 + lines * (0.7 + 0.36 * len(starts)))
        grid = figure.subplots(lines, columns, squeeze=False)
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        image = None
        for axes, (semantics, ratio) in zip(grid.flat, panels, strict=False):
            values = [
                [scores.get(ValleySetting(start, end, ratio, semantics), math.nan) for end in ends] for start in starts
            ]
            image = axes.imshow(values, cmap="viridis", vmin=low, vmax=high if high > low else low + 1, aspect="auto")
            for i, line in enumerate(values):
                for j, value in enumerate(line):
                    if math.isnan(value):  # not in the grid
                        continue
                    dark = high > low and (value - low) / (high - low) < 0.55
                    color = "white" if dark or high == low else INK
                    axes.text(j, i, f"{value:.1f}", ha="center", va="center", fontsize=7.5, color=color)
                    if chosen == ValleySetting(starts[i], ends[j], ratio, semantics):
                        frame = Rectangle((j - 0.46, i - 0.44), 0.92, 0.88, fill=False, edgecolor="#d55e00", lw=2)
                        axes.add_patch(frame)
            definition = "" if len({name for name, _ in panels}) == 1 else f", {semantics}"
            axes.set_title(f"r = {1 + ratio:g}{definition}")
            axes.set_xticks(range(len(ends)), [f"{end:g}" for end in ends])
            axes.set_yticks(range(len(starts)), [str(start) for start in starts])
            axes.set_xlabel("$N_e$")
            axes.set_ylabel("$N_s$")
            axes.tick_params(length=0)
            axes.spines[:].set_visible(False)
        split = "validation" if select == "iid" else "target (out)"
        assert image is not None
        figure.colorbar(image, ax=grid, label=f"{split} accuracy, %", shrink=0.9)
        dataset, algorithm = rows[0].group
        figure.suptitle(f"{dataset}, {algorithm_label(algorithm)}", fontsize=10)
    return figure


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
