"""The page's sections on flatness and loss surfaces, for runs that have been measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from swad.flatness.stored import Row
from swad.records import RunData
from swad.report import figures, flatness_figures
from swad.report.flatness import (
    SIDES,
    Difference,
    RunFlatness,
    RunSurface,
    Sides,
    by_target,
    flatness_of,
    method,
    paired_curves,
    ranking_of,
    surfaces_of,
    verdicts,
    with_mean,
)
from swad.report.runs import algorithm_name
from swad.report.tables import Table

SYMBOLS = {"*": "★", "D": "◆", "s": "■", "P": "✚", "o": "●", "v": "▼"}


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


@dataclass(frozen=True)
class FlatnessSection:
    """A data set's flatness."""

    id: str
    name: str
    about: str
    legend: tuple[tuple[str, int], ...]
    groups: tuple[Group, ...]
    verdicts: Table | None
    ranking: str


@dataclass(frozen=True)
class SurfacePlot:
    """One run's plane, or line."""

    title: str
    plots: tuple[Plot, ...]
    legend: tuple[tuple[str, str, int], ...]
    """Sign, what it stands for, and its colour; 0 is that of the text."""


@dataclass(frozen=True)
class SurfaceSection:
    """A data set's surfaces."""

    id: str
    name: str
    plots: tuple[SurfacePlot, ...]


def flatness_sections(runs: Iterable[RunData]) -> list[FlatnessSection]:
    """One for each data set with a run that was measured, and for each way of measuring: F of two have no mean."""
    groups: dict[tuple[str, str], list[RunFlatness]] = {}
    for run in runs:
        if (one := flatness_of(run)) is not None:
            groups.setdefault((run.dataset, one.settings["key"]), []).append(one)
    return [_flatness(f"f{place}", dataset, some) for place, ((dataset, _), some) in enumerate(groups.items())]


def _flatness(id: str, dataset: str, found: Sequence[RunFlatness]) -> FlatnessSection:
    groups = with_mean(by_target(found))
    methods = list(dict.fromkeys(c.method for sides in groups.values() for some in sides.values() for c in some))
    colours = flatness_figures.colours_of(methods)
    told: dict[str, Sequence[Difference]] = {
        f"{one.target}, trial {one.run.trial}": one.differences for one in found if one.differences
    }
    versus, paired = _paired(found)
    drawn = []
    for number, (title, sides) in enumerate(groups.items()):
        plots = []
        for side, words in SIDES.items():
            label = f"Rise of the loss against the radius, {side} domains, {title}"
            plots.append(_panel(words, sides, side, colours, f"{id}-{number}-{side}", label, ""))
        for side in SIDES if title in paired else ():
            words = f"{side.capitalize()}, minus {versus}: below 0 is flatter"
            label = f"Difference to {versus} against the radius, {side} domains, {title}"
            plots.append(_panel(words, paired[title], side, colours, f"{id}-{number}-{side}-paired", label, versus))
        drawn.append(Group(title, tuple(plots)))
    directions = sorted({one.directions for one in found})
    count = f"{directions[0]:,}" if len(directions) == 1 else f"{directions[0]:,} to {directions[-1]:,}"
    return FlatnessSection(
        id,
        dataset,
        f"{count} random directions a point{_apart(found[0].settings)}",
        tuple((name, colours[name] + 1) for name in methods),
        tuple(drawn),
        verdicts("Who is flatter", told) if told else None,
        _ranking(found),
    )


def _panel(words: str, sides: Sides, side: str, colours: Mapping[str, int], id: str, label: str, versus: str) -> Plot:
    figure = flatness_figures.flatness_figure(
        {label: sides}, sides=(side,), size=(4.4, 2.45), bare=True, colours=colours, versus=versus
    )
    return Plot(words, figures.theme_svg(figure, id, label))


def _paired(found: Sequence[RunFlatness]) -> tuple[str, dict[str, Sides]]:
    """The method that was compared with, and the differences to it; of several such, those to the first."""
    every = [difference for one in found for difference in one.differences]
    if not every:
        return "", {}
    versus = every[0].versus
    targets: dict[str, list[Difference]] = {}
    for one in found:
        targets.setdefault(one.target, []).extend(d for d in one.differences if d.versus == versus)
    return versus, paired_curves({target: some for target, some in targets.items() if some})


def _apart(settings: Row) -> str:
    """What else tells ways of measuring apart: images, directions that are not on a sphere, parameters left alone."""
    images = "all images" if settings.get("images") is None else f"{settings['images']:,} images of each domain"
    kind = settings.get("normalise", "sphere")
    some = [f"{word} {', '.join(settings[word])}" for word in ("include", "exclude") if settings.get(word)]
    moved = f", parameters: {'; '.join(some)}" if some else ""
    return f", {images}" + (f", directions normalised by {kind}" if kind != "sphere" else "") + moved


def _ranking(found: Sequence[RunFlatness]) -> str:
    """Whether the flatter methods are the more accurate ones, in a sentence; empty for fewer than three methods."""
    radius = max(found[0].curves["unseen"][0].radii)
    order = ranking_of(found, "unseen", radius)
    if order is None:
        return ""
    kendall = order.kendall
    return (
        f"Over {len(order.rows)} methods, flatness on the unseen domain at radius {radius:g} and accuracy there rank "
        f"alike with Kendall’s tau {kendall.value:+.2f} (exact p = {kendall.p:.2g})."
    )


def surface_sections(runs: Iterable[RunData]) -> list[SurfaceSection]:
    """One for each data set with a run whose plane or line was measured."""
    groups: dict[str, list[SurfacePlot]] = {}
    for place, run in enumerate(runs):
        for shape in ("plane", "line"):
            surface = surfaces_of(run, shape)
            if surface is not None:
                groups.setdefault(run.dataset, []).append(_surface(f"s{place}-{shape}", surface))
    return [SurfaceSection(f"s{place}", name, tuple(some)) for place, (name, some) in enumerate(groups.items())]


def _surface(id: str, surface: RunSurface) -> SurfacePlot:
    flat = surface.settings["shape"] == "line"
    title = f"{surface.target} as target, trial {surface.run.trial}"
    label = f"Loss on the {surface.settings['shape']} through {', '.join(surface.corners)}, {title}"
    legend: list[tuple[str, str, int]] = []
    if flat:
        legend += [("—", "seen", 1), ("—", "unseen", 2)]
    else:
        legend += [("△", _corners(surface), 0), ("✕", "their mean", 0)]
        for name, (mark, colour) in flatness_figures.marks_of(surface.further).items():
            away = surface.further[name][2]
            legend.append((SYMBOLS[mark], f"{method(surface.run, name)}, {away:.2g} off the plane", colour + 1))
    if flat:
        figure = flatness_figures.line_figure([surface], size=(4.4, 2.45), bare=True)
        return SurfacePlot(title, (Plot("Loss", figures.theme_svg(figure, id, label)),), tuple(legend))
    plots = []
    for side, words in SIDES.items():
        figure = flatness_figures.surface_figure([surface], sides=(side,), bare=True, width=3.6)
        plots.append(Plot(words, figures.theme_svg(figure, f"{id}-{side}", f"{label}, {side} domains")))
    return SurfacePlot(title, tuple(plots), tuple(legend))


def _corners(surface: RunSurface) -> str:
    steps = [int(name.removeprefix("step-")) for name in surface.corners if name.startswith("step-")]
    if len(steps) < len(surface.corners):
        return ", ".join(method(surface.run, name) for name in surface.corners)
    return f"{algorithm_name(surface.run.algorithm)} after {', '.join(f'{step:,}' for step in steps)} steps"
