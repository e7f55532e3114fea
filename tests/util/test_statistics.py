import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from swad.util.statistics import (
    contributions,
    half_widths,
    mean,
    p_values,
    subtract_contributions,
    summarize,
)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_the_summary_is_mean_and_population_error(values: list[float]) -> None:
    summary = summarize(values)
    assert summary.mean == pytest.approx(statistics.fmean(values))
    assert summary.n == len(values)
    if len(values) == 1:
        assert summary.error is None
    else:
        assert summary.error == pytest.approx(statistics.pstdev(values) / len(values) ** 0.5, abs=1e-9)


def test_a_summary_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="got none"):
        summarize([])


def test_the_mean_of_opposite_infinities_is_nan() -> None:
    assert math.isnan(mean([math.inf, -math.inf]))
    assert mean([math.inf, 1.0]) == math.inf


@pytest.mark.parametrize("n", [2, 3, 5, 12, 1000])
def test_interval_and_p_value_of_one_source_are_those_of_scipy(n: int) -> None:
    values = np.random.default_rng(n).normal(0.3, 1.0, (n, 2))
    test = stats.ttest_1samp(values, 0.0)
    for confidence in (0.8, 0.95):
        interval = test.confidence_interval(confidence)
        halves = half_widths({"draws": contributions(values)}, confidence)
        assert halves == pytest.approx(((interval.high - interval.low) / 2).tolist())
    assert p_values(values.mean(0).tolist(), {"draws": contributions(values)}) == pytest.approx(test.pvalue.tolist())


def test_a_single_draw_has_no_interval() -> None:
    alone = {"draws": contributions(np.ones((1, 1)))}
    assert math.isnan(half_widths(alone)[0])
    assert math.isnan(p_values([1.0], alone)[0])


def test_a_difference_needs_the_same_draws() -> None:
    values = np.random.default_rng(0).normal(size=(20, 1))
    first = {"images": contributions(values)}
    assert subtract_contributions(first, None) is None
    assert subtract_contributions(first, {"images": contributions(values[:10])}) is None
    assert subtract_contributions(first, {"others": contributions(values)}) is None
    assert p_values([0.5], subtract_contributions(first, first)) == [pytest.approx(0.0, abs=1e-9)]
    assert p_values([0.0], first) == [1.0]


def test_intervals_of_few_draws_cover_the_mean_as_often_as_they_say() -> None:
    """Of 3,000 quadratics in 5 directions each, 95 % of the intervals contain the mean; 89 % without Student's t."""
    values = quadratics(5, 3000)
    halves = np.array(half_widths({"directions": contributions(values)}))
    assert 0.935 < (np.abs(values.mean(0)) < halves).mean() < 0.965


def quadratics(n: int, columns: int) -> np.ndarray:
    """Return rises of `columns` quadratics in n directions each, minus the expected rise."""
    directions = np.random.default_rng(4).normal(size=(n, columns, 20)) ** 2
    eigenvalues = np.linspace(0.1, 3.0, 20)
    return directions @ eigenvalues / directions.sum(-1) - eigenvalues.mean()
