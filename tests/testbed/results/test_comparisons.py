"""Comparisons of methods: which units, which family, which verdict."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from helpers.accuracies import noisy, results_of
from helpers.run_tree import PACS, write_run
from swad.testbed.results.compare import arrow, compare, is_clear, lower_than_best, units_of_methods
from swad.testbed.results.comparisons import (
    ALL_DOMAINS,
    compare_in_words,
    compare_methods,
    compare_over_datasets,
    default_baseline,
    find_method,
    not_compared,
)
from swad.testbed.results.records import RECORDS
from swad.testbed.results.runs import find_runs
from swad.testbed.results.selection import collect_results
from swad.util.paired import paired_test


def test_each_unit_averages_over_the_others() -> None:
    values = noisy({"ERM (best)": 0, "SWAD": 0.02})
    differences = values["SWAD"] - values["ERM (best)"]
    for unit, units in (
        ("runs", differences.ravel()),
        ("trials", differences.mean(0)),
        ("targets", differences.mean(1)),
    ):
        (found,) = compare_methods(results_of(values), unit=unit).itertuples()
        twin = paired_test(units)
        assert found.n == len(units)
        assert (found.low, found.high) == pytest.approx((twin.low, twin.high))
        assert found.p == pytest.approx(twin.p)
        assert found.difference == pytest.approx(differences.mean())
        assert found.value - found.baseline_value == pytest.approx(found.difference)


def test_a_method_of_one_trial_counts_in_no_correction() -> None:
    values = noisy({"ERM (best)": 0, "SWAD": 0.02, "SWA": 0.01, "SAM": 0.01})
    values["SAM"] = values["SAM"][:, :1]
    by_method = {test.method: test for test in compare_methods(results_of(values)).itertuples()}
    assert {name: found.n_comparisons for name, found in by_method.items()} == {"SWAD": 2, "SWA": 2, "SAM": 2}
    assert math.isnan(by_method["SAM"].corrected_p)


def test_only_trials_that_both_methods_have_on_every_target_are_compared() -> None:
    first = {("a", 0): 0.8, ("b", 0): 0.6, ("a", 1): 0.9, ("b", 1): 0.7}
    second = {("a", 0): 0.7, ("b", 0): 0.5, ("a", 1): 0.7, ("b", 1): 0.5, ("a", 2): 0.1}
    units = units_of_methods({"first": first, "second": second, "lacks b": {("a", 0): 0.8}})
    (found,) = compare(units, "second", "trials").itertuples()
    assert (found.value, found.baseline_value, found.n_trials) == (pytest.approx(0.75), pytest.approx(0.6), 2)
    # The differences are 0.1 and 0.2: their standard error is 0.05, and t with one degree of freedom is 12.706.
    assert found.high - found.difference == pytest.approx(12.7062 * 0.05, rel=1e-4)
    assert not is_clear(found)
    with pytest.raises(ValueError, match="unit must be one of auto, runs, trials, targets"):
        compare(units, "second", "runs of a trial")


def test_by_default_trials_are_the_unit_where_they_are_enough() -> None:
    for n_trials, methods, unit in ((3, 1, "runs"), (5, 1, "runs"), (6, 1, "trials"), (6, 2, "runs"), (7, 2, "trials")):
        values = noisy({"ERM (best)": 0, **{f"m{i}": 0.02 for i in range(methods)}}, n_trials=n_trials)
        found = compare_methods(results_of(values))
        assert list(found.unit) == [unit] * methods
        pd.testing.assert_frame_equal(found, compare_methods(results_of(values), unit=unit))


def test_one_trial_claims_nothing_however_many_targets() -> None:
    results = results_of(noisy({"ERM (best)": 0, "SWAD": 0.3}, n_trials=1))
    (found,) = compare_methods(results).itertuples()
    assert all(map(math.isnan, (found.p, found.low, found.corrected_p)))
    assert not is_clear(found)
    assert arrow(found) == ""
    assert "One trial: no interval, so this shows no difference" in compare_in_words(results)
    assert lower_than_best(results.units, "SWAD") == set()


def test_arrows_point_where_the_difference_is_clear() -> None:
    results = results_of(noisy({"ERM (best)": 0, "up": 0.03, "same": 0.0, "down": -0.03}))
    arrows = [
        {test.method: arrow(test) for test in compare(results.units, baseline).itertuples()}
        for baseline in ("ERM (best)", "missing", "up")
    ]
    assert arrows[0] == {"up": "↑", "same": "–", "down": "↓"}
    assert arrows[1] == {}
    assert arrows[2] == {"ERM (best)": "↓", "same": "↓", "down": "↓"}


def test_many_comparisons_need_more_evidence() -> None:
    labels = {"ERM (best)": 0.0, "SWAD": 0.006, **{f"m{i}": 0.0 for i in range(20)}}
    values = noisy(labels, seed=1)
    alone = compare_methods(results_of({name: values[name] for name in ("ERM (best)", "SWAD")})).iloc[0]
    among = compare_methods(results_of(values)).iloc[0]
    assert is_clear(alone)
    assert alone.corrected_p == alone.p
    assert among.p == alone.p
    assert among.corrected_p > among.p
    assert among.n_comparisons == 21


def test_all_pairs_are_compared_without_a_baseline() -> None:
    found = list(compare_methods(results_of(noisy({"a": 0, "b": 0.1, "c": 0.2})), None).itertuples())
    assert [(c.method, c.baseline) for c in found] == [("b", "a"), ("c", "a"), ("c", "b")]
    assert all(c.difference > 0 and is_clear(c) for c in found)


def test_over_datasets_every_held_out_domain_is_one_unit() -> None:
    many = [results_of(noisy({"ERM (best)": 0, "SWAD": 0.02, "SAM": 0.0}, seed=n), f"d{n}", "abcd") for n in range(3)]
    many.append(results_of({"SAM": np.full((4, 3), 0.5)}, "without the baseline"))
    found = list(compare_over_datasets(many).itertuples())
    rows = [(c.dataset, c.method) for c in found]
    assert rows == [(f"d{n}", m) for n in range(3) for m in ("SWAD", "SAM")] + [
        (ALL_DOMAINS, m) for m in ("SWAD", "SAM")
    ]
    swad = found[-2]
    assert (swad.unit, swad.n, swad.n_comparisons) == ("domains", 12, 2)
    twin = []
    for results in many[:3]:
        mine, erm = (results.units[label] for label in ("SWAD", "ERM (best)"))
        twin += [np.mean([mine[target, trial] - erm[target, trial] for trial in range(3)]) for target in "abcd"]
    assert swad.p == paired_test(twin, 2).p
    assert (swad.low, swad.high) == pytest.approx((paired_test(twin).low, paired_test(twin).high))
    assert swad.value == pytest.approx(np.mean([c.value for c in found[:-2] if c.method == "SWAD"]))
    assert swad.value - swad.baseline_value == pytest.approx(swad.difference)
    assert arrow(swad) == "↑"
    assert arrow(found[-1]) == "–"
    assert len(compare_over_datasets(many[:1])) == 2  # one dataset


def test_a_domain_with_fewer_trials_is_one_unit_like_the_others() -> None:
    values = [noisy({"ERM (best)": 0, "SWAD": 0.02}, seed=n) for n in range(2)]
    values[1] = {label: table[:, :1] for label, table in values[1].items()}
    found = compare_over_datasets([results_of(each, f"d{n}") for n, each in enumerate(values)]).iloc[-1]
    twin = np.concatenate([(each["SWAD"] - each["ERM (best)"]).mean(1) for each in values])
    assert (found.n, found.n_trials, found.p) == (8, 1, paired_test(twin).p)


def test_a_method_that_lacks_a_dataset_is_not_compared_over_all() -> None:
    many = [results_of(noisy({"ERM (best)": 0, "SWAD": 0.02}), f"d{n}") for n in range(2)]
    many.append(results_of(noisy({"ERM (best)": 0}), "d2"))
    assert list(compare_over_datasets(many).dataset) == ["d0", "d1"]


def test_what_cannot_be_compared_is_named() -> None:
    values = noisy({"ERM (best)": 0, "SWAD": 0.02, "SAM": 0.0})
    partly = results_of({"ERM (best)": values["ERM (best)"], "SWAD": values["SWAD"]})
    sam = results_of({"SAM": values["SAM"][:2]}, targets="ab").results
    partly = replace(partly, results=pd.concat([partly.results, sam]))  # SAM lacks two targets
    without = results_of({"SAM": values["SAM"]}, "other")
    found = compare_over_datasets([partly, without])
    assert list(found.method) == ["SWAD"]
    assert not_compared([partly, without], found, "ERM (best)") == [
        "Not compared on D: SAM: no trial has results of it and of ERM (best) on every target.",
        "Not compared on other: ERM (best) has no results there.",
    ]


def test_baselines_are_found_by_name() -> None:
    results = [results_of(noisy({"ERM (best)": 0, "SWAD": 0.02}))]
    assert find_method(results, "erm best") == "ERM (best)"
    with pytest.raises(ValueError, match=r"one of the methods ERM \(best\), SWAD; got 'SWADD': did you mean 'SWAD'\?"):
        compare_methods(results[0], "SWADD")
    assert default_baseline(results) == "ERM (best)"
    assert default_baseline([results_of({"SAM (best)": np.zeros((4, 1))})]) == "SAM (best)"
    assert default_baseline([]) is None


# ------------------------------------------------------------ how often the verdicts are right


@pytest.mark.parametrize("images", [None, 300])
def test_where_nothing_differs_few_tables_claim_a_difference(images: int | None) -> None:
    """Of tables with six equal methods, at most 5 % have an arrow, and at most 5 % of columns have a ↓.

    Also on 300 images, where accuracies are multiples of 1 / 300.
    """
    n, with_arrow, in_mean, in_target = 200, 0, 0, 0
    for seed in range(n):
        values = noisy({"ERM (best)": 0, **{f"m{i}": 0.0 for i in range(5)}}, seed)
        if images:
            values = {label: np.round(each * images) / images for label, each in values.items()}
        results = results_of(values)
        with_arrow += any(map(is_clear, compare_methods(results).itertuples()))
        on_a = results.units.loc[["a"]]
        in_mean += bool(lower_than_best(results.units, results.units.mean().idxmax()))
        in_target += bool(lower_than_best(on_a, on_a.mean().idxmax()))
    limit = 0.05 + 2 * math.sqrt(0.05 * 0.95 / n)
    assert with_arrow / n <= limit
    assert in_mean / n <= limit
    assert in_target / n <= limit


def test_targets_that_differ_are_fixed_for_runs_and_a_sample_for_targets() -> None:
    """A gain that varies between targets: over runs, its mean on these targets is covered, and over targets that of
    all targets that these are drawn from."""
    rng = np.random.default_rng(0)
    fixed = np.array([0.04, 0.01, 0.0, -0.01])
    n, covered_fixed, covered_sample, runs_cover_sample = 400, 0, 0, 0
    for _ in range(n):
        noise = rng.normal(0, 0.005, (4, 3))
        zero = np.zeros((4, 3))
        (found,) = compare_methods(results_of({"ERM (best)": zero, "SWAD": fixed[:, None] + noise})).itertuples()
        covered_fixed += found.low <= fixed.mean() <= found.high
        drawn = rng.normal(0.01, 0.02, (4, 1)) + noise
        sampled = results_of({"ERM (best)": zero, "SWAD": drawn})
        (found,) = compare_methods(sampled, unit="targets").itertuples()
        covered_sample += found.low <= 0.01 <= found.high
        (found,) = compare_methods(sampled).itertuples()
        runs_cover_sample += found.low <= 0.01 <= found.high
    assert covered_fixed / n >= 0.95
    assert 0.92 <= covered_sample / n <= 0.98
    assert runs_cover_sample / n < 0.85  # runs say nothing about other targets


def test_runs_of_a_trial_that_vary_together_need_trials_as_the_unit() -> None:
    rng = np.random.default_rng(0)
    n, wrong = 400, {"runs": 0, "trials": 0}
    for _ in range(n):
        gains = rng.normal(0, 0.01, (1, 3)) + rng.normal(0, 0.005, (4, 3))
        results = results_of({"ERM (best)": np.zeros((4, 3)), "SWAD": gains})
        for unit in wrong:
            (found,) = compare_methods(results, unit=unit).itertuples()
            wrong[unit] += is_clear(found)
    assert wrong["trials"] / n <= 0.075
    assert wrong["runs"] / n > 0.2


# ------------------------------------------------------------ in words


@pytest.mark.parametrize(
    ("gains", "words"),
    [
        ([0.062], "One trial: no interval"),
        (
            [0.06, -0.04, 0.02],
            "The runs do not show a difference (95 % interval of the difference over 6 paired runs: ",
        ),
        ([0.060, 0.062, 0.064], "SWAD reaches 6.2 points more (95 % interval of the difference over 6 paired runs: +"),
        ([-0.060, -0.062, -0.064], "SWAD reaches 6.2 points less"),
    ],
)
def test_the_headline_claims_only_what_the_test_shows(gains: list[float], words: str) -> None:
    base = np.full((2, len(gains)), 0.5)
    headline = compare_in_words(results_of({"ERM (best)": base, "SWAD": base + np.array(gains)}, targets="ab"))
    assert headline.startswith("SWAD reaches 5" if gains[0] > 0 else "SWAD reaches 4")
    assert words in headline
    assert ("points more" in headline or "points less" in headline) == (len(gains) > 1 and abs(sum(gains)) > 0.1)


def test_a_headline_says_what_it_was_corrected_for() -> None:
    values = noisy({"ERM (best)": 0.0, "SWAD": 0.03, "SAM": 0.0})
    assert "corrected for 2 comparisons" in compare_in_words(results_of(values))
    same = np.full((1, 3), 0.5)
    alike = compare_in_words(results_of({"ERM (best)": same, "SWAD": same + 0.1}, targets="a"))
    assert "on the target a" in alike
    assert alike.endswith("All 3 paired differences are the same, so they have no interval and show no difference.")


def test_a_target_without_results_is_missing_and_takes_the_headline_away(tmp_path: Path) -> None:
    for target in PACS:
        write_run(tmp_path / target, target=target)
    (complete,) = collect_results(find_runs(tmp_path))
    assert (complete.targets, complete.missing_targets) == (PACS, ())
    (tmp_path / "cartoon" / RECORDS).unlink()
    (results,) = collect_results(find_runs(tmp_path, warn=False))
    assert results.missing_targets == ("cartoon",)
    assert [entry.name for entry in results.skipped] == ["cartoon"]
    assert compare_in_words(complete)
    assert compare_in_words(results) == ""
