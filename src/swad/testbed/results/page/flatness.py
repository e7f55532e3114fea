"""Sections of the page on flatness and loss surfaces, for runs that were measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from swad.testbed.results.figures.flatness import flatness_figure, method_dashes
from swad.testbed.results.figures.style import method_colors, themed_svg
from swad.testbed.results.figures.surfaces import (
    MEAN_LABEL,
    corner_label,
    line_figure,
    points_on_line,
    surface_figure,
    surface_markers,
)
from swad.testbed.results.flatness_runs import (
    RunFlatness,
    Unit,
    curves_by_target,
    difference_curves,
    method_names,
    null_pairs,
    paired_differences,
    read_flatness,
    with_mean,
)
from swad.testbed.results.flatness_stats import QUANTITIES, SIDES, Difference
from swad.testbed.results.flatness_summary import by_dataset, ranking_notes
from swad.testbed.results.flatness_tables import (
    PAIRED,
    curvature_table,
    describe_bands,
    verdict_table,
    worst_case_table,
)
from swad.testbed.results.labels import weights_label
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


def flatness_sections(runs: Iterable[RunData]) -> list[Section]:
    """Build a section for each dataset and measurement setting, because values of two settings have no mean."""
    runs = list(runs)
    measured = [[read_flatness(run, measure=measure) for run in runs] for measure in QUANTITIES]
    groups = [group for each in measured for group in by_dataset(list(filter(None, each))).items()]
    return [_flatness_section(f"f{number}", dataset, group) for number, (dataset, group) in enumerate(groups)]


def _flatness_section(id: str, dataset: str, measured: Sequence[RunFlatness]) -> Section:
    quantity, of_loss = QUANTITIES[measured[0].measure], measured[0].measure == "loss"
    tables = []
    differences = paired_differences(measured)
    if differences:
        tables.append(verdict_table(PAIRED, differences, null_pairs(measured)))
    if any(flatness.worst_case for flatness in measured):
        tables.append(worst_case_table(measured))
    if any(flatness.curvature for flatness in measured):
        tables.append(curvature_table(measured))
    first, *others = _figures(id, measured, quantity, differences)
    return Section(
        id,
        f"Flatness on {dataset}{'' if of_loss else f': {quantity}'}",
        f"The mean rise of {quantity} at distance γ from the weights in random directions: a smaller rise is flatter. "
        f"{describe_bands(curves_by_target(measured), measured)} Seen domains are the sources; the unseen domain is "
        "the target.",
        (first,),
        tuple(others),
        tuple(ranking_notes(measured)) if of_loss else (),
        tuple(tables),
    )


def _figures(
    id: str, measured: Sequence[RunFlatness], quantity: str, paired: Mapping[Unit, Sequence[Difference]]
) -> list[Figures]:
    """Draw F and the differences to the reference method, for the mean over targets and each target."""
    colors = method_colors(method_names(measured))
    reference, differences = difference_curves(paired)
    groups = []
    for number, (title, by_side) in enumerate(with_mean(curves_by_target(measured)).items()):
        pairs = differences.get(title, {})
        dashes = method_dashes({"rise": by_side, "difference": pairs}, colors)
        style: dict[str, Any] = {"size": PANEL, "bare": True, "colors": colors, "dashes": dashes}
        plots = []
        for side in (side for side in SIDES if side in by_side):
            figure = flatness_figure({title: by_side}, sides=(side,), quantity=quantity, **style)
            label = f"Rise of {quantity} against the radius, {side} domains, {title}"
            plots.append(Plot(SIDES[side], themed_svg(figure, f"{id}-{number}-{side}", label)))
        for side in (side for side, curves in pairs.items() if curves):
            figure = flatness_figure({title: pairs}, sides=(side,), reference=reference, **style)
            label = f"Difference from {reference} against the radius, {side} domains, {title}"
            heading = f"{side.capitalize()}, minus {reference}: below 0 is flatter"
            plots.append(Plot(heading, themed_svg(figure, f"{id}-{number}-{side}-paired", label)))
        names = dict.fromkeys(curve.method for curves in by_side.values() for curve in curves)
        legend = tuple(LegendEntry(name, colors[name] + 1, dashes[name] > 0) for name in names)
        groups.append(Figures(title, legend, tuple(plots)))
    return groups


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
