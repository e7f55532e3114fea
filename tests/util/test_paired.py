"""Paired tests against enumeration, scipy and statsmodels, and how often they are right where the truth is known."""

import itertools
import math
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests

from swad.util import paired
from swad.util.paired import adjust_p_values, adjust_together, paired_test, uses_sign_flips

# Accuracies of 400 images, so that ties happen.
steps = st.integers(-40, 40).map(lambda images: images / 400)
samples = st.lists(steps, min_size=6, max_size=9)


def enumerated_p(values: list[float]) -> float:
    """The share of all sign patterns whose mean is at least as far from 0, one by one."""
    n = len(values)
    observed = abs(math.fsum(values))
    patterns = list(itertools.product((1, -1), repeat=n))
    far = sum(
        abs(math.fsum(s * v for s, v in zip(signs, values, strict=True))) >= observed - 1e-9 for signs in patterns
    )
    return far / len(patterns)


@given(samples)
def test_the_p_value_is_the_share_of_all_sign_patterns(values: list[float]) -> None:
    found = paired_test(values)
    assert found.test == "sign flips"
    assert found.p == enumerated_p(values)
    assert found.difference == pytest.approx(sum(values) / len(values))


@pytest.mark.parametrize("n", [6, 9, 12])
def test_the_p_value_is_that_of_scipy(n: int) -> None:
    values = np.random.default_rng(n).normal(0.5, 1, n)
    theirs = stats.permutation_test(
        (values,), lambda x, axis: x.mean(axis), permutation_type="samples", n_resamples=np.inf, vectorized=True
    )
    assert paired_test(values).p == theirs.pvalue


@settings(max_examples=50)
@given(samples, st.floats(-0.1, 0.1))
def test_the_interval_holds_the_shifts_that_the_test_does_not_reject(values: list[float], shift: float) -> None:
    found = paired_test(values)
    assume(min(abs(found.low - shift), abs(found.high - shift)) > 1e-6)
    rejected = enumerated_p([value - shift for value in values]) <= 0.05
    assert rejected == (not found.low <= shift <= found.high)


@given(samples)
def test_interval_and_p_value_never_contradict_each_other(values: list[float]) -> None:
    found = paired_test(values)
    assert (found.p <= 0.05) == (found.low > 0 or found.high < 0)
    assert found.low <= found.high


@given(samples, st.randoms(use_true_random=False), st.floats(-0.5, 0.5), st.sampled_from([0.25, 2.0, 100.0]))
def test_order_shift_scale_and_sign(values: list[float], rng, shift: float, scale: float) -> None:
    found = paired_test(values)
    shuffled = rng.sample(values, len(values))
    assert paired_test(shuffled).p == found.p
    shifted = paired_test([value + shift for value in values])
    assert (shifted.low, shifted.high) == pytest.approx((found.low + shift, found.high + shift), abs=1e-8)
    scaled = paired_test([scale * value for value in values])
    assert scaled.p == found.p
    assert (scaled.low, scaled.high) == pytest.approx((scale * found.low, scale * found.high), abs=1e-6)
    mirrored = paired_test([-value for value in values])
    assert mirrored.p == found.p
    assert (-mirrored.high, -mirrored.low) == pytest.approx((found.low, found.high))


@pytest.mark.parametrize("n", [2, 3, 5])
def test_few_units_are_tested_with_students_t(n: int) -> None:
    values = np.random.default_rng(n).normal(0.5, 1, n)
    theirs = stats.ttest_1samp(values, 0)
    found = paired_test(values)
    assert found.test == "t"
    assert found.p == pytest.approx(theirs.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(theirs.confidence_interval()))


def test_many_units_draw_sign_patterns_and_still_agree_with_scipy() -> None:
    values = np.random.default_rng(0).normal(0.5, 1, 40)
    found = paired_test(values)
    assert found == paired_test(values)
    theirs = stats.permutation_test(
        (values,), lambda x, axis: x.mean(axis), permutation_type="samples", n_resamples=50_000, rng=1
    )
    assert found.p == pytest.approx(theirs.pvalue, abs=0.002)
    t = stats.ttest_1samp(values, 0).confidence_interval()
    assert (found.low, found.high) == pytest.approx(tuple(t), abs=0.03)
    assert (found.p <= 0.05) == (found.low > 0)


def test_the_number_of_comparisons_decides_the_test_and_the_values_do_not() -> None:
    assert uses_sign_flips(12, 102)
    assert not uses_sign_flips(12, 103)  # 103 * 2 / 4096 > 0.05: no p-value would survive
    values = np.random.default_rng(0).normal(5, 1, 12)
    assert paired_test(values, 102).test == "sign flips"
    assert paired_test(values, 103).test == "t"


def test_what_has_no_spread_has_no_test() -> None:
    for values in ([0.1], [0.1, 0.1 + 1e-16], [0.56 - 0.5, 0.76 - 0.7, 0.96 - 0.9], [0.1, math.nan, 0.2]):
        found = paired_test(values)
        assert (found.low, found.high, found.p, found.test) == (None, None, None, None)
    # The exact test needs no spread: of 64 sign patterns, two are as far from 0.
    assert paired_test([0.1] * 6).p == 2 / 64
    assert paired_test([0.0] * 6).p == 1.0


@pytest.mark.parametrize("n", [3, 8, 12])
@pytest.mark.parametrize("images", [0, 200])
def test_intervals_cover_the_truth_and_nulls_are_rejected_as_often_as_they_say(n: int, images: int) -> None:
    """Also with accuracies of few images, whose differences are multiples of 1 / 200."""
    rng = np.random.default_rng(n)
    truth, trials = 0.02, 1000
    errors = rng.normal(0, 0.01, (trials, n))
    if images:
        errors = np.round(errors * images) / images
    tests = [paired_test(row + truth) for row in errors]
    covered = np.mean([t.low is None or t.low - 1e-9 <= truth <= t.high + 1e-9 for t in tests])
    null = np.mean([(t := paired_test(row)).p is not None and t.p <= 0.05 for row in errors])
    assert covered >= 0.935
    assert null <= 0.065
    if not images:
        assert covered <= 0.97


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_the_correction_is_that_of_statsmodels(values: list[float]) -> None:
    with mock.patch("gc.collect"):  # it calls that for Holm, which takes a second in a large test process
        assert adjust_p_values(values) == pytest.approx(list(multipletests(values, method="holm")[1]))


def test_exact_and_drawn_patterns_are_closed_under_complement() -> None:
    for n in (5, paired.EXACT_UP_TO + 1):
        rows, sizes = paired._subsets(n)
        assert (sizes == rows.sum(1)).all()
        assert not rows[0].any()
        assert sorted(map(tuple, rows)) == sorted(map(tuple, 1 - rows))


families = st.integers(6, 7).flatmap(
    lambda n: st.lists(st.lists(steps, min_size=n, max_size=n), min_size=1, max_size=4)
)


@settings(max_examples=30)
@given(families)
def test_comparisons_on_the_same_units_are_corrected_by_the_largest_statistic(rows: list[list[float]]) -> None:
    """The slow twin: every sign pattern, one by one."""

    def statistic(values: list[float], signs: tuple[int, ...]) -> float:
        size = math.sqrt(math.fsum(value * value for value in values))
        return abs(math.fsum(s * v for s, v in zip(signs, values, strict=True))) / size if size else 0.0

    patterns = list(itertools.product((1, -1), repeat=len(rows[0])))
    largest = [max(statistic(row, signs) for row in rows) for signs in patterns]
    observed = [statistic(row, patterns[0]) for row in rows]
    want = [sum(value >= own - 1e-9 for value in largest) / len(patterns) for own in observed]
    assert adjust_together(rows) == pytest.approx(want)
    assert all(p >= enumerated_p(row) - 1e-12 for p, row in zip(adjust_together(rows), rows, strict=True))
    assert adjust_together(rows * 3) == adjust_together(rows) * 3, "the same comparison again costs nothing"


@pytest.mark.parametrize("likeness", [0.0, 0.9])
def test_of_many_comparisons_without_a_difference_none_is_claimed_95_times_of_100(likeness: float) -> None:
    random = np.random.default_rng(0)
    claimed = 0
    for _ in range(400):
        shared = random.normal(size=(1, 8))
        rows = math.sqrt(likeness) * shared + math.sqrt(1 - likeness) * random.normal(size=(20, 8))
        rows[0] += 5  # a difference that exists, and must not lead to claims of others
        claimed += min(adjust_together(rows.tolist())[1:]) <= 0.05
    assert claimed / 400 <= 0.075
