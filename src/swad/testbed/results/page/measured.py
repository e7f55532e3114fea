"""Sections of the page on measurements: a section for each measurement and dataset, all built alike."""

from __future__ import annotations

from swad.testbed.results.figures.curves import BANDS, dashed
from swad.testbed.results.figures.style import method_colors, themed_svg
from swad.testbed.results.measured_report import MeasuredReport
from swad.testbed.results.page.section import PANEL, Figures, LegendEntry, Plot, Section


def measured_sections(id: str, report: MeasuredReport) -> list[Section]:
    """Build the sections of a measurement.

    Args:
        id: Prefix of the ids in the page.
        report: The measurement.
    """
    datasets = dict.fromkeys(dataset for dataset, *_ in report.by_place)
    return [_section(f"{id}-{number}", dataset, report) for number, dataset in enumerate(datasets)]


def _section(id: str, dataset: str, report: MeasuredReport) -> Section:
    what, of_dataset = report.what, report.means["dataset"] == dataset
    tables = tuple(table for place, tables in report.by_place.items() if place[0] == dataset for table in tables)
    methods = list(dict.fromkeys(report.means[of_dataset]["method"])) if what.axis else []
    colors, is_dashed = method_colors(methods), dashed(methods)
    plots = []
    for number, place in enumerate(place for place in report.by_place if place[0] == dataset):
        panel = report.panel(*place)
        figure = report.figure(dataset, panel, bare=True, size=PANEL, colors=colors) if what.axis else None
        if figure is not None:
            label = f"{what.title} against {what.axis}, {panel}"
            plots.append(Plot(panel, themed_svg(figure, f"{id}-{number}", label)))
    legend = tuple(LegendEntry(name, colors[name] + 1, is_dashed[name]) for name in methods)
    figures = (Figures("", legend, tuple(plots)),) if plots else ()
    lead = f"{what.note} {BANDS}" if plots else what.note
    return Section(id, f"{what.title.removesuffix(', %')} on {dataset}", lead.strip(), figures, tables=tables)
