"""Sections of the page on loss surfaces, for runs that were measured."""

from __future__ import annotations

from collections.abc import Iterable

from swad.testbed.results.figures.style import themed_svg
from swad.testbed.results.figures.surfaces import (
    MEAN_LABEL,
    corner_label,
    line_figure,
    points_on_line,
    surface_figure,
    surface_markers,
)
from swad.testbed.results.labels import weights_label
from swad.testbed.results.measured import SIDES
from swad.testbed.results.page.section import PANEL, Figures, LegendEntry, Plot, Section
from swad.testbed.results.run_data import RunData
from swad.testbed.results.surfaces import RunSurface, read_surface

SYMBOLS = {
    "*": "★", "D": "◆", "s": "■", "P": "✚", "o": "●", "v": "▼", "<": "◀", ">": "▶", "p": "⬟", "h": "⬢", "x": "✕",
}  # fmt: skip
"""Characters for matplotlib's markers."""

SURFACES_LEAD = (
    "The loss on the plane through three weights or on the line between two. Distances on a plane are distances in "
    "weight space. Averages are projected onto the plane or line."
)


def surface_sections(runs: Iterable[RunData]) -> list[Section]:
    """Build a section for each dataset with a measured plane or line."""
    groups: dict[str, list[tuple[str, RunSurface]]] = {}
    for number, run in enumerate(runs):
        for shape in ("plane", "line"):
            surface = read_surface(run, shape)
            if surface is not None:
                groups.setdefault(run.table_name, []).append((f"s{number}-{shape}", surface))
    sections = []
    for number, (dataset, surfaces) in enumerate(groups.items()):
        algorithms = {(surface.run.algorithm, surface.run.config.get("lr_schedule")) for _, surface in surfaces}
        figures = tuple(_surface_figures(id, surface, name_algorithm=len(algorithms) > 1) for id, surface in surfaces)
        sections.append(Section(f"s{number}", f"Loss surfaces on {dataset}", SURFACES_LEAD, figures))
    return sections


def _surface_figures(id: str, surface: RunSurface, *, name_algorithm: bool) -> Figures:
    shape = surface.settings["shape"]
    target = f"{surface.run.target} as target" if surface.run.targets else "no target"
    title = f"{target}, trial {surface.run.trial}"
    if name_algorithm:
        title = f"{weights_label(surface.run, None)}: {title}"
    label = f"Loss on the {shape} through {', '.join(surface.corners)}, {title}"
    if shape == "line":
        figure = line_figure([surface], size=PANEL, bare=True)
        return Figures(title, _surface_legend(surface), (Plot("Loss", themed_svg(figure, id, label)),))
    plots = []
    for side, heading in ((side, SIDES[side]) for side in surface.grids):
        figure = surface_figure([surface], sides=(side,), bare=True, width=3.6)
        plots.append(Plot(heading, themed_svg(figure, f"{id}-{side}", f"{label}, {side} domains")))
    return Figures(title, _surface_legend(surface), tuple(plots))


def _surface_legend(surface: RunSurface) -> tuple[LegendEntry, ...]:
    shape = surface.settings["shape"]
    markers = surface_markers({weights_label(surface.run, name) for name in surface.projected})
    if shape == "line":
        legend = [LegendEntry(side, number) for number, side in enumerate(surface.grids, start=1)]
        labels = points_on_line(surface)
    else:
        legend = [LegendEntry(corner_label(surface), 0, symbol="△"), LegendEntry(MEAN_LABEL, 0, symbol="✕")]
        labels = {name: weights_label(surface.run, name) for name in surface.projected}
    for name, label in labels.items():
        marker, color = markers.get(label, ("x", -1))
        distance = f", {surface.points[name][2]:.2g} from the {shape}" if label in markers else ""
        color_number = 0 if shape == "line" else color + 1
        legend.append(LegendEntry(f"{label}{distance}", color_number, symbol=SYMBOLS[marker]))
    return tuple(legend)
