from pathlib import Path

import pytest

from helpers.run_tree import PACS, write_run
from swad.results.method_results import collect_results, compare_with_erm, paired_difference
from swad.results.records import RECORDS, Record
from swad.results.runs import RunData, find_runs
from swad.results.selection import TargetResult


def result(target: str, trial: int, accuracy: float) -> TargetResult:
    return TargetResult(target, trial, accuracy, RunData(Path(), {}, (), True), 1)


def test_the_interval_is_students_t_over_the_trials_paired_differences() -> None:
    first = [result("a", 0, 0.8), result("b", 0, 0.6), result("a", 1, 0.9), result("b", 1, 0.7)]
    second = [result("a", 0, 0.7), result("b", 0, 0.5), result("a", 1, 0.7), result("b", 1, 0.5), result("a", 2, 0.1)]
    pair = paired_difference(first, second, ["a", "b"])
    assert pair is not None
    assert (pair.first, pair.second, pair.n_trials) == (pytest.approx(0.75), pytest.approx(0.6), 2)
    # The differences are 0.1 and 0.2: their standard error is 0.05, and t with one degree of freedom is 12.706.
    assert pair.half_width == pytest.approx(12.7062 * 0.05, rel=1e-4)
    assert not pair.is_clear
    assert paired_difference(first[:1], second, ["a", "b"]) is None


def runs_with(gains: list[float], targets: tuple[str, ...] = ("a", "b")) -> list[RunData]:
    """Runs in which SWAD is better than ERM by one gain in each trial."""
    runs = []
    for trial, gain in enumerate(gains):
        for target in targets:
            accuracies = {"best": 0.5, "swad": 0.5 + gain}
            records = [Record("r", 9, target, "in", "accuracy", value, name) for name, value in accuracies.items()]
            records += [Record("r", 9, "b" if target == "a" else "a", "out", "accuracy", 0.9, "swad")]
            config = {"dataset": "D", "target": target, "trial": trial}
            runs.append(RunData(Path(f"{target}-{trial}"), config, tuple(records), True))
    return runs


@pytest.mark.parametrize(
    ("gains", "words"),
    [
        ([0.062], "One trial: no interval"),
        ([0.06, -0.04, 0.02], "The trials do not show a difference (95 % interval of the paired difference over 3"),
        (
            [0.060, 0.062, 0.064],
            "SWAD reaches 6.2 points more (95 % interval of the paired difference over 3 trials: +",
        ),
        ([-0.060, -0.062, -0.064], "SWAD reaches 6.2 points less"),
    ],
)
def test_the_headline_claims_only_what_the_interval_shows(gains: list[float], words: str) -> None:
    (results,) = collect_results(runs_with(gains))
    headline = compare_with_erm(results)
    assert headline.startswith("SWAD reaches 5" if gains[0] > 0 else "SWAD reaches 4")
    assert words in headline
    assert ("points more" in headline or "points less" in headline) == (len(gains) > 1 and abs(sum(gains)) > 0.1)


def test_a_target_without_results_is_missing_and_takes_the_headline_away(tmp_path: Path) -> None:
    for target in PACS:
        write_run(tmp_path / target, target=target)
    (complete,) = collect_results(find_runs(tmp_path))
    assert (complete.targets, complete.missing_targets) == (PACS, ())
    (tmp_path / "cartoon" / RECORDS).unlink()
    (results,) = collect_results(find_runs(tmp_path, warn=False))
    assert results.missing_targets == ("cartoon",)
    assert [entry.name for entry in results.skipped] == ["cartoon"]
    assert compare_with_erm(complete)
    assert compare_with_erm(results) == ""
