"""The flatness of runs, read from their `flatness.jsonl`: curves by target, paired differences, and the ranking."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from swad.testbed.results.flatness_contributions import read_contributions
from swad.testbed.results.flatness_stats import (
    NO_DIFFERENCE,
    SIDES,
    CurvesBySide,
    Difference,
    FlatnessCurve,
    average_differences,
    average_over_trials,
    curve_with_interval,
    display_order,
    mean_difference_over_targets,
    mean_over_targets,
    p_values_of,
    sort_curves,
    subtract_curves,
)
from swad.testbed.results.labels import weights_label
from swad.testbed.results.measurement_rows import FLATNESS, Row, last_shown, latest_rows, read_rows
from swad.testbed.results.records import LIVE
from swad.testbed.results.run_data import RunData
from swad.util.grouping import group_by
from swad.util.statistics import mean

if TYPE_CHECKING:
    from swad.testbed.results.rank_correlation import Ranking
    from swad.util.statistics import Contributions

OVER_TARGETS = "mean over targets"

Unit = tuple[str, int]
"""Target and trial: runs that share both are measured on the same images."""


@dataclass(frozen=True)
class RunFlatness:
    """The flatness of one run's weights, measured with one setting."""

    run: RunData
    settings: Row
    curves: Mapping[str, tuple[FlatnessCurve, ...]]
    """Curves by "seen", "unseen" and every domain."""
    methods: Mapping[str, str]
    """Names of methods by weights."""
    n_directions: int
    reference: str
    """The weights that the others are compared with: the ones that the user named first."""
    differences: tuple[Difference, ...] = ()
    """Differences to the reference, as stored by the measurement."""
    worst_case: tuple[Row, ...] = ()
    """Rows of both measures, with those of the loss."""
    curvature: tuple[Row, ...] = ()

    @property
    def target(self) -> str:
        """The held-out domain."""
        return self.run.target

    @property
    def measure(self) -> str:
        """What rises: "loss" or "error"."""
        return str(self.settings.get("measure", "loss"))

    @property
    def setting(self) -> str:
        """What runs share whose values may be averaged; groups of images depend on the algorithm and are left out."""
        shared = {name: value for name, value in self.settings.items() if name not in ("key", "mixed_groups")}
        return json.dumps(shared, sort_keys=True)

    @property
    def unit(self) -> Unit:
        """Target and trial."""
        return self.target, self.run.trial

    def curve(self, side: str, method: str) -> FlatnessCurve | None:
        """Return the curve of a method on a side, if it was measured."""
        return next((curve for curve in self.curves.get(side, ()) if curve.method == method), None)


# ------------------------------------------------------------ reading one run


def read_flatness(run: RunData, weights: Sequence[str] = (), measure: str = "loss") -> RunFlatness | None:
    """Read the measurement of a run that was requested last; None if there is none.

    `weights` restricts it to some of the weights; all by default. `measure` is "loss" or "error".
    """
    rows = read_rows(run.path, FLATNESS)
    shown = last_shown(rows, "row", measure=measure)
    if shown is None:
        return None
    settings, results = shown
    results = [row for row in latest_rows(results, "weights", "domain", "radius") if row["domain"] is not None]
    raw_rows = [row for row in rows if row["key"] == settings["key"]]
    # Snapshots that only stand for the window have raw rows, but no results.
    measured = list(dict.fromkeys(row["weights"] for row in results))
    chosen = [name for name in measured if name in weights] if weights else measured
    if not chosen:
        return None
    curves = _read_curves(run, results, raw_rows, chosen)
    reference = _reference(raw_rows, [name for name in weights if name in chosen] or chosen)
    stored = [row for row in raw_rows if row["kind"] == "difference" and row["second"] == reference]
    worst_case, curvature = (
        tuple(row for row in (other[1] if other else ()) if not weights or row["weights"] in weights)
        for other in (last_shown(rows, kind) if measure == "loss" else None for kind in ("worst_case", "curvature"))
    )
    return RunFlatness(
        run,
        settings,
        curves,
        {name: weights_label(run, name) for name in chosen},
        min(int(row["n_directions"]) for row in results if row["weights"] in chosen),
        reference,
        tuple(_stored_differences(run, [row for row in stored if row["first"] in chosen])),
        worst_case,
        curvature,
    )


def _read_curves(
    run: RunData, results: Sequence[Row], raw_rows: Sequence[Row], weights: Sequence[str]
) -> dict[str, tuple[FlatnessCurve, ...]]:
    domains = list(dict.fromkeys(row["domain"] for row in results))
    curves: dict[str, tuple[FlatnessCurve, ...]] = {}
    for domain in domains:
        of_domain = []
        for name in weights:
            rows = [row for row in results if row["domain"] == domain and row["weights"] == name]
            if rows:
                contributions = _contributions(run, raw_rows, name, domain, domains)
                of_domain.append(_curve(weights_label(run, name), rows, contributions))
        if of_domain:
            curves[domain] = tuple(of_domain)
    return curves


def _contributions(
    run: RunData, raw_rows: Sequence[Row], weights: str, domain_or_side: str, domains: Sequence[str]
) -> Contributions | None:
    if domain_or_side in SIDES:
        held_out = domain_or_side == "unseen"
        members = [d for d in domains if d not in SIDES and (d in run.targets) == held_out]
    else:
        members = [domain_or_side]
    # Training images depend on the trial's split and not on the target. The target's images are all that it has.
    split = next((row.get("split") for row in raw_rows if row["kind"] == "settings"), None)
    trial = None if split == "all" else run.trial
    image_sets = {domain: ("unseen", None) if domain in run.targets else ("seen", trial) for domain in members}
    return read_contributions(raw_rows, weights, members, image_sets) if members else None


def _curve(method: str, rows: Sequence[Row], contributions: Contributions | None = None) -> FlatnessCurve:
    rows = sorted(rows, key=lambda row: float(row["radius"]))
    radii, means, low, high = (tuple(float(row[name]) for row in rows) for name in ("radius", "mean", "low", "high"))
    if contributions is not None:
        return curve_with_interval(method, radii, means, contributions)
    return FlatnessCurve(method, radii, means, low, high)


def _reference(raw_rows: Sequence[Row], weights: Sequence[str]) -> str:
    """Return the weights that the user named first, or the first of `weights` if those are not among them."""
    named = [str(row["first"]) for row in raw_rows if row["kind"] == "shown" and "first" in row]
    return named[-1] if named and named[-1] in weights else weights[0]


def _stored_differences(run: RunData, rows: Sequence[Row]) -> list[Difference]:
    of_sides = [row for row in latest_rows(rows, "first", "domain", "radius") if row["domain"] in SIDES]
    groups = group_by(of_sides, lambda row: (row["first"], row["second"], row["domain"]))
    return [
        Difference(
            side,
            _curve(weights_label(run, first), of_pair),
            weights_label(run, second),
            tuple(float(row["p"]) for row in sorted(of_pair, key=lambda row: float(row["radius"]))),
        )
        for (first, second, side), of_pair in groups.items()
    ]


# ------------------------------------------------------------ several runs


def method_names(measured: Iterable[RunFlatness]) -> list[str]:
    """Return every measured method in display order. Figures that belong together take their colors from it."""
    return sorted({name for flatness in measured for name in flatness.methods.values()}, key=display_order)


def curves_by_target(measured: Iterable[RunFlatness]) -> dict[str, dict[str, list[FlatnessCurve]]]:
    """Return curves by target and side. Runs of other algorithms add methods; trials are averaged.

    The interval of a method with several trials is over trials.
    """
    groups: dict[str, dict[str, list[FlatnessCurve]]] = {}
    for target, runs in sorted(group_by(measured, lambda flatness: flatness.target).items()):
        for side in SIDES:
            curves = [(flatness.run.trial, curve) for flatness in runs for curve in flatness.curves.get(side, ())]
            if curves:
                by_method = group_by(curves, lambda pair: pair[1].method)
                groups.setdefault(target, {})[side] = sort_curves(map(average_over_trials, by_method.values()))
    return groups


def with_mean(groups: Mapping[str, CurvesBySide]) -> dict[str, CurvesBySide]:
    """Return curves by target, with the mean over several targets in front."""
    return {OVER_TARGETS: mean_over_targets(groups), **groups} if len(groups) > 1 else dict(groups)


def reference_methods(measured: Iterable[RunFlatness]) -> list[str]:
    """Return the candidates for the method to compare with, the best one first.

    They are the weights that were named first for each run. Those of ERM come before those of other algorithms.
    """
    candidates = {
        (flatness.run.algorithm != "erm", display_order(name), name)
        for flatness in measured
        for name in [weights_label(flatness.run, flatness.reference)]
    }
    return [name for *_, name in sorted(candidates)]


def paired_differences(measured: Sequence[RunFlatness]) -> dict[Unit, list[Difference]]:
    """Compare every method of a target and trial with the reference method, across runs."""
    references = reference_methods(measured)
    units = group_by(measured, lambda flatness: flatness.unit)
    return {unit: pairs for unit, runs in units.items() if (pairs := _unit_differences(runs, references))}


def _unit_differences(runs: Sequence[RunFlatness], references: Sequence[str]) -> list[Difference]:
    """Compare the methods of one target and trial with the first reference method that was measured there."""
    reference = next(name for name in references if any(name in run.methods.values() for run in runs))
    differences = []
    for run in runs:
        # A run's own reference comes first, because runs with other hyperparameters may have methods of the same name.
        base = next(other for other in (run, *runs) if reference in other.methods.values())
        for side in SIDES:
            for name in run.methods.values():
                curve, reference_curve = run.curve(side, name), base.curve(side, reference)
                if curve is None or reference_curve is None or name == reference:
                    continue
                difference = subtract_curves(curve, reference_curve)
                if difference is not None:
                    differences.append(Difference(side, difference, reference, p_values_of(difference)))
                elif base is run:
                    differences += [stored for stored in run.differences if stored.pair == (name, reference, side)]
    return differences


def differences_by_target(units: Mapping[Unit, Sequence[Difference]]) -> dict[str, list[Difference]]:
    """Return differences by target, averaged over its trials, with intervals and p-values over trials."""
    by_target: dict[str, list[tuple[int, Difference]]] = {}
    for (target, trial), differences in units.items():
        by_target.setdefault(target, []).extend((trial, difference) for difference in differences)
    return {target: average_differences(each) for target, each in by_target.items()}


@dataclass(frozen=True)
class NullPair:
    """Two trials of one method and target, compared as if they were two methods: any difference is chance."""

    target: str
    trials: tuple[int, int]
    difference: Difference
    """The second trial minus the first, with the interval and p-values of the measurement alone."""

    @property
    def is_different(self) -> bool:
        """Whether the two trials differ significantly at some radius, by the measurement alone."""
        return self.difference.verdict != NO_DIFFERENCE


def null_pairs(measured: Sequence[RunFlatness]) -> list[NullPair]:
    """Compare every two trials of the reference method on each target; empty with one trial or without raw rows.

    How many of them differ significantly says what a verdict on the weights of one trial is worth.
    """
    reference = next(iter(reference_methods(measured)), "")
    by_target: dict[str, dict[int, RunFlatness]] = {}
    for flatness in measured:
        if reference in flatness.methods.values():
            by_target.setdefault(flatness.target, {}).setdefault(flatness.run.trial, flatness)
    pairs = []
    for target, by_trial in sorted(by_target.items()):
        for first, second in combinations(sorted(by_trial), 2):
            for side in SIDES:
                before, after = (by_trial[trial].curve(side, reference) for trial in (first, second))
                curve = subtract_curves(after, before, paired=False) if before and after else None
                if curve is not None:
                    difference = Difference(side, curve, reference, p_values_of(curve))
                    pairs.append(NullPair(target, (first, second), difference))
    return pairs


def difference_curves(units: Mapping[Unit, Sequence[Difference]]) -> tuple[str, dict[str, CurvesBySide]]:
    """Return the reference method, and the differences to it as curves by target and side.

    Trials are averaged, and the mean over several targets comes first. Where targets have different reference methods,
    only those with the reference of the first target are returned.
    """
    reference = next((difference.reference for differences in units.values() for difference in differences), "")
    comparable = {
        unit: [difference for difference in differences if difference.reference == reference]
        for unit, differences in units.items()
    }
    by_target = differences_by_target({unit: differences for unit, differences in comparable.items() if differences})
    groups = {OVER_TARGETS: mean_difference_over_targets(by_target), **by_target} if len(by_target) > 1 else by_target
    return reference, {
        title: {side: sort_curves(d.curve for d in differences if d.side == side) for side in SIDES}
        for title, differences in groups.items()
    }


# ------------------------------------------------------------ ranking


def rank_methods(measured: Sequence[RunFlatness], side: str, radius: float) -> Ranking | None:
    """Rank methods by F at a radius and by accuracy on the target, over the targets and trials that all have.

    Methods with the same weights count once: `last` is left out if `best` was measured, and so is a method whose
    numbers are those of another one. A method whose F is not finite is left out, too.

    Returns None with fewer than three methods, without a common target and trial, or without an order.
    """
    from swad.testbed.results.rank_correlation import ranking

    flatness, accuracy = _values_by_unit(measured, side, radius)
    candidates = {
        name: values
        for name, values in sorted(flatness.items(), key=lambda item: display_order(item[0]))
        if all(map(math.isfinite, values.values()))
        and ("(last" not in name or name.replace("(last", "(best") not in flatness)
    }
    units = sorted(set.intersection(*(set(values) for values in candidates.values()))) if candidates else []
    distinct: dict[str, tuple[list[float], list[float]]] = {}
    for name in candidates:
        numbers = [flatness[name][unit] for unit in units], [accuracy[name][unit] for unit in units]
        if not any(_equal_numbers(numbers, other) for other in distinct.values()):
            distinct[name] = numbers
    if not units or len(distinct) < 3:
        return None
    order = ranking(*({name: both[index] for name, both in distinct.items()} for index in (0, 1)))
    return order if math.isfinite(order.kendall.value) else None


def _values_by_unit(
    measured: Sequence[RunFlatness], side: str, radius: float
) -> tuple[dict[str, dict[Unit, float]], dict[str, dict[Unit, float]]]:
    """Return F at a radius and accuracy on the target, both by method, target and trial."""
    flatness: dict[str, dict[Unit, float]] = {}
    accuracy: dict[str, dict[Unit, float]] = {}
    for run in measured:
        target_accuracy = _target_accuracy(run.run)
        for weights, name in run.methods.items():
            curve = run.curve(side, name)
            if curve is not None and radius in curve.radii and weights in target_accuracy:
                flatness.setdefault(name, {})[run.unit] = curve.at(radius)[0]
                accuracy.setdefault(name, {})[run.unit] = target_accuracy[weights]
    return flatness, accuracy


def _equal_numbers(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> bool:
    pairs = zip((v for values in first for v in values), (v for values in second for v in values), strict=True)
    return all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-12) for a, b in pairs)


def _target_accuracy(run: RunData) -> dict[str, float]:
    """Return the accuracy on the in split of the held-out domain by weights; the mean if several are held out."""
    accuracies: dict[str, list[float]] = {}
    rows = run.frame
    rows = rows[(rows.metric == "accuracy") & rows.domain.isin(run.targets) & (rows.split == "in")]
    for weights, value in zip(rows.weights, rows.value.tolist(), strict=True):
        if weights != LIVE:
            accuracies.setdefault(weights, []).append(value)
    return {name: mean(values) for name, values in accuracies.items()}
