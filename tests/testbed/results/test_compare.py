"""Means and paired tests of data frames, against the functions that take one value at a time."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swad.testbed.results.compare import arrow, compare, lower_than_best, means, units_of, units_of_methods
from swad.util.paired import PairedTest, adjust_p_values, adjust_together, paired_test, uses_sign_flips
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
    pd.testing.assert_frame_equal(tests, compare(units_of_methods(by_method(rows)), baseline, unit))
    twins = pairs_one_by_one(by_method(rows), baseline, sorted({*rows.target}), unit)
    corrected = adjust_p_values([twin.p for _, _, _, twin in twins])
    assert len(tests) == len(twins)
    for found, (names, by, n_trials, twin), p in zip(tests.itertuples(), twins, corrected, strict=True):
        assert (found.method, found.baseline) == names
        assert (found.unit, found.n, found.n_trials) == (by, twin.n, n_trials)
        assert found.n_comparisons == max(1, sum(n > 1 for _, _, n, _ in twins))
        wanted = [math.nan if number is None else number for number in (twin.low, twin.high, twin.p, p)]
        assert [found.low, found.high, found.p, found.corrected_p] == pytest.approx(wanted, nan_ok=True, abs=1e-12)
        assert found.difference == pytest.approx(twin.difference, abs=1e-12)
        assert found.value - found.baseline_value == pytest.approx(found.difference)
        shown = p is not None and p <= 0.05
        assert arrow(found) == ("" if twin.p is None else ("↑" if twin.difference > 0 else "↓") if shown else "–")


def pairs_one_by_one(accuracies, baseline, targets, unit):
    """Names, unit, trials and test of every pair, from values by target and trial."""
    others = [(m, baseline) for m in accuracies if m != baseline]
    names = others if baseline else [(b, a) for a, b in itertools.combinations(accuracies, 2)]
    shared = {}
    for pair in names:
        first, second = (accuracies[method] for method in pair)
        trials = [
            n for n in sorted({n for _, n in first}) if all((t, n) in first and (t, n) in second for t in targets)
        ]
        if trials:
            shared[pair] = {(t, n): first[t, n] - second[t, n] for t in targets for n in trials}, trials
    n_tests = max(1, sum(len(trials) > 1 for _, trials in shared.values()))
    found = []
    for pair, (differences, trials) in shared.items():
        by = unit if unit != "auto" else "trials" if uses_sign_flips(len(trials), n_tests) else "runs"
        values = {
            "runs": [*differences.values()],
            "trials": [np.mean([differences[t, n] for t in targets]) for n in trials],
            "targets": [np.mean([differences[t, n] for n in trials]) for t in targets],
        }[by]
        test = paired_test(values, n_tests)
        if len(trials) == 1:
            test = PairedTest(test.difference, None, None, None, test.n, None)
        found.append((pair, by, len(trials), test))
    return found


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


@given(st.lists(tables(), min_size=2, max_size=4), st.sampled_from(["auto", "runs", "trials", "targets"]))
@settings(deadline=None, max_examples=60)
def test_a_family_has_the_tests_of_its_quantities_in_their_order(several, unit):
    family = {n: units_of(rows) for n, rows in enumerate(several) if len(rows)}
    tests = compare(family, None, unit)
    alone = [compare(units, None, unit).assign(quantity=n) for n, units in family.items()]
    names = ["quantity", "method", "baseline", "n_trials"]
    assert tests[names].to_numpy().tolist() == [row for each in alone for row in each[names].to_numpy().tolist()]


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
