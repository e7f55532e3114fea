from dataclasses import replace
from pathlib import Path

import pytest

from helpers.configs import roles
from helpers.run_tree import write_run
from swad.testbed.results.diagnostics import find_problems
from swad.testbed.results.failures import write_failure
from swad.testbed.results.records import Record
from swad.testbed.results.run_data import RunData
from swad.testbed.results.runs import find_runs


def test_runs_with_different_settings_are_named(runs: list[RunData]) -> None:
    config = {**runs[0].config, "network": "vit_tiny_patch16_224", "steps": 7}
    other = replace(runs[0], config=config, roles=roles(config))
    problems = find_problems([*runs[1:], other])
    assert any("differ in network" in text and "vit_tiny_patch16_224 (1 run)" in text for text in problems)
    assert any("differ in steps" in text for text in problems)


def test_methods_that_are_selected_from_more_runs_than_others_are_named(tmp_path: Path) -> None:
    write_run(tmp_path / "a", lr_schedule="constant")
    write_run(tmp_path / "b", lr_schedule="cyclic")
    runs = find_runs(tmp_path)
    assert find_problems(runs) == []  # a search, with the same choice for every method
    rows = runs[1].frame
    fewer = replace(runs[1], records=rows[~rows.weights.isin(["ema", "swad"])])
    (problem,) = find_problems([runs[0], fewer])
    assert "ERM (best), ERM (last), SWA from 2 runs; EMA, SWAD from 1 run. The runs differ in lr_schedule." in problem
    assert find_problems([runs[0], replace(fewer, finished=False)])[1:] == []  # it is unfinished, and nothing else
    other_trial = replace(fewer, config={**fewer.config, "trial": 1, "seed": 1})
    assert find_problems([runs[0], other_trial]) == []  # one run each, and none to choose from


@pytest.mark.parametrize("machine", [{"engine": "graph"}, {"cache": "/fast/disk"}, {"device": "cuda"}])
def test_runs_that_differ_only_in_the_machine_are_repeats(runs: list[RunData], machine: dict[str, object]) -> None:
    config = {**runs[0].config, **machine}
    again = replace(runs[0], config=config, roles=roles(config))
    problems = " ".join(find_problems([runs[0], again]))
    assert "2 runs have the same settings" in problems
    assert "differ in" not in problems


@pytest.mark.parametrize(("last", "diverged"), [(0.39, True), (0.41, False)])
def test_runs_whose_accuracy_falls_by_more_than_half_are_named(
    runs: list[RunData], last: float, diverged: bool
) -> None:
    """The fall of the mean over the sources counts, to the last evaluation; the held-out domain does not."""
    accuracies = [
        Record("r", step, domain, "out", "accuracy", value)
        for domain, values in (
            ("one source", [0.7, 0.9, last + 0.3]),
            ("another", [0.3, 0.7, last - 0.3]),
            (runs[0].target, [0.9, 0.9, 0.0]),
        )
        for step, value in zip([100, 200, 300], values, strict=True)
    ]
    run = replace(runs[0], records=accuracies)
    problems = [text for text in find_problems([run]) if "diverged" in text]
    assert [f"(80.0 to {100 * last:.1f} %)" in text for text in problems] == [True] * diverged


def test_records_that_two_processes_wrote_are_named(tmp_path: Path) -> None:
    """They count as finished, and their curves have two values at a step."""
    write_run(tmp_path / "a")
    records = tmp_path / "a" / "records.jsonl"
    lines = records.read_bytes().splitlines(keepends=True)
    assert find_problems(find_runs(tmp_path)) == []
    records.write_bytes(b"".join(lines[:20] + lines[:3] + lines[20:]))
    (problem,) = find_problems(find_runs(tmp_path))
    assert problem.endswith(
        "recorded 3 values twice, as two processes that train it at once do: remove it and train it again."
    )


def test_a_run_that_failed_is_named_with_its_error(tmp_path: Path) -> None:
    write_run(tmp_path / "a", target="photo", finished=False)
    write_failure(tmp_path / "a", "out of memory on cuda")
    (problem,) = find_problems(find_runs(tmp_path))
    assert problem.endswith("target photo, trial 0 failed after step 500 of 1500: out of memory on cuda.")


def test_every_problem_is_named(runs: list[RunData], faulty: list[RunData]) -> None:
    assert find_problems(runs) == []
    problems = "\n".join(find_problems(faulty))
    assert "target photo, trial 0 is unfinished: it has reached step 500 of 1500." in problems
    assert "target sketch, trial 0: the validation loss never converged for swad" in problems
    assert "target cartoon, trial 0: 2 runs have the same settings" in problems
