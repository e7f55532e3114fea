"""Sections of the page on errors under corruption, for runs that were measured."""

from __future__ import annotations

from collections.abc import Sequence

from swad.testbed.results.corruption_errors import SIDES, CorruptionErrors, read_corruption_errors
from swad.testbed.results.corruption_tables import comparison_table, corruption_table
from swad.testbed.results.figures.flatness import DASHES, method_colors
from swad.testbed.results.figures.robustness import severity_figure
from swad.testbed.results.figures.style import themed_svg
from swad.testbed.results.imagenet_parts import read_stored_errors
from swad.testbed.results.page.section import PANEL, Figures, LegendEntry, Plot, Section
from swad.testbed.results.run_data import RunData
from swad.util.grouping import group_by

LEAD = (
    "The mean error over corruptions against their severity; severity 0 is the clean image. Lower is more robust. "
    "With several trials, bars are 95 % intervals over trials."
)


def robustness_sections(runs: Sequence[RunData]) -> list[Section]:
    """Build a section for each dataset whose images were corrupted, and one for ImageNet-C."""
    stored = read_stored_errors(runs)
    measured = [*read_corruption_errors(runs), *([stored] if stored is not None else [])]
    by_dataset = group_by((errors for errors in measured if errors.cases()), lambda errors: errors.dataset)
    return [_section(f"r{number}", name, sides) for number, (name, sides) in enumerate(by_dataset.items())]


def _section(id: str, name: str, sides: Sequence[CorruptionErrors]) -> Section:
    methods = list(dict.fromkeys(method for errors in sides for method in errors.methods))
    colors = method_colors(methods)
    plots, tables = [], []
    for errors in sides:
        figure = severity_figure([errors], bare=True, size=PANEL, colors=colors)
        heading = SIDES[errors.side][0].upper() + SIDES[errors.side][1:]
        label = f"Error against the severity of corruptions, {SIDES[errors.side]}"
        plots.append(Plot(heading, themed_svg(figure, f"{id}-{errors.side}", label)))
        tables += [table for table in (corruption_table(errors), comparison_table(errors)) if table is not None]
    dashed = {method: index % len(DASHES) > 0 for index, method in enumerate(methods)}
    legend = tuple(LegendEntry(method, colors[method] + 1, dashed[method]) for method in methods)
    title = f"Errors under corruption on {name}"
    return Section(id, title, LEAD, (Figures("", legend, tuple(plots)),), tables=tuple(tables))
