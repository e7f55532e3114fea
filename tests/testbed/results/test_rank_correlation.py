import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from swad.testbed.results.rank_correlation import ranking

PAPER = {"ERM": 63.3, "SAM": 64.5, "SWA cyclic": 65.5, "SWA": 65.6, "SWAD": 66.9}  # appendix D.1, averages


def test_the_papers_order_is_as_unlikely_as_one_in_sixty():
    flatness = {"ERM": 9.0, "SAM": 5.0, "SWA cyclic": 4.0, "SWA": 3.0, "SWAD": 1.0}
    found = ranking(flatness, PAPER)
    assert found.same_order
    assert list(found.methods.index) == ["SWAD", "SWA", "SWA cyclic", "SAM", "ERM"]
    assert found.tau == pytest.approx(1)
    # Of 120 orders one agrees fully and one is fully reversed.
    assert found.p == pytest.approx(2 / 120)
    assert ranking({name: -value for name, value in flatness.items()}, PAPER).tau == pytest.approx(-1)


# Of the 12 orders of these, most agree a little and few disagree much: the p-value is a share, not twice a tail.
@example(([0, 1, 1, 1], [0, 0, 1, 2]))
@settings(max_examples=25, deadline=None)
@given(
    st.integers(3, 5).flatmap(
        lambda n: st.tuples(
            st.lists(st.integers(0, 5), min_size=n, max_size=n), st.lists(st.integers(0, 5), min_size=n, max_size=n)
        )
    )
)
def test_against_scipy_and_every_order_one_by_one(numbers):
    flat, good = numbers
    if len(set(flat)) == 1 or len(set(good)) == 1:
        return
    names = [f"m{i}" for i in range(len(flat))]
    found = ranking(dict(zip(names, flat, strict=True)), dict(zip(names, good, strict=True)), n_resamples=10)
    assert found.tau == pytest.approx(stats.kendalltau([-x for x in flat], good).statistic)
    every = [stats.kendalltau([-x for x in order], good).statistic for order in itertools.permutations(flat)]
    assert found.p == pytest.approx(np.mean([abs(one) >= abs(found.tau) - 1e-9 for one in every]))


def test_many_methods_draw_permutations():
    rng = np.random.default_rng(0)
    flat, good = rng.normal(size=12), rng.normal(size=12)
    names = [f"m{n:02}" for n in range(12)]
    found = ranking(dict(zip(names, flat, strict=True)), dict(zip(names, good, strict=True)), n_resamples=10)
    twin = stats.kendalltau(-flat, good, method="exact")
    assert (found.tau, found.p) == (pytest.approx(twin.statistic), pytest.approx(twin.pvalue, abs=0.02))
    falling = ranking(dict(zip(names, flat, strict=True)), dict(zip(names, -flat, strict=True)), n_resamples=10)
    assert falling.p == pytest.approx(1 / 20_001)


def test_units_are_resampled_together():
    """Flatness and accuracy of a target stay together: where every target agrees, every resample does."""
    rng = np.random.default_rng(0)
    shift = rng.normal(0, 100, 4)
    flatness = {name: list(place + shift) for place, name in enumerate("abcde")}
    accuracy = {name: list(-place + shift) for place, name in enumerate("abcde")}
    found = ranking(flatness, accuracy)
    assert found.resampled == "units"
    assert (found.low, found.high) == (pytest.approx(1), pytest.approx(1))
    loose = {name: list(-place + rng.normal(0, 3, 4)) for place, name in enumerate("abcde")}
    assert ranking(flatness, loose).low < 0.9
    assert_equal(ranking(flatness, loose), ranking(flatness, loose))


def test_three_methods_show_nothing():
    """One of six orders agrees and one is reversed, so p is 1 / 3, and the interval excludes nothing."""
    by_unit = [[1, 1.1], [2, 2.1], [3, 3.2]]
    for values in ([1, 2, 3], by_unit):
        flatness = dict(zip("abc", values, strict=True))
        found = ranking(flatness, {name: -np.array(value) for name, value in flatness.items()})
        assert found.tau == pytest.approx(1)
        assert found.p == pytest.approx(1 / 3)
        assert (found.low, found.high) == (-1, 1)


@settings(max_examples=30)
@given(st.integers(3, 6), st.integers(1, 3), st.integers(0, 1000))
def test_an_interval_excludes_zero_only_if_the_test_rejects_it(n, units, seed):
    rng = np.random.default_rng(seed)
    flatness = {str(i): rng.integers(0, 9, units) + i for i in range(n)}
    accuracy = {str(i): rng.normal(0, 2, units) - i for i in range(n)}
    found = ranking(flatness, accuracy, n_resamples=200)
    if found.low > 0 or found.high < 0:
        assert found.p <= 0.05


@pytest.mark.parametrize("number", [np.float32, np.float16, np.int64, lambda value: np.array(value, dtype=np.float32)])
def test_numbers_of_numpy_are_numbers(number):
    values = {name: place / 4 for place, name in enumerate("abcde")}
    found = ranking(
        {name: number(4 * value) for name, value in values.items()}, {n: [number(4 * v)] for n, v in values.items()}
    )
    plain = ranking({name: 4 * value for name, value in values.items()}, {n: [4 * v] for n, v in values.items()})
    assert_equal(found, plain)
    assert json.dumps([found.tau, found.low, found.high, found.p])


def assert_equal(first, second):
    assert first.methods.equals(second.methods)
    assert {**vars(first), "methods": None} == {**vars(second), "methods": None}


def test_equal_methods_have_no_order():
    found = ranking({"a": 1, "b": 1, "c": 1}, {"a": 1, "b": 2, "c": 3})
    assert math.isnan(found.tau)
    assert math.isnan(found.p)
    assert not found.same_order


@pytest.mark.parametrize(
    ("flatness", "accuracy"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 2}),
        ({"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 2, "d": 3}),
        ({"a": [1, 2], "b": [2], "c": [3]}, {"a": 1, "b": 2, "c": 3}),
        ({"a": 1, "b": math.nan, "c": 3}, {"a": 1, "b": 2, "c": 3}),
    ],
)
def test_what_cannot_be_ranked_is_refused(flatness, accuracy):
    with pytest.raises(ValueError, match="a ranking needs"):
        ranking(flatness, accuracy)
