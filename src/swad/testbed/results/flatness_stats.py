"""Curves of F_gamma against the radius, their means over runs, and paired differences, with 95 % intervals.

An interval of one trial is that of the measurement, over random directions and images: it says how well F of these
weights is known. Between trainings F varies several times as much. With several trials the interval is Student's t over
trials, and the width of the measurement stands beside it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from swad.util.grouping import group_by
from swad.util.statistics import (
    Contributions,
    average_contributions,
    contributions,
    half_widths,
    hochberg,
    mean,
    p_values,
)

SIDES = {"seen": "Seen: images of the sources", "unseen": "Unseen: the target"}

QUANTITIES = {"loss": "the loss", "error": "the 0-1 error"}
"""What rises, by measure."""

LEVEL = 0.05
"""A verdict claims a difference if its corrected p-value is below this."""
NO_DIFFERENCE = "no difference shown"
NO_SPREAD = 1e-9
"""Trials whose interval is at most this share of their mean differ by rounding only."""

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
    trials: Contributions | None = field(default=None, compare=False, repr=False)
    """Contributions of trials, if the interval is over several trials."""
    measured: tuple[float, ...] = ()
    """Half of the interval of the measurement at every radius, if the interval is over trials."""

    @property
    def n_trials(self) -> int:
        """The number of trials that the interval is over; 1 if it is that of the measurement, of these weights."""
        return 1 if self.trials is None else min(map(len, self.trials.values()))

    @property
    def exact_measured(self) -> tuple[float, ...]:
        """`measured` to show beside the interval over trials; empty if it is a bound, for lack of contributions."""
        return () if self.contributions is None else self.measured

    def at(self, radius: float) -> tuple[float, float, float]:
        """Return the mean and the ends of the interval at a radius."""
        index = self.radii.index(radius)
        return self.mean[index], self.low[index], self.high[index]

    def measured_at(self, radius: float) -> tuple[float, float]:
        """Return how far the interval of the measurement extends below and above the mean at a radius."""
        if self.measured:
            return (self.measured[self.radii.index(radius)],) * 2
        mean, low, high = self.at(radius)
        return mean - low, high - mean


CurvesBySide = Mapping[str, Sequence[FlatnessCurve]]
"""Curves by "seen" and "unseen", or by domain."""


@dataclass(frozen=True)
class Difference:
    """F_gamma of one method minus that of a reference method, on the same directions and images.

    It is negative where the method is flatter than the reference.
    """

    side: str
    curve: FlatnessCurve
    """The difference, under the name of the method."""
    reference: str
    """Name of the reference method."""
    p: tuple[float, ...] = ()
    """Two-sided p-value at every radius: over trials if there are several; empty if it is unknown."""

    @property
    def pair(self) -> tuple[str, str, str]:
        """The method, the reference method and the side."""
        return self.curve.method, self.reference, self.side

    @property
    def verdict(self) -> str:
        """Where the method is flatter or sharper than the reference; without radius 0.

        All radii together are right with a probability of 95 %: p-values are corrected for the number of radii. Without
        p-values the 95 % intervals decide, each for itself.

        >>> curve = FlatnessCurve("SWAD", (0.0, 1.0, 2.0, 3.0), (0, -1, -1, 1), (0, -2, -2, 0.5), (0, -0.5, 0.5, 2))
        >>> Difference("seen", curve, "ERM").verdict
        'flatter at 1, sharper at 3, open at 2'
        >>> Difference("seen", curve, "ERM", (1.0, 0.03, 0.2, 0.001)).verdict
        'sharper at 3, open at 1–2'
        """
        radii = [radius for radius in self.curve.radii if radius > 0]
        by_word: dict[str, list[float]] = {"flatter": [], "sharper": [], "open": []}
        known = [p for radius, p in zip(self.curve.radii, self.p, strict=False) if radius > 0]
        corrected = dict(zip(radii, hochberg(known), strict=False))
        for radius in radii:
            mean, low, high = self.curve.at(radius)
            if corrected:
                low, high = (mean, mean) if corrected[radius] < LEVEL else (-math.inf, math.inf)
            by_word["flatter" if high < 0 else "sharper" if low > 0 else "open"].append(radius)
        if len(by_word["open"]) == len(radii):
            return NO_DIFFERENCE
        for word in ("flatter", "sharper"):
            if len(by_word[word]) == len(radii):
                return f"{word} at every radius" + (f" (p = {max(known):.2g})" if known else "")
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

    The interval counts directions, images and trials that the curves share once. It is over trials if those of all
    curves are. Curves without contributions may share all draws: the interval is then as wide as theirs, on average.

    >>> one, two = (FlatnessCurve("ERM", (1.0,), (m,), (m - 3,), (m + 3,)) for m in (1.0, 3.0))
    >>> average_curves([one, two]).mean, round(average_curves([one, two]).high[0], 3)
    ((2.0,), 5.0)
    """
    if len(curves) == 1:
        return curves[0]
    method = curves[0].method
    radii = tuple(radius for radius in curves[0].radii if all(radius in curve.radii for curve in curves))
    points = [[curve.at(radius) for curve in curves] for radius in radii]
    means = tuple(mean(point[0] for point in at_radius) for at_radius in points)

    def average(several: Sequence[Contributions | None]) -> Contributions | None:
        chosen = [
            {source: array[:, [curve.radii.index(radius) for radius in radii]] for source, array in each.items()}
            for curve, each in zip(curves, several, strict=True)
            if each is not None
        ]
        return average_contributions(chosen) if len(chosen) == len(curves) else None

    measurement = average([curve.contributions for curve in curves])
    if measurement is not None:
        averaged = curve_with_interval(method, radii, means, measurement)
    else:
        ends = [[curve.measured_at(radius) for curve in curves] for radius in radii]
        low, high = (
            tuple(m + sign * mean(each[index] for each in at_radius) for m, at_radius in zip(means, ends, strict=True))
            for index, sign in ((0, -1), (1, 1))
        )
        averaged = FlatnessCurve(method, radii, means, low, high)
    over_trials = average([curve.trials for curve in curves])
    return averaged if over_trials is None else _with_trials(averaged, over_trials)


def average_over_trials(curves: Iterable[tuple[int, FlatnessCurve]]) -> FlatnessCurve:
    """Average the curves of one target, each with its trial, with Student's t interval if there are several trials.

    >>> curves = [FlatnessCurve("ERM", (1.0,), (mean,), (mean - 0.1,), (mean + 0.1,)) for mean in (1.0, 2.0, 3.0)]
    >>> curve = average_over_trials(enumerate(curves))
    >>> curve.mean, round(curve.high[0] - curve.mean[0], 3), curve.n_trials
    ((2.0,), 2.484, 3)
    """
    import numpy as np

    groups = sorted(group_by(curves, lambda pair: pair[0]).items())
    by_trial = {trial: average_curves([curve for _, curve in pairs]) for trial, pairs in groups}
    averaged = average_curves(list(by_trial.values()))
    if len(by_trial) < 2:
        return averaged
    values = np.array([[curve.at(radius)[0] for radius in averaged.radii] for curve in by_trial.values()], dtype=float)
    # The source is named after the trials, so that runs of several targets share it: trials are drawn, not runs.
    return _with_trials(averaged, {("trials", *by_trial): contributions(values)})


def _with_trials(curve: FlatnessCurve, trials: Contributions) -> FlatnessCurve:
    """Replace the interval of the measurement by that over trials, and keep its width."""
    measured = tuple((high - low) / 2 for low, high in zip(curve.low, curve.high, strict=True))
    halves = half_widths(trials)
    low, high = (tuple(m + sign * half for m, half in zip(curve.mean, halves, strict=True)) for sign in (-1, 1))
    return replace(curve, low=low, high=high, trials=trials, measured=measured)


def mean_over_targets(groups: Mapping[str, CurvesBySide]) -> dict[str, list[FlatnessCurve]]:
    """Average every method over targets, if it was measured on all of them."""
    means: dict[str, list[FlatnessCurve]] = {}
    for side in SIDES:
        curves = (curve for by_side in groups.values() for curve in by_side.get(side, ()))
        by_method = group_by(curves, lambda curve: curve.method)
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
    return method.split(" (best")[0].split(" (last")[0].split(" (window")[0]


# ------------------------------------------------------------ differences


def subtract_curves(first: FlatnessCurve, second: FlatnessCurve, *, paired: bool = True) -> FlatnessCurve | None:
    """Subtract two curves; None without contributions or on other radii.

    Args:
        first: The curve, which gives the name of the method.
        second: The curve to subtract.
        paired: Whether both must be measured on the same directions and images; None otherwise. If not, draws of a
            source that only one of them has, or that are not as many, are independent.
    """
    one, two = first.contributions, second.contributions
    if one is None or two is None or first.radii != second.radii:
        return None
    shared = {name: one[name] - two[name] for name in one if name in two and one[name].shape == two[name].shape}
    own: dict[Hashable, Any] = {
        (name, sign): each[name] for sign, each in ((1, one), (-1, two)) for name in each if name not in shared
    }
    if own and paired:
        return None
    means = [a - b for a, b in zip(first.mean, second.mean, strict=True)]
    return curve_with_interval(first.method, first.radii, means, {**shared, **own})


def p_values_of(curve: FlatnessCurve) -> tuple[float, ...]:
    """Return the two-sided p-value of a difference at every radius, over trials if there are several.

    Empty without contributions. Trials with exactly the same difference, as 0-1 errors of few images often have, show
    no spread: p is 1 there, since nothing is known about another training.
    """
    if curve.trials is None:
        return () if curve.contributions is None else tuple(p_values(curve.mean, curve.contributions))
    spreads = half_widths(curve.trials)
    return tuple(
        1.0 if spread <= NO_SPREAD * abs(mean) else p
        for p, mean, spread in zip(p_values(curve.mean, curve.trials), curve.mean, spreads, strict=True)
    )


def average_differences(differences: Iterable[tuple[int, Difference]]) -> list[Difference]:
    """Average the differences of one target, each with its trial, over the trials that have the pair of methods."""
    averaged = []
    for members in group_by(differences, lambda member: member[1].pair).values():
        (_, first), *others = members
        if others:
            curve = average_over_trials((trial, difference.curve) for trial, difference in members)
            first = replace(first, curve=curve, p=p_values_of(curve))
        averaged.append(first)
    return averaged


def mean_difference_over_targets(by_target: Mapping[str, Sequence[Difference]]) -> list[Difference]:
    """Average every difference over targets, if it was measured on all of them."""
    every = (difference for differences in by_target.values() for difference in differences)
    pairs = group_by(every, lambda difference: difference.pair)
    means = {
        pair: average_curves([difference.curve for difference in each])
        for pair, each in pairs.items()
        if len(each) == len(by_target)
    }
    return [replace(pairs[pair][0], curve=curve, p=p_values_of(curve)) for pair, curve in means.items()]
