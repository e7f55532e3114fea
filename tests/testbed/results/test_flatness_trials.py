"""Verdicts over trials: how often two methods that do not differ are called different, by simulation.

F of a training is the method's mean plus the chance of the training plus the chance of the measurement. Both methods
are measured in the same directions, whose effect depends on the training, too.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from helpers.measured_runs import raw_run
from swad.testbed.results.flatness_runs import (
    OVER_TARGETS,
    difference_curves,
    differences_by_target,
    null_pairs,
    paired_differences,
    read_flatness,
)
from swad.testbed.results.flatness_stats import (
    NO_DIFFERENCE,
    Difference,
    FlatnessCurve,
    average_curves,
    average_differences,
    average_over_trials,
    curve_with_interval,
    mean_difference_over_targets,
    p_values_of,
    subtract_curves,
)
from swad.testbed.results.flatness_tables import curve_table, holds_for, verdict_table
from swad.util.statistics import contributions

RADII = (0.0, 1.0, 2.0, 4.0)
N_DIRECTIONS = 24


def measured_curve(rng: np.random.Generator, method: str, mean: float, directions: np.ndarray) -> FlatnessCurve:
    """F = radius^2 times a training's own steepness, measured in shared directions with some noise."""
    steepness = mean + 0.3 * rng.standard_normal()
    draws = steepness + (1 + 0.2 * rng.standard_normal()) * directions + 0.05 * rng.standard_normal(N_DIRECTIONS)
    bends = 0.1 * rng.standard_normal(len(RADII))  # radii are correlated, but not perfectly
    values = np.array(RADII) ** 2 * (draws[:, None] + bends)
    return curve_with_interval(method, RADII, values.mean(0).tolist(), {"directions": contributions(values)})


def simulated(rng: np.random.Generator, trials: int, targets: int = 1, effect: float = 0.0):
    """Differences by target and trial, and the average over trials by target."""
    units = {}
    for target in range(targets):
        for trial in range(trials):
            directions = 0.2 * np.random.default_rng(trial).standard_normal(N_DIRECTIONS)
            one, two = (
                measured_curve(rng, name, mean, directions) for name, mean in (("SWAD", 1.0 + effect), ("ERM", 1.0))
            )
            curve = subtract_curves(one, two)
            units[f"target {target}", trial] = [Difference("seen", curve, "ERM", p_values_of(curve))]
    return units


def test_two_methods_that_do_not_differ_are_called_different_in_at_most_5_percent():
    rng = np.random.default_rng(0)
    n, over_trials, over_targets, of_weights = 300, 0, 0, 0
    for _ in range(n):
        by_target = differences_by_target(simulated(rng, trials=3, targets=2))
        over_trials += by_target["target 0"][0].verdict != NO_DIFFERENCE
        over_targets += mean_difference_over_targets(by_target)[0].verdict != NO_DIFFERENCE
        ((single,),) = simulated(rng, trials=1).values()
        of_weights += single.verdict != NO_DIFFERENCE
    limit = 0.05 + 2 * np.sqrt(0.05 * 0.95 / n)
    assert over_trials / n <= limit
    assert over_targets / n <= limit
    assert of_weights / n > 0.5  # which is why such verdicts are called "for these weights only"


def test_a_difference_is_found_and_intervals_over_trials_cover_the_methods_means():
    rng = np.random.default_rng(1)
    n, found, hits, narrow = 150, 0, 0, 0
    for _ in range(n):
        (difference,) = differences_by_target(simulated(rng, trials=5, effect=1.5))["target 0"]
        found += difference.verdict == f"sharper at every radius (p = {max(difference.p[1:]):.2g})"
        mean, low, high = difference.curve.at(1.0)
        assert difference.curve.n_trials == 5
        hits += low <= 1.5 <= high
        narrow += abs(mean - 1.5) <= difference.curve.measured_at(1.0)[0]
    assert found / n > 0.9
    assert 0.91 <= hits / n <= 0.99
    assert narrow / n < 0.6


def test_trials_are_drawn_not_runs():
    """The twin: the mean over targets of every trial, then Student's t over trials."""
    rng = np.random.default_rng(2)
    units = simulated(rng, trials=4, targets=3)
    (mean,) = mean_difference_over_targets(differences_by_target(units))
    values = np.array(
        [[units[f"target {target}", trial][0].curve.mean for target in range(3)] for trial in range(4)]
    ).mean(1)
    half = 3.182446 * values.std(0, ddof=1) / 2  # t with 3 degrees of freedom
    assert mean.curve.n_trials == 4
    assert mean.curve.mean == pytest.approx(values.mean(0))
    assert mean.curve.high == pytest.approx(values.mean(0) + half, rel=1e-6)
    together = average_curves([units[f"target {target}", trial][0].curve for target in range(3) for trial in range(4)])
    assert mean.curve.measured == pytest.approx(
        [(h - low) / 2 for low, h in zip(together.low, together.high, strict=True)]
    )
    title, curves = difference_curves(units)
    assert title == "ERM"
    assert curves[OVER_TARGETS]["seen"][0].high == mean.curve.high


def test_a_pair_that_some_trials_lack_is_averaged_over_the_others():
    rng = np.random.default_rng(3)
    units = simulated(rng, trials=3)
    units["target 0", 2] = [replace(units["target 0", 2][0], reference="SAM")]
    by_reference = {d.reference: d for d in differences_by_target(units)["target 0"]}
    assert by_reference["ERM"].curve.n_trials == 2
    assert by_reference["SAM"] is units["target 0", 2][0]
    (alone,) = average_differences([(0, units["target 0", 0][0])])
    assert alone is units["target 0", 0][0]


def test_trials_with_the_same_difference_show_no_spread_and_claim_nothing():
    curves = {t: FlatnessCurve("SWAD", (1.0, 2.0), (0.1, -0.3 - n), (0, -1), (1, 0)) for t, n in enumerate((0, 1e-17))}
    curve = average_over_trials(curves.items())
    assert p_values_of(curve) == (1.0, 1.0)
    assert Difference("seen", curve, "ERM", p_values_of(curve)).verdict == NO_DIFFERENCE


def test_tables_show_both_widths_or_say_of_these_weights():
    curves = {t: FlatnessCurve("ERM", (1.0,), (m,), (m - 0.1,), (m + 0.1,)) for t, m in enumerate((1.0, 2.0, 3.0))}
    table = curve_table("F", [average_over_trials(curves.items())])
    assert table.title == "F, over 3 trials"
    assert table.rows[0].cells[0].printed == "2.000 ± 2.484"
    shared = {"images": contributions(np.array([[1.0], [2.0], [3.0]]))}
    measured = {t: curve_with_interval("ERM", (1.0,), curve.mean, shared) for t, curve in curves.items()}
    table = curve_table("F", [average_over_trials(measured.items())])
    assert table.rows[0].cells[0].printed == "2.000 ± 2.484 (2.484)"
    window = replace(curves[0], method="ERM (window)")
    over_trials = average_over_trials(curves.items())
    assert curve_table("F", [over_trials, window]).title == "F, over 3 trials (ERM (window): for these weights only)"
    assert holds_for([over_trials, curves[0]]) == "over 3 trials where there are several, else for these weights only"
    table = curve_table("F", [curves[0]])
    assert table.title == "F, for these weights only"
    assert table.rows[0].cells[0].printed == "1.000 ± 0.100"


def test_the_null_row_compares_two_trials_of_the_same_method(tmp_path):
    runs = [
        raw_run(tmp_path / str(trial), "erm", factor, trial=trial)[0] for trial, factor in enumerate((1.0, 1.0, 3.0))
    ]
    measured = [read_flatness(run) for run in runs]
    pairs = {(pair.trials, pair.difference.side): pair for pair in null_pairs(measured)}
    assert {trials for trials, _ in pairs} == {(0, 1), (0, 2), (1, 2)}
    assert not pairs[(0, 1), "unseen"].is_different  # equal weights on equal images
    assert pairs[(0, 2), "unseen"].is_different
    assert pairs[(0, 2), "unseen"].difference.verdict.startswith("sharper at every radius")
    same, seen = pairs[(0, 1), "unseen"].difference.curve, pairs[(0, 1), "seen"].difference.curve
    assert same.high[-1] == 0
    assert seen.high[-1] > 0  # training images differ between trials, so they do not cancel
    table = verdict_table("Who", paired_differences(measured), null_pairs(measured))
    assert table.rows[-1].name == "null, for these weights only: ERM (best) against ERM (best) of another trial"
    assert table.rows[-1].cells[1].text == "significantly different in 2 of 3 pairs of trials"
    assert null_pairs(measured[:1]) == []


def test_two_trials_share_images_where_all_of_them_are_measured(tmp_path):
    runs = [raw_run(tmp_path / str(trial), "erm", 1.0, trial=trial, split="all")[0] for trial in (0, 1)]
    seen = next(pair for pair in null_pairs([read_flatness(run) for run in runs]) if pair.difference.side == "seen")
    assert seen.difference.curve.high[-1] == 0


def test_draws_that_only_one_curve_has_are_independent():
    draws = {name: np.array([[-s], [s]]) for name, s in (("shared", 1.0), ("first", 3.0), ("second", 4.0))}
    one, two = (
        curve_with_interval("ERM", (1.0,), (2.0,), {name: draws[name] for name in ("shared", own)})
        for own in ("first", "second")
    )
    alone = curve_with_interval("ERM", (1.0,), (0.0,), {"own": np.array([[-5.0], [5.0]])})  # 3² + 4² = 5²
    assert subtract_curves(one, two, paired=False).high == pytest.approx(alone.high)
