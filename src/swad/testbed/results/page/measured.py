"""Sections of the page on measurements: a section for each measurement and dataset, all built alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from swad.testbed.results.figures.curves import BANDS
from swad.testbed.results.figures.style import DASHES, method_colors, themed_svg
from swad.testbed.results.measured_report import MeasuredReport
from swad.testbed.results.page.section import Drawing, Figures, LegendEntry, Section
from swad.testbed.results.surface_report import SurfaceReport
from swad.util.grouping import group_by

if TYPE_CHECKING:
    import pandas as pd


SURFACES_LEAD = (
    "The loss on the plane through three weights or on the line between two. Distances on a plane are distances in "
    "weight space. Averages are projected onto the plane or line."
)


def measured_sections(id: str, report: MeasuredReport | SurfaceReport) -> list[Section]:
    """Build the sections of a measurement.

    Args:
        id: Prefix of the ids in the page.
        report: The measurement.
    """
    if isinstance(report, SurfaceReport):
        by_dataset = group_by(report.surfaces, lambda surface: surface.run.table_name)
        return [
            _surface_section(f"{id}-{number}", dataset, SurfaceReport(tuple(surfaces)))
            for number, (dataset, surfaces) in enumerate(by_dataset.items())
        ]
    datasets = dict.fromkeys(dataset for dataset, *_ in report.by_place)
    return [_section(f"{id}-{number}", dataset, report) for number, dataset in enumerate(datasets)]


def _section(id: str, dataset: str, report: MeasuredReport) -> Section:
    what, of_dataset = report.what, report.means["dataset"] == dataset
    tables = tuple(table for place, tables in report.by_place.items() if place[0] == dataset for table in tables)
    methods = list(dict.fromkeys(report.means[of_dataset]["method"]))
    colors = method_colors(methods)
    # Colors repeat after eight methods, and not everyone sees them.
    dashed = {method: number % len(DASHES) > 0 for number, method in enumerate(methods)}
    charts = []
    if what.axis:
        means, differences = report.drawn(dataset)
        below = differences.dropna(subset="low").rename(columns={"difference": "mean"})
        for panel, curves in means.groupby("panel", sort=False):
            charts.append(_chart(str(panel), curves, report, colors, dashed))
            if len(of_panel := below[below["panel"] == panel]):
                title = f"Difference from {of_panel['baseline'].iloc[0]}: {panel}"
                charts.append(_chart(title, of_panel, report, colors, dashed))
    legend = tuple(LegendEntry(name, colors[name] + 1, dashed[name]) for name in methods)
    figures = (Figures(legend=legend, charts=tuple(charts), id=f"{id}-charts"),) if charts else ()
    title, lead = f"{what.title.removesuffix(', %')} on {dataset}", f"{what.note} {BANDS}" if charts else what.note
    return Section(id, title, lead.strip(), figures, tables=tables)


def _surface_section(id: str, dataset: str, report: SurfaceReport) -> Section:
    drawings = []
    for shape, figure in zip(report.by_shape, report.figures().values(), strict=True):
        corners = sorted({", ".join(surface.corners) for surface in report.by_shape[shape]})
        label = f"Loss on the {shape} through {'; '.join(corners)}, on {dataset}"
        drawings.append(Drawing(themed_svg(figure, f"{id}-{shape}", label), figure.get_figwidth()))
    figures = (Figures(drawings=tuple(drawings)),)
    return Section(id, f"Loss surfaces on {dataset}", SURFACES_LEAD, figures, tables=report.tables)


def _chart(
    title: str, rows: pd.DataFrame, report: MeasuredReport, colors: Mapping[str, int], dashed: Mapping[str, bool]
) -> dict[str, Any]:
    """Return a chart of curves with bands: columns quantity method mean low high."""
    series = []
    for name, curve in rows.groupby("method", sort=False):
        curve = curve.astype({"quantity": float}).sort_values("quantity")
        at, band = [], []
        for x, mean, low, high in curve[["quantity", "mean", "low", "high"]].itertuples(index=False):
            if mean == mean:
                at.append([x, report.what.scale * mean])
            if low == low:
                band.append([x, report.what.scale * low, report.what.scale * high])
        series.append(
            {"name": name, "color": colors[str(name)] + 1, "dashed": dashed[str(name)], "at": at, "band": band}
        )
    return {"title": title, "across": {"name": report.what.axis}, "series": series}
