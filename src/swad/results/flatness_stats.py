"""What a report shows of flatness: curves and surfaces read from the files beside the runs. No torch here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from swad.results import flatness_rows
from swad.results import flatness_spread as spread
from swad.results.flatness_rows import FLATNESS, SURFACE, Row, latest_rows
from swad.results.flatness_spread import Pulls
from swad.results.runs import RunData
from swad.results.summary import algorithm_name, method_name

if TYPE_CHECKING:
    from swad.results.rank_correlation import Ranking

SIDES = {"seen": "Seen: training images of the sources", "unseen": "Unseen: the target"}
CORNERS = ("1", "2", "3")
MEAN = "mean"
OVER_TARGETS = "mean over targets"

Unit = tuple[str, int]
"""Target and trial: runs that share both saw the same images."""


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
    """Two-sided, at every radius; none for a mean, and for methods of two runs."""

    @property
    def verdict(self) -> str:
        """Where the first is flatter or sharper than the second, by the 95 % intervals; radius 0 does not count.

        >>> curve = FlatCurve("SWAD", (0.0, 1.0, 2.0, 3.0), (0, -1, -1, 1), (0, -2, -2, 0.5), (0, -0.5, 0.5, 2))
        >>> Difference("swad", "best", "seen", curve, "ERM").verdict
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
    first: str = ""
    """The weights that were named first: what the others are compared with."""
    differences: tuple[Difference, ...] = ()
    """Paired, within the run, against those."""
    worst: tuple[Row, ...] = ()
    curvature: tuple[Row, ...] = ()

    @property
    def target(self) -> str:
        """The domain held out."""
        return "+".join(self.run.targets)

    @property
    def unit(self) -> Unit:
        """What it shares images with."""
        return self.target, self.run.trial


def method(run: RunData, weights: str | None) -> str:
    """Name a method for a figure: the algorithm's live weights by its own name, averages by theirs; None: the run.

    >>> from pathlib import Path
    >>> run = RunData(Path(), {"algorithm": "erm", "lr_schedule": "cyclic"}, (), True)
    >>> method(run, "swa"), method(run, "best"), method(run, "step-000300"), method(run, None)
    ('SWA (cyclic)', 'ERM (best, cyclic)', 'ERM (step 300, cyclic)', 'ERM (cyclic)')
    """
    if weights is None:
        name = algorithm_name(run.algorithm)
    elif weights.startswith("step-"):
        name = f"{algorithm_name(run.algorithm)} (step {int(weights.removeprefix('step-'))})"
    else:
        name = method_name(run.algorithm, weights)
    if run.config.get("lr_schedule") == "cyclic":
        name = f"{name[:-1]}, cyclic)" if name.endswith(")") else f"{name} (cyclic)"
    return name


def flatness_of(run: RunData, kinds: Sequence[str] = ()) -> RunFlatness | None:
    """Read what was last asked for of a run, of all weights or of some; None where nothing was."""
    rows = flatness_rows.read_rows(run.path, FLATNESS)
    found = flatness_rows.last_shown(rows, "row")
    if found is None:
        return None
    settings, measured = found
    measured = [row for row in latest_rows(measured, "weights", "domain", "radius") if row["domain"] is not None]
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
    told = [row for row in raw if row["kind"] == "difference"]
    before = told[-1]["second"] if told else names[0]  # older files do not say
    first = next((row["first"] for row in reversed(raw) if row["kind"] == "shown" and "first" in row), before)
    there = [name for name in kinds or names if name in names]
    first = first if first in there else there[0]
    told = [row for row in told if row["second"] == first]
    worst, curved = (flatness_rows.last_shown(rows, kind) for kind in ("worst_case", "curvature"))
    return RunFlatness(
        run,
        settings,
        {domain: tuple(some) for domain, some in curves.items()},
        {name: method(run, name) for name in names if not kinds or name in kinds},
        int(measured[-1]["n_directions"]),
        first,
        tuple(
            one
            for one in differences(
                latest_rows(told, "first", "domain", "radius"), {n: method(run, n) for n in names}, pulls
            )
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
    mean, low, high = (tuple(float(row[field]) for row in rows) for field in ("mean", "low", "high"))
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
            tuple(float(row["p"]) for row in sorted(some, key=lambda row: float(row["radius"]))),
        )
        for (first, second, side), some in groups.items()
    ]


def leads(found: Iterable[tuple[RunData, str]]) -> list[str]:
    """Methods to compare with, the best first, of runs and the weights that were named first of each.

    Plain training before other algorithms: after `--weights best,swad` ERM leads, and SAM is compared with it.
    """
    named = {(run.algorithm != "erm", placed(name), name) for run, weights in found for name in [method(run, weights)]}
    return [name for *_, name in sorted(named)]


def paired(found: Sequence[RunFlatness]) -> dict[Unit, list[Difference]]:
    """Every method of a target and trial against the one that leads, of whichever runs the two are.

    Within a run these are the differences that were stored. Between two runs of the same directions and images they
    come from what each of those does to both.
    """
    order = leads((one.run, one.first) for one in found)
    units: dict[Unit, list[RunFlatness]] = {}
    for one in found:
        units.setdefault(one.unit, []).append(one)
    return {unit: pairs for unit, some in units.items() if (pairs := _pairs(some, order))}


def _pairs(found: Sequence[RunFlatness], order: Sequence[str]) -> list[Difference]:
    """Of one target and trial."""
    lead = next(name for name in order if any(name in one.weights.values() for one in found))
    pairs = []
    for one in found:
        # Its own where a run has one: runs of other hyperparameters may bear the same names.
        base = one if lead in one.weights.values() else next(r for r in found if lead in r.weights.values())
        second = next(weights for weights, name in base.weights.items() if name == lead)
        for side in SIDES:
            other = next((curve for curve in base.curves.get(side, ()) if curve.method == lead), None)
            for weights, name in one.weights.items():
                mine = next((curve for curve in one.curves.get(side, ()) if curve.method == name), None)
                if mine is None or other is None or name == lead:
                    continue
                known = next((d for d in one.differences if (d.first, d.versus, d.side) == (weights, lead, side)), None)
                curve = subtract(mine, other) if known is None else None
                if known is not None:
                    pairs.append(known)
                elif curve is not None:
                    pairs.append(Difference(weights, second, side, curve, lead))
    return pairs


def subtract(one: FlatCurve, other: FlatCurve) -> FlatCurve | None:
    """The difference of two curves with its interval; None where directions, images or radii are not the same."""
    pulls = spread.difference(one.pulls, other.pulls)
    if pulls is None or one.radii != other.radii:
        return None
    mean = tuple(a - b for a, b in zip(one.mean, other.mean, strict=True))
    ends = list(zip(mean, spread.half_widths(pulls), strict=True))
    low, high = (tuple(value + sign * half for value, half in ends) for sign in (-1, 1))
    return FlatCurve(one.method, one.radii, mean, low, high, pulls)


def within_targets(units: Mapping[Unit, Sequence[Difference]]) -> dict[str, list[Difference]]:
    """Differences by target, averaged over its trials."""
    targets: dict[str, list[Difference]] = {}
    for (target, _), some in units.items():
        targets.setdefault(target, []).extend(some)
    return {target: averaged(some) for target, some in targets.items()}


def averaged(some: Iterable[Difference]) -> list[Difference]:
    """One difference for each pair of methods and side: the mean of those that there are."""
    pairs: dict[tuple[str, str, str], list[Difference]] = {}
    for one in some:
        pairs.setdefault((one.curve.method, one.versus, one.side), []).append(one)
    return [
        mine[0] if len(mine) == 1 else replace(mine[0], curve=average([one.curve for one in mine]), p=())
        for mine in pairs.values()
    ]


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


def paired_curves(units: Mapping[Unit, Sequence[Difference]]) -> tuple[str, dict[str, Sides]]:
    """The method that leads, and differences to it as curves by target and side, the mean over several targets first.

    Trials of a target are averaged over. Where some targets lack the method that leads in others, it is the first's.
    """
    versus = next((one.versus for some in units.values() for one in some), "")
    mine = {unit: [one for one in some if one.versus == versus] for unit, some in units.items()}
    single = within_targets({unit: some for unit, some in mine.items() if some})
    every = {OVER_TARGETS: mean_differences(single), **single} if len(single) > 1 else single
    return versus, {
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
    means = tuple(_mean([point[0] for point in some]) for some in points)
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


def _mean(values: Sequence[float]) -> float:
    """Also of numbers that are not finite, of opposite sign even."""
    return (math.fsum(values) if all(map(math.isfinite, values)) else sum(values)) / len(values)


ORDER = ("ERM", "SAM", "EMA", "SMA", "SWA (cyclic)", "SWA", "SWAD")


def in_order(curves: Iterable[FlatCurve]) -> list[FlatCurve]:
    """Plain training first, SWAD last, as in the paper's figure."""

    return sorted(curves, key=lambda curve: placed(curve.method))


def methods_of(found: Iterable[RunFlatness]) -> list[str]:
    """Every method that was measured, in order: figures drawn together take their colors from it."""
    return sorted({name for one in found for name in one.weights.values()}, key=placed)


def placed(name: str) -> tuple[int, str]:
    """Where a method stands in that order."""
    first = name.split(" (best")[0].split(" (last")[0]
    return ORDER.index(first) if first in ORDER else len(ORDER) - 2, name


def ranking_of(found: Sequence[RunFlatness], side: str, radius: float) -> Ranking | None:
    """Rank methods by F at a radius and by accuracy on the target, over the targets and trials that all have.

    What is one method counts once: the last weights of an algorithm are left out beside its best ones, and so is
    whatever has the numbers of another. So is a method whose F is not finite somewhere.

    None with fewer than three methods, no target and trial in common, or all of them equally flat or accurate.
    """
    from swad.results.rank_correlation import ranking

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
    flat = {
        name: some
        for name, some in sorted(flat.items(), key=lambda item: placed(item[0]))
        if all(map(math.isfinite, some.values()))
        and ("(last" not in name or name.replace("(last", "(best") not in flat)
    }
    units = sorted(set.intersection(*(set(some) for some in flat.values()))) if flat else []
    numbers: dict[str, tuple[list[float], list[float]]] = {}
    for name in flat:
        mine = [flat[name][unit] for unit in units], [good[name][unit] for unit in units]
        if not any(_same(mine, other) for other in numbers.values()):
            numbers[name] = mine
    if not units or len(numbers) < 3:
        return None
    try:
        order = ranking(*({name: both[place] for name, both in numbers.items()} for place in (0, 1)))
    except ImportError:  # a report does without scipy
        return None
    return order if math.isfinite(order.kendall.value) else None


def _same(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> bool:
    """Whether numbers are those of the same weights, measured twice."""
    pairs = zip((v for some in one for v in some), (v for some in other for v in some), strict=True)
    return all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-12) for a, b in pairs)


def _target_accuracy(run: RunData) -> dict[str, float]:
    """Accuracy on the target's reported part, by weights; the mean where several domains are held out."""
    found: dict[str, list[float]] = {}
    for record in run.records:
        if record.metric == "accuracy" and record.domain in run.targets and record.split == "in" and record.average:
            found.setdefault(record.average, []).append(record.value)
    return {name: math.fsum(values) / len(values) for name, values in found.items()}


# ------------------------------------------------------------ surfaces


def titles(runs: Sequence[RunData]) -> list[str]:
    """What each run is called among others: its target, and algorithm and trial where these differ.

    >>> from pathlib import Path
    >>> runs = [RunData(Path(), {"algorithm": name, "target": "art"}, (), True) for name in ("erm", "sam")]
    >>> titles(runs), titles(runs[:1])
    (['art, ERM', 'art, SAM'], ['art'])
    """
    kinds = [method(run, None) for run in runs]
    several, trials = len(set(kinds)) > 1, len({run.trial for run in runs}) > 1
    return [
        "+".join(run.targets) + f", {kind}" * several + f", trial {run.trial}" * trials
        for run, kind in zip(runs, kinds, strict=True)
    ]


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
    rows = flatness_rows.read_rows(run.path, SURFACE)
    found = flatness_rows.last_shown(rows, "surface", shape)
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
    return math.fsum(float(row["losses"][domain]) for domain in domains) / len(domains)
