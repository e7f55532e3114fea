"""What a report shows of flatness: curves and surfaces read from the files beside the runs. No torch here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from swad.flatness import stored
from swad.flatness.stored import FLATNESS, SURFACE, Row, latest, number
from swad.records import RunData
from swad.report import flatness_spread as spread
from swad.report.flatness_spread import Pulls
from swad.report.runs import algorithm_name, method_name
from swad.report.tables import Cell, Table
from swad.report.tables import Row as TableRow

if TYPE_CHECKING:
    from swad.flatness.rank_order import Ranking

SIDES = {"seen": "Seen: training images of the sources", "unseen": "Unseen: the target"}
CORNERS = ("1", "2", "3")
MEAN = "mean"
OVER_TARGETS = "mean over targets"


@dataclass(frozen=True)
class FlatCurve:
    """F_gamma of one method against the radius, with its interval."""

    method: str
    radii: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    pulls: Pulls | None = field(default=None, compare=False, repr=False)
    """What directions and images each do to it, for means over runs that share them."""

    def at(self, radius: float) -> tuple[float, float, float]:
        """Mean and interval at a radius."""
        place = self.radii.index(radius)
        return self.mean[place], self.low[place], self.high[place]


@dataclass(frozen=True)
class Difference:
    """F_gamma of one method minus that of another, on the same directions and images: negative where it is flatter."""

    first: str
    """Weights."""
    second: str
    side: str
    curve: FlatCurve
    """Under the first one's name as a method."""
    versus: str
    """The second one's."""
    p: tuple[float, ...] = ()
    """Two-sided, at every radius; none for a mean over targets."""

    @property
    def verdict(self) -> str:
        """Where the first is flatter or sharper than the second, by the 95 % intervals; radius 0 does not count.

        >>> curve = FlatCurve("SWAD", (0.0, 1.0, 2.0, 3.0), (0, -1, -1, 1), (0, -2, -2, 0.5), (0, -0.5, 0.5, 2))
        >>> Difference("swad", "erm_best", "seen", curve, "ERM").verdict
        'flatter at 1, sharper at 3, open at 2'
        """
        radii = [radius for radius in self.curve.radii if radius > 0]
        by_word: dict[str, list[float]] = {"flatter": [], "sharper": [], "open": []}
        for radius in radii:
            _, low, high = self.curve.at(radius)
            by_word["flatter" if high < 0 else "sharper" if low > 0 else "open"].append(radius)
        for word, some in by_word.items():
            if len(some) == len(radii) and word != "open":
                each = [p for radius, p in zip(self.curve.radii, self.p, strict=False) if radius > 0]
                return f"{word} at every radius" + (f" (p = {max(each):.2g})" if each else "")
        if len(by_word["open"]) == len(radii):
            return "no difference shown"
        return ", ".join(f"{word} at {_stretches(some, radii)}" for word, some in by_word.items() if some)


def _stretches(some: Sequence[float], radii: Sequence[float]) -> str:
    """Radii that follow each other as one stretch: 2–10, 24."""
    parts: list[list[float]] = []
    for radius in some:
        before = radii.index(radius) - 1
        if parts and before >= 0 and parts[-1][-1] == radii[before]:
            parts[-1].append(radius)
        else:
            parts.append([radius])
    return ", ".join(f"{part[0]:g}–{part[-1]:g}" if len(part) > 1 else f"{part[0]:g}" for part in parts)


Sides = Mapping[str, Sequence[FlatCurve]]
"""Curves by side, "seen" and "unseen", or by domain."""


@dataclass(frozen=True)
class RunFlatness:
    """What was measured of one run's weights with one setting."""

    run: RunData
    settings: Row
    curves: Mapping[str, tuple[FlatCurve, ...]]
    """By "seen", "unseen" and every domain."""
    weights: Mapping[str, str]
    """Methods by the name of their weights."""
    directions: int
    differences: tuple[Difference, ...] = ()
    """Paired, within the run, against the weights that were named first."""
    worst: tuple[Row, ...] = ()
    curvature: tuple[Row, ...] = ()

    @property
    def target(self) -> str:
        """The domain held out."""
        return "+".join(self.run.targets)


def method(run: RunData, weights: str) -> str:
    """Name a method for a figure: the algorithm's live weights by its own name, averages by theirs.

    >>> from pathlib import Path
    >>> run = RunData(Path(), {"algorithm": "erm", "lr_schedule": "cyclic"}, (), True)
    >>> method(run, "swa"), method(run, "erm_best"), method(run, "step-000300")
    ('SWA (cyclic)', 'ERM (best, cyclic)', 'ERM (step 300, cyclic)')
    """
    if weights.startswith("step-"):
        name = f"{algorithm_name(run.algorithm)} (step {int(weights.removeprefix('step-'))})"
    else:
        name = method_name(run.algorithm, weights)
    if run.config.get("lr_schedule") == "cyclic":
        name = f"{name[:-1]}, cyclic)" if name.endswith(")") else f"{name} (cyclic)"
    return name


def flatness_of(run: RunData, kinds: Sequence[str] = ()) -> RunFlatness | None:
    """Read what was last asked for of a run, of all weights or of some; None where nothing was."""
    rows = stored.read(run.path, FLATNESS)
    found = stored.last_shown(rows, "row")
    if found is None:
        return None
    settings, measured = found
    measured = [row for row in latest(measured, "weights", "domain", "radius") if row["domain"] is not None]
    curves: dict[str, list[FlatCurve]] = {}
    names = list(dict.fromkeys(row["weights"] for row in measured))
    domains = list(dict.fromkeys(row["domain"] for row in measured))
    raw = [row for row in rows if row["key"] == settings["key"]]
    pulls = {(name, side): _pulls(run, raw, name, side, domains) for name in names for side in SIDES}
    for domain in domains:
        for name in names if not kinds else [name for name in names if name in kinds]:
            some = [row for row in measured if row["domain"] == domain and row["weights"] == name]
            if some:
                curves.setdefault(domain, []).append(_curve(method(run, name), some, pulls.get((name, domain))))
    if not curves:
        return None
    told = [row for row in rows if row["kind"] == "difference" and row["key"] == settings.get("key")]
    if told:  # against the first of the last measurement
        told = [row for row in told if row["second"] == told[-1]["second"]]
    worst, curved = (stored.last_shown(rows, kind) for kind in ("worst_case", "curvature"))
    return RunFlatness(
        run,
        settings,
        {domain: tuple(some) for domain, some in curves.items()},
        {name: method(run, name) for name in names if not kinds or name in kinds},
        int(measured[-1]["n_directions"]),
        tuple(
            one
            for one in differences(latest(told, "first", "domain", "radius"), {n: method(run, n) for n in names}, pulls)
            if not kinds or one.first in kinds
        ),
        *(
            tuple(row for row in (some[1] if some else ()) if not kinds or row["weights"] in kinds)
            for some in (worst, curved)
        ),
    )


def _pulls(run: RunData, rows: Sequence[Row], weights: str, side: str, domains: Sequence[str]) -> Pulls | None:
    """Training images are those of the trial's split, whatever the target; the target's are all it has."""
    some = [d for d in domains if d not in SIDES and (d in run.targets) == (side == "unseen")]
    trial = run.trial if side == "seen" else None
    return spread.pulls_of(rows, weights, some, dict.fromkeys(some, (side, trial))) if some else None


def _curve(name: str, rows: Sequence[Row], pulls: Pulls | None = None) -> FlatCurve:
    rows = sorted(rows, key=lambda row: float(row["radius"]))
    mean, low, high = (tuple(number(row[field]) for row in rows) for field in ("mean", "low", "high"))
    return FlatCurve(name, tuple(float(row["radius"]) for row in rows), mean, low, high, pulls)


def differences(
    rows: Iterable[Row], names: Mapping[str, str], pulls: Mapping[tuple[str, str], Pulls | None] | None = None
) -> list[Difference]:
    """Difference rows as curves, on the two sides; `names` are methods by weights, `pulls` by weights and side."""
    known = pulls or {}
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row["domain"] in SIDES:
            groups.setdefault((row["first"], row["second"], row["domain"]), []).append(row)
    return [
        Difference(
            first,
            second,
            side,
            _curve(
                names.get(first, first),
                some,
                spread.difference(known.get((first, side)), known.get((second, side))),
            ),
            names.get(second, second),
            tuple(number(row["p"]) for row in sorted(some, key=lambda row: float(row["radius"]))),
        )
        for (first, second, side), some in groups.items()
    ]


def verdicts(title: str, groups: Mapping[str, Sequence[Difference]]) -> Table:
    """Who is flatter, in words: a row for each target and method, and for the mean over targets where several are."""
    every = {name: list(some) for name, some in groups.items()}
    if len(groups) > 1:
        every[OVER_TARGETS] = mean_differences(groups)
    rows = []
    for target, some in every.items():
        for name in sorted({(one.curve.method, one.versus) for one in some}, key=lambda pair: _place(pair[0])):
            mine = {one.side: one.verdict for one in some if (one.curve.method, one.versus) == name}
            cells = tuple(Cell(text=mine.get(side, "–")) for side in SIDES)
            rows.append(TableRow(f"{target}: {name[0]} against {name[1]}", cells))
    return Table(title, tuple(f"on {side} domains" for side in SIDES), tuple(rows), corner="Target")


def mean_differences(groups: Mapping[str, Sequence[Difference]]) -> list[Difference]:
    """The mean over targets of every difference that was measured on all of them."""
    found: dict[tuple[str, str, str], list[Difference]] = {}
    for some in groups.values():
        for one in some:
            found.setdefault((one.curve.method, one.versus, one.side), []).append(one)
    return [
        Difference(some[0].first, some[0].second, side, average([one.curve for one in some]), versus)
        for (_, versus, side), some in found.items()
        if len(some) == len(groups)
    ]


def paired_curves(groups: Mapping[str, Sequence[Difference]]) -> dict[str, Sides]:
    """What `verdicts` says in words, as curves by group and side, the mean over several groups first.

    A group is a target; where it holds several trials, they are averaged over.
    """
    single: dict[str, list[Difference]] = {}
    for target, some in groups.items():
        pairs: dict[tuple[str, str, str], list[Difference]] = {}
        for one in some:
            pairs.setdefault((one.curve.method, one.versus, one.side), []).append(one)
        single[target] = [replace(mine[0], curve=average([one.curve for one in mine])) for mine in pairs.values()]
    every = {OVER_TARGETS: mean_differences(single), **single} if len(single) > 1 else single
    return {
        title: {side: in_order(one.curve for one in some if one.side == side) for side in SIDES}
        for title, some in every.items()
    }


# ------------------------------------------------------------ several runs


def by_target(found: Iterable[RunFlatness]) -> dict[str, dict[str, list[FlatCurve]]]:
    """Curves by target, then side; runs of other algorithms add methods, further trials are averaged over."""
    groups: dict[str, dict[str, dict[str, list[FlatCurve]]]] = {}
    for one in found:
        for side in SIDES:
            for curve in one.curves.get(side, ()):
                groups.setdefault(one.target, {}).setdefault(side, {}).setdefault(curve.method, []).append(curve)
    return {
        target: {side: in_order(map(average, methods.values())) for side, methods in sides.items()}
        for target, sides in sorted(groups.items())
    }


def over_targets(groups: Mapping[str, Sides]) -> dict[str, list[FlatCurve]]:
    """The mean over targets of every method that was measured on all of them."""
    means: dict[str, list[FlatCurve]] = {}
    for side in SIDES:
        methods: dict[str, list[FlatCurve]] = {}
        for sides in groups.values():
            for curve in sides.get(side, ()):
                methods.setdefault(curve.method, []).append(curve)
        means[side] = in_order(average(some) for some in methods.values() if len(some) == len(groups))
    return means


def with_mean(groups: Mapping[str, Sides]) -> dict[str, Sides]:
    """The targets, and where there are several their mean before them."""
    return {OVER_TARGETS: over_targets(groups), **groups} if len(groups) > 1 else dict(groups)


def average(curves: Sequence[FlatCurve]) -> FlatCurve:
    """The mean of curves at the radii they share, with its interval.

    Where it is known what directions and images did to each, those that curves share are counted together; curves
    that come without are taken for independent measurements.

    >>> one, two = (FlatCurve("ERM", (1.0,), (m,), (m - 3,), (m + 3,)) for m in (1.0, 3.0))
    >>> average([one, two]).mean, round(average([one, two]).high[0], 3)
    ((2.0,), 4.121)
    """
    if len(curves) == 1:
        return curves[0]
    radii = tuple(radius for radius in curves[0].radii if all(radius in curve.radii for curve in curves))
    points = [[curve.at(radius) for curve in curves] for radius in radii]
    n = len(curves)
    means = tuple(math.fsum(point[0] for point in some) / n for some in points)
    known = [
        {name: one[:, [curve.radii.index(radius) for radius in radii]] for name, one in curve.pulls.items()}
        for curve in curves
        if curve.pulls is not None
    ]
    if len(known) == n:
        pulls = spread.mean(known)
        halves = spread.half_widths(pulls)
        low, high = ([m + sign * half for m, half in zip(means, halves, strict=True)] for sign in (-1, 1))
        return FlatCurve(curves[0].method, radii, means, tuple(low), tuple(high), pulls)

    def end(place: int) -> tuple[float, ...]:
        widths = [math.sqrt(math.fsum((point[0] - point[place]) ** 2 for point in some)) / n for some in points]
        return tuple(mean + (width if place == 2 else -width) for mean, width in zip(means, widths, strict=True))

    return FlatCurve(curves[0].method, radii, means, end(1), end(2))


ORDER = ("ERM", "SAM", "EMA", "SMA", "SWA (cyclic)", "SWA", "SWAD")


def in_order(curves: Iterable[FlatCurve]) -> list[FlatCurve]:
    """Plain training first, SWAD last, as in the paper's figure."""

    return sorted(curves, key=lambda curve: _place(curve.method))


def _place(name: str) -> tuple[int, str]:
    first = name.split(" (best")[0].split(" (last")[0]
    return ORDER.index(first) if first in ORDER else len(ORDER) - 2, name


def domain_table(found: Sequence[RunFlatness]) -> Table:
    """F of every method on every domain at the largest radius: a mean can look flat while one domain is sharp."""
    domains = list(dict.fromkeys(name for one in found for name in one.curves if name not in SIDES))
    radius = max(radius for one in found for curve in one.curves["seen"] for radius in curve.radii)
    rows = []
    for one in found:
        for place, first in enumerate(one.curves["seen"]):
            cells = []
            for domain in domains:
                curve = one.curves[domain][place] if domain in one.curves else None
                known = curve is not None and radius in curve.radii
                cells.append(spread_cell(*curve.at(radius)) if curve is not None and known else Cell())
            rows.append(TableRow(f"{one.target}, trial {one.run.trial}: {first.method}", tuple(cells)))
    return Table(f"F by domain at γ = {radius:g}", tuple(domains), tuple(rows), corner="Target")


def spread_cell(mean: float, low: float, high: float) -> Cell:
    """A value of F with half of its interval, with as many digits as it needs."""
    size = abs(mean)
    return Cell(mean, (high - low) / 2, decimals=4 if size < 0.1 else 3 if size < 10 else 1)


def ranking_of(found: Sequence[RunFlatness], side: str, radius: float) -> Ranking | None:
    """Rank methods by F at a radius and by accuracy on the target, over the targets and trials that all have.

    None with fewer than three methods, no target and trial in common, or all of them equally flat or accurate.
    """
    from swad.flatness.rank_order import ranking

    flat: dict[str, dict[tuple[str, int], float]] = {}
    good: dict[str, dict[tuple[str, int], float]] = {}
    for one in found:
        unit = (one.target, one.run.trial)
        accuracy = _target_accuracy(one.run)
        for weights, name in one.weights.items():
            curve = next((c for c in one.curves.get(side, ()) if c.method == name), None)
            if curve is not None and radius in curve.radii and weights in accuracy:
                flat.setdefault(name, {})[unit] = curve.at(radius)[0]
                good.setdefault(name, {})[unit] = accuracy[weights]
    units = sorted(set.intersection(*(set(some) for some in flat.values()))) if len(flat) >= 3 else []
    if not units:
        return None
    try:
        order = ranking(
            {name: [some[unit] for unit in units] for name, some in flat.items()},
            {name: [some[unit] for unit in units] for name, some in good.items()},
        )
    except ImportError:  # a report does without scipy
        return None
    return order if math.isfinite(order.kendall.value) else None


def _target_accuracy(run: RunData) -> dict[str, float]:
    """Accuracy on the target's reported part, by weights; the mean where several domains are held out."""
    found: dict[str, list[float]] = {}
    for record in run.records:
        if record.metric == "accuracy" and record.domain in run.targets and record.split == "in" and record.average:
            found.setdefault(record.average, []).append(record.value)
    return {name: math.fsum(values) / len(values) for name, values in found.items()}


# ------------------------------------------------------------ surfaces


@dataclass(frozen=True)
class RunSurface:
    """A plane or a line that was measured whole."""

    run: RunData
    settings: Row
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    grids: Mapping[str, tuple[tuple[float, ...], ...]]
    """Losses by "seen" and "unseen", a row for each y."""
    points: Mapping[str, tuple[float, float, float]]
    """x, y and the distance off the plane, by what they are called."""
    losses: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Of the points, by side."""

    @property
    def target(self) -> str:
        """The domain held out."""
        return "+".join(self.run.targets)

    @property
    def corners(self) -> dict[str, tuple[float, float]]:
        """The weights that the plane or line goes through."""
        named = zip(self.settings["corners"], CORNERS, strict=False)
        return {weights: self.points[corner][:2] for weights, corner in named}

    @property
    def mean(self) -> tuple[float, float]:
        """The mean of the corners."""
        return self.points[MEAN][:2]

    @property
    def further(self) -> dict[str, tuple[float, float, float]]:
        """Averages projected onto the plane."""
        return {name: place for name, place in self.points.items() if name not in (*CORNERS, MEAN)}


def surfaces_of(run: RunData, shape: str = "plane") -> RunSurface | None:
    """Read the plane or line of a run that was asked for last; None where there is none, or it is not whole."""
    rows = stored.read(run.path, SURFACE)
    found = stored.last_shown(rows, "surface", shape)
    if found is None:
        return None
    settings, (head, *_) = found
    points = [row for row in rows if row["kind"] == "surface-point" and row["key"] == settings["key"]]
    grid = {(row["x"], row["y"]): row for row in points if row["name"] is None}
    wanted = [[(x, y) for x in head["xs"]] for y in head["ys"]]
    if any(place not in grid for line in wanted for place in line):
        return None
    named = {row["name"]: row for row in points if row["name"] is not None}
    sides = {side: list(settings[side]) for side in SIDES}
    return RunSurface(
        run,
        settings,
        tuple(head["xs"]),
        tuple(head["ys"]),
        {
            side: tuple(tuple(_side_loss(grid[place], members) for place in line) for line in wanted)
            for side, members in sides.items()
        },
        {name: (row["x"], row["y"], row["distance"]) for name, row in named.items()},
        {name: {side: _side_loss(row, some) for side, some in sides.items()} for name, row in named.items()},
    )


def _side_loss(row: Row, domains: Sequence[str]) -> float:
    return math.fsum(number(row["losses"][domain]) for domain in domains) / len(domains)
