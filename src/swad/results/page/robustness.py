"""Sections of the page on errors under corruption, for runs that were measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from swad.results.corruption_errors import SIDES, CorruptionErrors, read_corruption_errors
from swad.results.corruption_tables import comparison_table, corruption_table
from swad.results.figures.flatness import DASHES, method_colors
from swad.results.figures.robustness import severity_figure
from swad.results.figures.style import themed_svg
from swad.results.imagenet_parts import read_stored_errors
from swad.results.page.flatness import Plot
from swad.results.runs import RunData
from swad.results.tables import Table


@dataclass(frozen=True)
class RobustnessSection:
    """The errors of one dataset: a curve for each side, and the tables."""

    id: str
    name: str
    legend: tuple[tuple[str, int, bool], ...]
    """Method, color, and whether the line is dashed."""
    plots: tuple[Plot, ...]
    tables: tuple[Table, ...]


def robustness_sections(runs: Sequence[RunData]) -> list[RobustnessSection]:
    """Build a section for each dataset whose images were corrupted, and one for ImageNet-C."""
    stored = read_stored_errors(runs)
    by_dataset: dict[str, list[CorruptionErrors]] = {}
    for errors in (*read_corruption_errors(runs), *([stored] if stored is not None else [])):
        if errors.cases():
            by_dataset.setdefault(errors.dataset, []).append(errors)
    return [_section(f"r{number}", name, sides) for number, (name, sides) in enumerate(by_dataset.items())]


def _section(id: str, name: str, sides: Sequence[CorruptionErrors]) -> RobustnessSection:
    methods = list(dict.fromkeys(method for errors in sides for method in errors.methods))
    colors = method_colors(methods)
    plots, tables = [], []
    for errors in sides:
        figure = severity_figure([errors], bare=True, size=(4.4, 2.45), colors=colors)
        heading = SIDES[errors.side][0].upper() + SIDES[errors.side][1:]
        label = f"Error against the severity of corruptions, {SIDES[errors.side]}"
        plots.append(Plot(heading, themed_svg(figure, f"{id}-{errors.side}", label)))
        tables += [table for table in (corruption_table(errors), comparison_table(errors)) if table is not None]
    legend = tuple((method, colors[method] + 1, index % len(DASHES) > 0) for index, method in enumerate(methods))
    return RobustnessSection(id, name, legend, tuple(plots), tuple(tables))
