"""Sections of the page on flatness and loss surfaces, for runs that were measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from swad.results.figures.flatness import flatness_figure, method_colors, method_dashes
from swad.results.figures.style import themed_svg
from swad.results.figures.surfaces import (
    MEAN_LABEL,
    corner_label,
    line_figure,
    points_on_line,
    surface_figure,
    surface_markers,
)
from swad.results.flatness_runs import (
    RunFlatness,
    curves_by_target,
    difference_curves,
    method_names,
    null_pairs,
    paired_differences,
    rank_methods,
    read_flatness,
    with_mean,
)
from swad.results.flatness_stats import QUANTITIES, SIDES, CurvesBySide
from swad.results.flatness_tables import (
    VERDICTS_NOTE,
    curvature_table,
    describe_bands,
    verdict_table,
    worst_case_table,
)
from swad.results.labels import weights_label
from swad.results.runs import RunData
from swad.results.surfaces import RunSurface, read_surface
from swad.results.tables import Table

SYMBOLS = {
    "*": "★", "D": "◆", "s": "■", "P": "✚", "o": "●", "v": "▼", "<": "◀", ">": "▶", "p": "⬟", "h": "⬢", "x": "✕",
}  # fmt: skip
"""Characters for matplotlib's markers."""


@dataclass(frozen=True)
class Plot:
    """One figure with its title."""

    title: str
    svg: str


@dataclass(frozen=True)
class Group:
    """The figures of one target, or of the mean over targets."""

    title: str
    plots: tuple[Plot, ...]
    legend: tuple[tuple[str, int, bool], ...]
    """Method, color, and whether the line is dashed."""


@dataclass(frozen=True)
class FlatnessSection:
    """The flatness of one dataset."""

    id: str
    name: str
    quantity: str
    """What rises: the loss or the 0-1 error."""
    measurement: str
    """What the bands are, with directions and images."""
    groups: tuple[Group, ...]
    verdicts: Table | None
    ranking: str
    worst_case: Table | None
    curvature: Table | None
    verdicts_note: str = VERDICTS_NOTE


@dataclass(frozen=True)
class SurfacePlot:
    """The plane or line of one run."""

    title: str
    plots: tuple[Plot, ...]
    legend: tuple[tuple[str, str, int], ...]
    """Symbol, meaning and color; 0 is the color of text."""


@dataclass(frozen=True)
class SurfaceSection:
    """The surfaces of one dataset."""

    id: str
    name: str
    plots: tuple[SurfacePlot, ...]


def flatness_sections(runs: Iterable[RunData]) -> list[FlatnessSection]:
    """Build a section for each dataset and measurement setting, because values of two settings have no mean."""
    groups: dict[tuple[str, str], list[RunFlatness]] = {}
    for run in runs:
        for measure in QUANTITIES:
            if (flatness := read_flatness(run, measure=measure)) is not None:
                groups.setdefault((run.table_name, flatness.setting), []).append(flatness)
    return [
        _flatness_section(f"f{number}", dataset, measured)
        for number, ((dataset, _), measured) in enumerate(groups.items())
    ]


def _flatness_section(id: str, dataset: str, measured: Sequence[RunFlatness]) -> FlatnessSection:
    differences = paired_differences(measured)
    return FlatnessSection(
        id,
        dataset if measured[0].measure == "loss" else f"{dataset}: the 0-1 error",
        QUANTITIES[measured[0].measure],
        describe_bands(curves_by_target(measured), measured),
        _groups(id, measured),
        verdict_table("Paired differences", differences, null_pairs(measured)) if differences else None,
        _ranking(measured) if measured[0].measure == "loss" else "",
        worst_case_table(measured) if any(flatness.worst_case for flatness in measured) else None,
        curvature_table(measured) if any(flatness.curvature for flatness in measured) else None,
    )


def _groups(id: str, measured: Sequence[RunFlatness]) -> tuple[Group, ...]:
    """Draw F and the differences to the reference method, for the mean over targets and each target."""
    colors, quantity = method_colors(method_names(measured)), QUANTITIES[measured[0].measure]
    reference, differences = difference_curves(paired_differences(measured))
    groups = []
    for number, (title, by_side) in enumerate(with_mean(curves_by_target(measured)).items()):
        pairs = differences.get(title, {})
        dashes = method_dashes({"rise": by_side, "difference": pairs}, colors)
        plots = []
        for side, heading in SIDES.items():
            if side not in by_side:
                continue
            label = f"Rise of {quantity} against the radius, {side} domains, {title}"
            plots.append(
                _plot(heading, by_side, side, colors, dashes, f"{id}-{number}-{side}", label, quantity=quantity)
            )
        for side in (side for side, curves in pairs.items() if curves):
            heading = f"{side.capitalize()}, minus {reference}: below 0 is flatter"
            label = f"Difference to {reference} against the radius, {side} domains, {title}"
            plots.append(_plot(heading, pairs, side, colors, dashes, f"{id}-{number}-{side}-paired", label, reference))
        names = dict.fromkeys(curve.method for curves in by_side.values() for curve in curves)
        legend = tuple((name, colors[name] + 1, dashes[name] > 0) for name in names)
        groups.append(Group(title, tuple(plots), legend))
    return tuple(groups)


def _plot(
    title: str,
    by_side: CurvesBySide,
    side: str,
    colors: Mapping[str, int],
    dashes: Mapping[str, int],
    id: str,
    label: str,
    reference: str = "",
    quantity: str = "the loss",
) -> Plot:
    figure = flatness_figure(
        {label: by_side},
        sides=(side,),
        size=(4.4, 2.45),
        bare=True,
        colors=colors,
        dashes=dashes,
        reference=reference,
        quantity=quantity,
    )
    return Plot(title, themed_svg(figure, id, label))


def _ranking(measured: Sequence[RunFlatness]) -> str:
    """Return a sentence on the rank correlation of flatness and accuracy; empty for fewer than three methods."""
    if "unseen" not in measured[0].curves:
        return ""
    radius = max(measured[0].curves["unseen"][0].radii)
    order = rank_methods(measured, "unseen", radius)
    if order is None:
        return ""
    kendall = order.kendall
    return (
        f"The rank correlation of {len(order.rows)} methods between flatness on the unseen domain at radius {radius:g} "
        f"and accuracy there is {kendall.value:+.2f} (Kendall’s tau; exact p = {kendall.p:.2g}; 95 % interval "
        f"{kendall.low:+.2f} to {kendall.high:+.2f}, {order.interval_over})."
    )


def surface_sections(runs: Iterable[RunData]) -> list[SurfaceSection]:
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
        plots = tuple(_surface_plot(id, surface, name_algorithm=len(algorithms) > 1) for id, surface in surfaces)
        sections.append(SurfaceSection(f"s{number}", dataset, plots))
    return sections


def _surface_plot(id: str, surface: RunSurface, *, name_algorithm: bool) -> SurfacePlot:
    shape = surface.settings["shape"]
    target = f"{surface.target} as target" if surface.run.targets else "no target"
    title = f"{target}, trial {surface.run.trial}"
    if name_algorithm:
        title = f"{weights_label(surface.run, None)}: {title}"
    label = f"Loss on the {shape} through {', '.join(surface.corners)}, {title}"
    if shape == "line":
        figure = line_figure([surface], size=(4.4, 2.45), bare=True)
        return SurfacePlot(title, (Plot("Loss", themed_svg(figure, id, label)),), _surface_legend(surface))
    plots = []
    for side, heading in ((side, SIDES[side]) for side in surface.grids):
        figure = surface_figure([surface], sides=(side,), bare=True, width=3.6)
        plots.append(Plot(heading, themed_svg(figure, f"{id}-{side}", f"{label}, {side} domains")))
    return SurfacePlot(title, tuple(plots), _surface_legend(surface))


def _surface_legend(surface: RunSurface) -> tuple[tuple[str, str, int], ...]:
    shape = surface.settings["shape"]
    markers = surface_markers({weights_label(surface.run, name) for name in surface.projected})
    if shape == "line":
        legend = [("—", side, number) for number, side in enumerate(surface.grids, start=1)]
        labels = points_on_line(surface)
    else:
        legend = [("△", corner_label(surface), 0), ("✕", MEAN_LABEL, 0)]
        labels = {name: weights_label(surface.run, name) for name in surface.projected}
    for name, label in labels.items():
        marker, color = markers.get(label, ("x", -1))
        distance = f", {surface.points[name][2]:.2g} from the {shape}" if label in markers else ""
        legend.append((SYMBOLS[marker], f"{label}{distance}", 0 if shape == "line" else color + 1))
    return tuple(legend)
