"""The page's sections on flatness and loss surfaces, for runs that have been measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from swad.results.figures import flatness, training
from swad.results.flatness_rows import Row
from swad.results.flatness_stats import (
    SIDES,
    RunFlatness,
    RunSurface,
    Sides,
    by_target,
    flatness_of,
    method,
    methods_of,
    paired,
    paired_curves,
    ranking_of,
    surfaces_of,
    with_mean,
)
from swad.results.flatness_tables import curvature_table, verdicts, worst_table
from swad.results.runs import RunData
from swad.results.summary import algorithm_name
from swad.results.tables import Table

SYMBOLS = {
    "*": "★", "D": "◆", "s": "■", "P": "✚", "o": "●", "v": "▼", "<": "◀", ">": "▶", "p": "⬟", "h": "⬢", "x": "✕",
}  # fmt: skip


@dataclass(frozen=True)
class Plot:
    """One drawing."""

    title: str
    svg: str


@dataclass(frozen=True)
class Group:
    """The drawings of one target, or of the mean over all."""

    title: str
    plots: tuple[Plot, ...]
    legend: tuple[tuple[str, int, bool], ...]
    """Methods that are drawn, their colors, and whether their lines are dashed."""


@dataclass(frozen=True)
class FlatnessSection:
    """A dataset's flatness."""

    id: str
    name: str
    about: str
    groups: tuple[Group, ...]
    verdicts: Table | None
    ranking: str
    worst: Table | None
    curvature: Table | None


@dataclass(frozen=True)
class SurfacePlot:
    """One run's plane, or line."""

    title: str
    plots: tuple[Plot, ...]
    legend: tuple[tuple[str, str, int], ...]
    """Sign, what it stands for, and its color; 0 is that of the text."""


@dataclass(frozen=True)
class SurfaceSection:
    """A dataset's surfaces."""

    id: str
    name: str
    plots: tuple[SurfacePlot, ...]


def flatness_sections(runs: Iterable[RunData]) -> list[FlatnessSection]:
    """One for each dataset with a run that was measured, and for each way of measuring: F of two have no mean."""
    groups: dict[tuple[str, str], list[RunFlatness]] = {}
    for run in runs:
        if (one := flatness_of(run)) is not None:
            groups.setdefault((run.dataset, one.settings["key"]), []).append(one)
    return [_flatness(f"f{place}", dataset, some) for place, ((dataset, _), some) in enumerate(groups.items())]


def _flatness(id: str, dataset: str, found: Sequence[RunFlatness]) -> FlatnessSection:
    colors = flatness.colors_of(methods_of(found))
    told = paired(found)
    versus, differences = paired_curves(told)
    drawn = []
    for number, (title, sides) in enumerate(with_mean(by_target(found)).items()):
        plots = []
        pairs = differences.get(title, {})
        dashes = flatness.dashes_of({"rise": sides, "difference": pairs}, colors)
        for side, words in SIDES.items():
            label = f"Rise of the loss against the radius, {side} domains, {title}"
            plots.append(_panel(words, sides, side, colors, dashes, f"{id}-{number}-{side}", label, ""))
        for side in pairs:
            words = f"{side.capitalize()}, minus {versus}: below 0 is flatter"
            label = f"Difference to {versus} against the radius, {side} domains, {title}"
            place = f"{id}-{number}-{side}-paired"
            plots.append(_panel(words, pairs, side, colors, dashes, place, label, versus))
        names = dict.fromkeys(curve.method for some in sides.values() for curve in some)
        drawn.append(Group(title, tuple(plots), tuple((name, colors[name] + 1, dashes[name] > 0) for name in names)))
    directions = sorted({one.directions for one in found})
    count = f"{directions[0]:,}" if len(directions) == 1 else f"{directions[0]:,} to {directions[-1]:,}"
    return FlatnessSection(
        id,
        dataset,
        f"{count} random directions a point{_apart(found[0].settings)}",
        tuple(drawn),
        verdicts("Who is flatter", told) if told else None,
        _ranking(found),
        worst_table(found) if any(one.worst for one in found) else None,
        curvature_table(found) if any(one.curvature for one in found) else None,
    )


def _panel(
    words: str,
    sides: Sides,
    side: str,
    colors: Mapping[str, int],
    dashes: Mapping[str, int],
    id: str,
    label: str,
    versus: str,
) -> Plot:
    figure = flatness.flatness_figure(
        {label: sides}, sides=(side,), size=(4.4, 2.45), bare=True, colors=colors, dashes=dashes, versus=versus
    )
    return Plot(words, training.theme_svg(figure, id, label))


def _apart(settings: Row) -> str:
    """What else tells ways of measuring apart: images, directions that are not on a sphere, parameters left alone."""
    images = "all images" if settings.get("images") is None else f"{settings['images']:,} images of each domain"
    kind = settings.get("normalize", "sphere")
    some = [f"{word} {', '.join(settings[word])}" for word in ("include", "exclude") if settings.get(word)]
    moved = f", parameters: {'; '.join(some)}" if some else ""
    return f", {images}" + (f", directions normalized by {kind}" if kind != "sphere" else "") + moved


def _ranking(found: Sequence[RunFlatness]) -> str:
    """Whether the flatter methods are the more accurate ones, in a sentence; empty for fewer than three methods."""
    radius = max(found[0].curves["unseen"][0].radii)
    order = ranking_of(found, "unseen", radius)
    if order is None:
        return ""
    kendall = order.kendall
    return (
        f"Over {len(order.rows)} methods, flatness on the unseen domain at radius {radius:g} and accuracy there rank "
        f"alike with Kendall’s tau {kendall.value:+.2f} (exact p = {kendall.p:.2g}; 95 % {kendall.low:+.2f} to "
        f"{kendall.high:+.2f}, {order.interval_over})."
    )


def surface_sections(runs: Iterable[RunData]) -> list[SurfaceSection]:
    """One for each dataset with a run whose plane or line was measured."""
    groups: dict[str, list[tuple[str, RunSurface]]] = {}
    for place, run in enumerate(runs):
        for shape in ("plane", "line"):
            surface = surfaces_of(run, shape)
            if surface is not None:
                groups.setdefault(run.dataset, []).append((f"s{place}-{shape}", surface))
    return [
        SurfaceSection(f"s{place}", name, tuple(_surface(id, one, _several(some)) for id, one in some))
        for place, (name, some) in enumerate(groups.items())
    ]


def _several(some: Sequence[tuple[str, RunSurface]]) -> bool:
    """Whether surfaces are of runs of several algorithms."""
    return len({(one.run.algorithm, one.run.config.get("lr_schedule")) for _, one in some}) > 1


def _surface(id: str, surface: RunSurface, several: bool) -> SurfacePlot:
    flat = surface.settings["shape"] == "line"
    title = f"{surface.target} as target, trial {surface.run.trial}"
    if several:
        title = f"{method(surface.run, None)}: {title}"
    label = f"Loss on the {surface.settings['shape']} through {', '.join(surface.corners)}, {title}"
    legend: list[tuple[str, str, int]] = []
    if flat:
        legend += [("—", "seen", 1), ("—", "unseen", 2)]
    else:
        legend += [("△", _corners(surface), 0), ("✕", "their mean", 0)]
    marks = flatness.marks_of({method(surface.run, name) for name in surface.further})
    named = flatness.on_line(surface) if flat else {n: method(surface.run, n) for n in surface.further}
    for name, called in named.items():
        mark, color = marks.get(called, ("x", -1))
        away = f", {surface.points[name][2]:.2g} off the {surface.settings['shape']}" if called in marks else ""
        legend.append((SYMBOLS[mark], f"{called}{away}", 0 if flat else color + 1))
    if flat:
        figure = flatness.line_figure([surface], size=(4.4, 2.45), bare=True)
        return SurfacePlot(title, (Plot("Loss", training.theme_svg(figure, id, label)),), tuple(legend))
    plots = []
    for side, words in SIDES.items():
        figure = flatness.surface_figure([surface], sides=(side,), bare=True, width=3.6)
        plots.append(Plot(words, training.theme_svg(figure, f"{id}-{side}", f"{label}, {side} domains")))
    return SurfacePlot(title, tuple(plots), tuple(legend))


def _corners(surface: RunSurface) -> str:
    steps = [int(name.removeprefix("step-")) for name in surface.corners if name.startswith("step-")]
    if len(steps) < len(surface.corners):
        return ", ".join(method(surface.run, name) for name in surface.corners)
    return f"{algorithm_name(surface.run.algorithm)} after {', '.join(f'{step:,}' for step in steps)} steps"
