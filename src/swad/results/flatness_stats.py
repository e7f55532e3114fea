"""Curves of F_gamma against the radius, their means over runs, and paired differences, with 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from swad.util.statistics import (
    Contributions,
    average_contributions,
    half_widths,
    mean,
    p_values,
    subtract_contributions,
)

SIDES = {"seen": "Seen: training images of the sources", "unseen": "Unseen: the target"}

METHOD_ORDER = ("ERM", "SAM", "EMA", "SMA", "SWA (cyclic)", "SWA", "SWAD")
"""Methods in the order of the paper's figure. Other methods come before SWA."""


@dataclass(frozen=True)
class FlatnessCurve:
    """F_gamma of one method against the radius, with its interval."""

    method: str
    radii: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    contributions: Contributions | None = field(default=None, compare=False, repr=False)
    """Contributions of directions and images, for means and differences of curves that share them."""

    def at(self, radius: float) -> tuple[float, float, float]:
        """Return the mean and the ends of the interval at a radius."""
        index = self.radii.index(radius)
        return self.mean[index], self.low[index], self.high[index]


CurvesBySide = Mapping[str, Sequence[FlatnessCurve]]
"""Curves by "seen" and "unseen", or by domain."""


@dataclass(frozen=True)
class Difference:
    """F_gamma of one method minus that of a reference method, on the same directions and images.

    It is negative where the method is flatter than the reference.
    """

    weights: str
    reference_weights: str
    side: str
    curve: FlatnessCurve
    """The difference, under the name of the method."""
    reference: str
    """Name of the reference method."""
    p: tuple[float, ...] = ()
    """Two-sided p-value at every radius; empty for means over runs."""

    @property
    def pair(self) -> tuple[str, str, str]:
        """The method, the reference method and the side."""
        return self.curve.method, self.reference, self.side

    @property
    def verdict(self) -> str:
        """Where the method is flatter or sharper than the reference, by the 95 % intervals; without radius 0.

        >>> curve = FlatnessCurve("SWAD", (0.0, 1.0, 2.0, 3.0), (0, -1, -1, 1), (0, -2, -2, 0.5), (0, -0.5, 0.5, 2))
        >>> Difference("swad", "best", "seen", curve, "ERM").verdict
        'flatter at 1, sharper at 3, open at 2'
        """
        radii = [radius for radius in self.curve.radii if radius > 0]
        by_word: dict[str, list[float]] = {"flatter": [], "sharper": [], "open": []}
        for radius in radii:
            _, low, high = self.curve.at(radius)
            by_word["flatter" if high < 0 else "sharper" if low > 0 else "open"].append(radius)
        if len(by_word["open"]) == len(radii):
            return "no difference shown"
        for word in ("flatter", "sharper"):
            if len(by_word[word]) == len(radii):
                p = [p for radius, p in zip(self.curve.radii, self.p, strict=False) if radius > 0]
                return f"{word} at every radius" + (f" (p = {max(p):.2g})" if p else "")
        return ", ".join(f"{word} at {_format_radii(chosen, radii)}" for word, chosen in by_word.items() if chosen)


def _format_radii(chosen: Sequence[float], radii: Sequence[float]) -> str:
    """Join neighboring radii to ranges: 2–10, 24."""
    ranges: list[list[float]] = []
    for radius in chosen:
        before = radii.index(radius) - 1
        if ranges and before >= 0 and ranges[-1][-1] == radii[before]:
            ranges[-1].append(radius)
        else:
            ranges.append([radius])
    return ", ".join(f"{each[0]:g}–{each[-1]:g}" if len(each) > 1 else f"{each[0]:g}" for each in ranges)


# ------------------------------------------------------------ curves


def curve_with_interval(
    method: str, radii: Sequence[float], means: Sequence[float], contributions: Contributions
) -> FlatnessCurve:
    """Build a curve whose interval follows from the contributions of directions and images."""
    halves = half_widths(contributions)
    low, high = (tuple(m + sign * half for m, half in zip(means, halves, strict=True)) for sign in (-1, 1))
    return FlatnessCurve(method, tuple(radii), tuple(means), low, high, contributions)


def average_curves(curves: Sequence[FlatnessCurve]) -> FlatnessCurve:
    """Average curves at the radii that they share.

    The interval counts directions and images that the curves share once. Curves without contributions are taken as
    independent measurements.

    >>> one, two = (FlatnessCurve("ERM", (1.0,), (m,), (m - 3,), (m + 3,)) for m in (1.0, 3.0))
    >>> average_curves([one, two]).mean, round(average_curves([one, two]).high[0], 3)
    ((2.0,), 4.121)
    """
    if len(curves) == 1:
        return curves[0]
    method = curves[0].method
    radii = tuple(radius for radius in curves[0].radii if all(radius in curve.radii for curve in curves))
    points = [[curve.at(radius) for curve in curves] for radius in radii]
    means = tuple(mean(point[0] for point in at_radius) for at_radius in points)
    known = [
        {
            source: array[:, [curve.radii.index(radius) for radius in radii]]
            for source, array in curve.contributions.items()
        }
        for curve in curves
        if curve.contributions is not None
    ]
    if len(known) == len(curves):
        return curve_with_interval(method, radii, means, average_contributions(known))

    def end(index: int, sign: int) -> tuple[float, ...]:
        widths = (math.sqrt(math.fsum((point[0] - point[index]) ** 2 for point in at_radius)) for at_radius in points)
        return tuple(m + sign * width / len(curves) for m, width in zip(means, widths, strict=True))

    return FlatnessCurve(method, radii, means, end(1, -1), end(2, 1))


def mean_over_targets(groups: Mapping[str, CurvesBySide]) -> dict[str, list[FlatnessCurve]]:
    """Average every method over targets, if it was measured on all of them."""
    means: dict[str, list[FlatnessCurve]] = {}
    for side in SIDES:
        by_method: dict[str, list[FlatnessCurve]] = {}
        for by_side in groups.values():
            for curve in by_side.get(side, ()):
                by_method.setdefault(curve.method, []).append(curve)
        means[side] = sort_curves(average_curves(each) for each in by_method.values() if len(each) == len(groups))
    return means


def sort_curves(curves: Iterable[FlatnessCurve]) -> list[FlatnessCurve]:
    """Sort curves by `display_order`."""
    return sorted(curves, key=lambda curve: display_order(curve.method))


def display_order(method: str) -> tuple[int, str]:
    """Return the sort key of a method: ERM first and SWAD last, as in the paper's figure."""
    name = base_method(method)
    return METHOD_ORDER.index(name) if name in METHOD_ORDER else len(METHOD_ORDER) - 2, method


def base_method(method: str) -> str:
    """Return the name of a method without the step of its live weights.

    >>> base_method("ERM (best)"), base_method("SWA (cyclic)")
    ('ERM', 'SWA (cyclic)')
    """
    return method.split(" (best")[0].split(" (last")[0]


# ------------------------------------------------------------ differences


def subtract_curves(first: FlatnessCurve, second: FlatnessCurve) -> FlatnessCurve | None:
    """Subtract two curves; None unless both were measured on the same directions, images and radii."""
    contributions = subtract_contributions(first.contributions, second.contributions)
    if contributions is None or first.radii != second.radii:
        return None
    means = [a - b for a, b in zip(first.mean, second.mean, strict=True)]
    return curve_with_interval(first.method, first.radii, means, contributions)


def p_values_of(curve: FlatnessCurve) -> tuple[float, ...]:
    """Return the two-sided p-value of a difference at every radius; empty without contributions."""
    return () if curve.contributions is None else tuple(p_values(curve.mean, curve.contributions))


def average_differences(differences: Iterable[Difference]) -> list[Difference]:
    """Average the differences of each pair of methods and side."""
    return [
        each[0]
        if len(each) == 1
        else replace(each[0], curve=average_curves([difference.curve for difference in each]), p=())
        for each in _by_pair(differences).values()
    ]


def mean_difference_over_targets(by_target: Mapping[str, Sequence[Difference]]) -> list[Difference]:
    """Average every difference over targets, if it was measured on all of them."""
    pairs = _by_pair(difference for differences in by_target.values() for difference in differences)
    return [
        replace(each[0], curve=average_curves([difference.curve for difference in each]), p=())
        for each in pairs.values()
        if len(each) == len(by_target)
    ]


def _by_pair(differences: Iterable[Difference]) -> dict[tuple[str, str, str], list[Difference]]:
    pairs: dict[tuple[str, str, str], list[Difference]] = {}
    for difference in differences:
        pairs.setdefault(difference.pair, []).append(difference)
    return pairs
