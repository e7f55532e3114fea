"""Means and paired tests of data frames, against the functions that take one value at a time."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swad.testbed.results import comparisons
from swad.testbed.results.compare import arrow, compare, lower_than_best, means, units_of
from swad.util.paired import adjust_together, paired_test
from swad.util.statistics import student_quantile, summarize


@st.composite
def tables(draw):
    """Values by method, target and trial, some of which are missing."""
    n_targets, n_trials, n_methods = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    cube = rng.normal(0.8, 0.05, (n_methods, n_targets, n_trials)).round(draw(st.integers(1, 6)))
    cube[rng.random(cube.shape) < draw(st.sampled_from([0, 0.1, 0.4]))] = math.nan
    rows = [
        {"method": f"m{m}", "target": f"t{t}", "trial": n, "value": cube[m, t, n]}
        for m, t, n in np.ndindex(*cube.shape)
        if not math.isnan(cube[m, t, n])
    ]
    return pd.DataFrame(rows, columns=["method", "target", "trial", "value"])


def by_method(rows: pd.DataFrame) -> dict[str, dict[tuple[str, int], float]]:
    found: dict[str, dict[tuple[str, int], float]] = {}
    for row in rows.itertuples():
        found.setdefault(row.method, {})[row.target, row.trial] = row.value
    return found


@given(tables())
@settings(deadline=None, max_examples=150)
def test_means_are_over_targets_within_a_trial_and_then_over_trials(rows):
    if rows.empty:
        return
    summary = means(units_of(rows))
    targets = set(rows.target)
    for method, values in by_method(rows).items():
        found = summary.loc[method]
        trials = {trial for _, trial in values}
        if {target for target, _ in values} != targets:
            assert math.isnan(found["mean"])
            continue
        of_target = [np.mean([v for (t, _), v in values.items() if t == target]) for target in targets]
        if len(values) < len(targets) * len(trials):
            assert found["mean"] == pytest.approx(np.mean(of_target))
            assert math.isnan(found["error"])
            continue
        twin = summarize(np.mean([values[target, trial] for target in targets]) for trial in trials)
        assert found["mean"] == pytest.approx(twin.mean)
        assert (math.nan if twin.error is None else twin.error) == pytest.approx(found["error"], nan_ok=True)
        if len(trials) > 1:
            n = len(trials)
            half = student_quantile(n) * (twin.error or 0) * math.sqrt(n / (n - 1))
            assert found["high"] - found["low"] == pytest.approx(2 * half)


@given(tables(), st.sampled_from([None, "m0"]), st.sampled_from(["auto", "runs", "trials", "targets"]))
@settings(deadline=None, max_examples=150)
def test_tests_are_those_of_the_pairs_corrected_together(rows, baseline, unit):
    if rows.empty or baseline not in {None, *rows.method}:
        return
    tests = compare(units_of(rows), baseline, unit)
    twins = comparisons.compare_accuracies(by_method(rows), baseline, sorted({*rows.target}), unit=unit)
    assert len(tests) == len(twins)
    for found, twin in zip(tests.itertuples(), twins, strict=True):
        assert (found.method, found.baseline, found.unit) == (twin.method, twin.baseline, twin.unit)
        assert (found.n, found.n_trials, found.n_comparisons) == (twin.test.n, twin.n_trials, twin.n_comparisons)
        numbers = (twin.difference, twin.test.low, twin.test.high, twin.test.p, twin.corrected_p)
        wanted = [math.nan if number is None else number for number in numbers]
        got = [found.difference, found.low, found.high, found.p, found.corrected_p]
        assert got == pytest.approx(wanted, nan_ok=True, abs=1e-12)
        assert found.value - found.baseline_value == pytest.approx(found.difference)
        assert arrow(found) == twin.arrow


def test_a_family_of_several_quantities_is_corrected_as_one():
    rng = np.random.default_rng(0)
    units = {
        name: units_of(
            pd.DataFrame(
                {
                    "method": ["ERM"] * 8 + ["SWAD"] * 8,
                    "target": "a",
                    "trial": [*range(8)] * 2,
                    "value": np.concatenate([rng.normal(0, 1, 8), rng.normal(1, 1, 8)]),
                }
            )
        )
        for name in ("clean", "fog", "noise")
    }
    tests = compare(units, "ERM")
    assert list(tests["quantity"]) == ["clean", "fog", "noise"]
    assert set(tests.n_comparisons) == {3}
    raw = sorted(tests.p)
    holm = np.maximum.accumulate([min(1, (3 - k) * p) for k, p in enumerate(raw)])
    assert sorted(tests.corrected_p) == pytest.approx(list(holm))


def test_likenesses_count_once_together():
    rng = np.random.default_rng(1)
    base, gain = rng.normal(0, 1, 8), rng.normal(1.2, 0.5, 8)
    columns = {"ERM": base, **{f"w{k}": base + gain + rng.normal(0, 1e-3, 8) for k in range(5)}}
    rows = [{"method": m, "target": "a", "trial": n, "value": v} for m in columns for n, v in enumerate(columns[m])]
    units = units_of(pd.DataFrame(rows))
    together, holm = compare(units, "ERM", together=True), compare(units, "ERM")
    twin = adjust_together([columns[f"w{k}"] - base for k in range(5)])
    assert list(together.corrected_p) == pytest.approx(twin)
    assert (together.corrected_p <= holm.corrected_p).all()
    few = units.loc[pd.IndexSlice[:, [0, 1, 2]], :]
    pd.testing.assert_frame_equal(compare(few, "ERM", together=True), compare(few, "ERM"))


def test_only_clear_losses_are_lower_than_the_best():
    rng = np.random.default_rng(2)
    columns = {"a": rng.normal(0, 0.1, 8), "b": rng.normal(5, 0.1, 8), "c": rng.normal(5, 0.1, 8)}
    rows = [{"method": m, "target": "a", "trial": n, "value": v} for m in columns for n, v in enumerate(columns[m])]
    units = units_of(pd.DataFrame(rows))
    assert lower_than_best(units, "b") == {"a"}
    assert paired_test(columns["b"] - columns["c"], 3).p > 0.05
