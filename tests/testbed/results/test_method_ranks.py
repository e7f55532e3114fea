"""Ranks of methods against scipy and Demšar's numbers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from swad.testbed.results.method_ranks import MethodRanks, rank_results, rank_scores
from swad.testbed.results.run_data import RunData
from swad.testbed.results.selection import collect_results

NAMES = ("a", "b", "c", "d")


def test_demsars_critical_differences() -> None:
    """Demšar (2006), Table 5 (a): q is 2.343 for three methods and 2.728 for five; CD = q * sqrt(k (k + 1) / 6 N)."""
    rng = np.random.default_rng(0)
    for k, q in ((3, 2.343), (5, 2.728), (10, 3.164)):
        found = rank_scores({str(i): rng.normal(size=14) for i in range(k)}, "datasets")
        assert found.critical_difference == pytest.approx(q * np.sqrt(k * (k + 1) / (6 * 14)), abs=2e-3)


@settings(max_examples=25)
@given(st.lists(st.lists(st.integers(0, 6), min_size=4, max_size=4), min_size=3, max_size=8))
def test_ranks_and_friedman_are_those_of_scipy(rows: list[list[int]]) -> None:
    table = np.array(rows)
    found = rank_scores({name: table[:, i].tolist() for i, name in enumerate(NAMES)}, "datasets")
    assert sum(found.ranks.values()) == pytest.approx(4 * 5 / 2)
    assert list(found.ranks.values()) == sorted(found.ranks.values())
    for i, name in enumerate(NAMES):  # one by one: the number of better methods, and half of the equal ones
        by_hand = [1 + sum(row > row[i]) + (sum(row == row[i]) - 1) / 2 for row in table]
        assert found.ranks[name] == pytest.approx(np.mean(by_hand))
    if all(len(set(row)) == 1 for row in rows):
        assert found.friedman_p == 1
        assert not any(found.differ(a, b) for a in NAMES for b in NAMES)
    else:
        assert found.friedman_p == pytest.approx(stats.friedmanchisquare(*table.T).pvalue)


def test_ranks_further_apart_than_the_critical_difference_differ() -> None:
    rng = np.random.default_rng(1)
    gains = dict(zip(NAMES, (0, 0.4, 1.2, 3.0), strict=True))
    found = rank_scores({name: gain + rng.normal(size=20) for name, gain in gains.items()}, "runs")
    assert found.friedman_p < 0.05
    different = {(a, b): found.differ(a, b) for a in NAMES for b in NAMES}
    for (a, b), differ in different.items():
        assert differ == (abs(found.ranks[a] - found.ranks[b]) > found.critical_difference)
    assert 0 < sum(different.values()) < 12


def test_without_friedman_nothing_differs() -> None:
    """Of sixty nulls, at most a few call any pair different."""
    rng = np.random.default_rng(2)
    claims = 0
    for _ in range(60):
        found = rank_scores({name: rng.normal(size=10) for name in NAMES}, "datasets")
        claims += any(found.differ(a, b) for a in NAMES for b in NAMES)
        if found.friedman_p > 0.05:
            assert "shows no difference between the methods" in found.summary
    assert claims / 60 <= 0.1


def test_nemenyi_counts_only_after_friedman() -> None:
    pairs = {("a", "b"): 0.01, ("b", "a"): 0.01}
    assert MethodRanks({"a": 1, "b": 3}, "runs", 9, 0.04, pairs, 1.0).differ("a", "b")
    assert not MethodRanks({"a": 1, "b": 3}, "runs", 9, 0.06, pairs, 1.0).differ("a", "b")


def test_what_cannot_be_ranked_is_refused() -> None:
    for scores in ({"a": [1, 2], "b": [1, 2]}, {"a": [1], "b": [2], "c": [3]}, {"a": [1, 2], "b": [1, 2], "c": [1]}):
        with pytest.raises(ValueError, match="ranks need three methods or more"):
            rank_scores(scores, "datasets")
    with pytest.raises(ValueError, match="finite"):
        rank_scores({"a": [1, 2], "b": [1, np.nan], "c": [1, 2]}, "datasets")


def test_one_dataset_is_ranked_over_runs_and_several_over_datasets(runs: list[RunData]) -> None:
    (pacs,) = collect_results(runs)
    one = rank_results([pacs])
    assert one is not None
    assert (one.blocks, one.n_blocks) == ("runs", 8)
    assert next(iter(one.ranks)) == "SWAD"
    several = rank_results([pacs, pacs, pacs])
    assert several is not None
    assert (several.blocks, several.n_blocks) == ("datasets", 3)
    assert rank_results(collect_results([run for run in runs if run.trial == 0])) is None
    assert rank_results([]) is None


def test_the_diagram_joins_methods_without_a_significant_difference() -> None:
    from swad.testbed.results.figures.critical_difference import critical_difference_figure

    rng = np.random.default_rng(1)
    found = rank_scores({n: g + rng.normal(size=20) for n, g in zip(NAMES, (0, 0.1, 3, 6), strict=True)}, "runs")
    figure = critical_difference_figure(found)
    (axes,) = figure.axes
    texts = [text.get_text().split() for text in axes.texts]
    assert sorted(word for text in texts for word in text if word in NAMES) == list(NAMES)
    assert {f"{rank:.2f}" for rank in found.ranks.values()} <= {word for text in texts for word in text}
    bars = [line for line in axes.lines if len(set(line.get_ydata())) == 1]
    joined = {(a, b) for a in NAMES for b in NAMES if a < b and not found.differ(a, b)}
    assert joined
    assert len(bars) == len(joined)  # no three methods are alike here
    for bar in bars:
        assert list(bar.get_xdata()) in [sorted((found.ranks[a], found.ranks[b])) for a, b in joined]


def test_the_diagram_does_not_depend_on_the_order_of_a_set() -> None:
    from swad.testbed.results.figures.critical_difference import critical_difference_figure

    rng = np.random.default_rng(2)
    alike = rank_scores({f"method {n}": rng.normal(size=20) for n in range(9)}, "runs")
    (axes,) = critical_difference_figure(alike).axes
    (bar,) = (line for line in axes.lines if len(set(line.get_ydata())) == 1)
    assert list(bar.get_xdata()) == sorted(alike.ranks.values())


def test_long_labels_stay_inside_of_the_diagram():
    pytest.importorskip("matplotlib")
    from swad.testbed.results.figures.critical_difference import critical_difference_figure

    labels = [f"{name} (DomainBed, selected step)" for name in ("ERM", "EQRM", "CausIRL_CORAL")]
    noise = ([0.8, 0.7, 0.6, 0.5], [0.7, 0.8, 0.5, 0.6], [0.7, 0.7, 0.7, 0.5])
    figure = critical_difference_figure(rank_scores(dict(zip(labels, noise, strict=True)), "runs"))
    figure.canvas.draw()
    (axes,) = figure.axes
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) >= 3
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 for box in boxes)
