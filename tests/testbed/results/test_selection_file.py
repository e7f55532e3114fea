"""The selection file: what it holds, a round trip, and bad files, which are refused with all their problems."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.accuracies import selected
from helpers.run_tree import write_run
from swad.testbed.results.records import read_records
from swad.testbed.results.runs import find_runs
from swad.testbed.results.selection import collect_results, select
from swad.testbed.results.selection_file import (
    SelectedRun,
    SelectionFile,
    make_selection,
    read_selection,
    write_selection,
)


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Two learning rates for each of two trials, with weights that only have to exist."""
    for trial in (0, 1):
        for lr in (1e-5, 5e-5):
            folder = tmp_path / "runs" / f"{trial}-{lr}"
            write_run(folder, trial=trial, lr=lr)
            for name in ("best", "swad"):
                (folder / "weights" / f"{name}.safetensors").write_text(f"{name} {trial} {lr}")
    return tmp_path / "runs"


def exported(sweep: Path, method: str = "iid") -> SelectionFile:
    return make_selection(collect_results(find_runs(sweep), method), sweep)


def test_the_file_holds_what_selection_chose(sweep: Path, tmp_path: Path) -> None:
    write_selection(tmp_path / "selection.json", exported(sweep))
    selection = read_selection(tmp_path / "selection.json")
    assert selection == exported(sweep)
    assert {run.average for run in selection.runs} == {"best", "last", "ema", "swa", "swad"}
    for result in selected(find_runs(sweep), "iid", "swad"):
        (run,) = [run for run in selection.runs if run.average == "swad" and run.trial == result.trial]
        assert sweep / run.run == result.run.path
        assert (run.settings["lr"], run.target, run.step) == (result.run.hyperparameters["lr"], "photo", 1500)
        assert run.protocol["steps"] == 1500
        text = f"swad {run.trial} {run.settings['lr']}"
        assert run.weights is not None
        assert (sweep / run.weights).read_text() == text
        assert run.sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert {run.weights for run in selection.runs if run.average == "ema"} == {None}  # this run kept none


def test_the_step_of_the_best_weights_is_theirs_not_that_of_their_evaluation(sweep: Path) -> None:
    runs = {run.path.name: run for run in find_runs(sweep)}
    for entry in exported(sweep).runs:
        if entry.average == "best":
            scores: dict[int, list[float]] = {}
            for record in read_records(runs[entry.run].path):
                if record.metric == "accuracy" and record.average is None and record.domain != "photo":
                    scores.setdefault(record.step, []).append(record.value)
            assert entry.step == max(scores, key=lambda step: (sum(scores[step]), -step)) < 1500


def test_only_an_oracle_writes_the_accuracy_on_the_target(sweep: Path, tmp_path: Path) -> None:
    for method in ("iid", "last", "oracle"):
        write_selection(tmp_path / f"{method}.json", exported(sweep, method))
    assert "target_accuracy" not in (tmp_path / "iid.json").read_text() + (tmp_path / "last.json").read_text()
    accuracies = {run.target_accuracy for run in read_selection(tmp_path / "oracle.json").runs}
    assert None not in accuracies
    assert accuracies == {
        value
        for average in ("best", "last", "ema", "swa", "swad")
        for value in select(find_runs(sweep), "oracle", average).value
    }


def entry(**changes: Any) -> SelectedRun:
    values: dict[str, Any] = {
        "dataset": "PACS",
        "algorithm": "erm",
        "average": "swad",
        "target": "photo",
        "trial": 0,
        "hyperparameters": {"lr": 5e-5, "batch_size": 32},
        "settings": {"clip": None, "averages": ["swad"]},
        "protocol": {"steps": 5000},
        "step": 5000,
        "score": 0.9,
        "run": "runs/photo-0",
        "weights": None,
        "sha256": None,
    }
    return SelectedRun(**{**values, **changes})


names = st.text(st.characters(codec="utf-8", categories=["L", "N", "P"]), min_size=1).filter(str.isprintable)


@settings(max_examples=40)
@given(
    st.lists(
        st.builds(
            entry,
            dataset=names,
            average=st.none() | names,
            target=names,
            trial=st.integers(0, 5),
            hyperparameters=st.dictionaries(names, st.floats(allow_nan=False, allow_infinity=False) | st.integers()),
            score=st.none() | st.floats(0, 1),
            step=st.integers(0, 10**6),
        ),
        unique_by=lambda run: run.key,
        max_size=3,
    )
)
def test_every_selection_survives_the_file(tmp_path_factory: pytest.TempPathFactory, runs: list[SelectedRun]) -> None:
    path = tmp_path_factory.getbasetemp() / "round-trip.json"
    selection = SelectionFile("lodo", tuple(runs))
    write_selection(path, selection)
    assert read_selection(path) == selection


def test_hyperparameters_become_settings_of_a_run() -> None:
    selection = SelectionFile("iid", (entry(), entry(trial=1, hyperparameters={"lr": 1e-5})))
    first = {"hyperparameters": {"lr": 5e-5, "batch_size": 32}, "clip": None}
    assert selection.options("PACS", "erm", "photo") == first
    assert selection.options("PACS", "erm", "photo", trial=1)["hyperparameters"] == {"lr": 1e-5}
    assert selection.options("PACS", "erm", "photo", trial=2) == first  # as the paper repeats the choice of trial 0
    with pytest.raises(ValueError, match="no run of coral on PACS with target photo: it has erm on PACS with target p"):
        selection.options("PACS", "coral", "photo")


def test_weights_are_named_only_where_their_hyperparameters_differ() -> None:
    best = entry(average="best", hyperparameters={"lr": 1e-5})
    both = SelectionFile("iid", (entry(), best))
    assert both.options("PACS", "erm", "photo", average="best")["hyperparameters"] == {"lr": 1e-5}
    for average in (None, "ema"):
        with pytest.raises(ValueError, match="different hyperparameters for swad, best: name one"):
            both.options("PACS", "erm", "photo", average=average)
    alike = SelectionFile("iid", (entry(), entry(average="best")))
    assert alike.options("PACS", "erm", "photo", average="ema")["hyperparameters"]["lr"] == 5e-5


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"trial": -1}, r"`int` >= 0 - at `\$.runs[1].trial`"),
        ({"trial": 2**63}, r".* - at `\$.runs[1].trial`"),
        ({"step": None}, r"Expected `int`, got `null` - at `\$.runs[1].step`"),
        ({"score": 1.5}, r"`float` <= 1.0 - at `\$.runs[1].score`"),
        ({"run": "../../etc"}, r"at `\$.runs[1].run`"),
        ({"run": "a/.."}, r"at `\$.runs[1].run`"),
        ({"weights": "/etc/passwd"}, r"at `\$.runs[1].weights`"),
        ({"sha256": "abc"}, r"at `\$.runs[1].sha256`"),
        ({"sha256": "0" * 64 + "\n"}, r"at `\$.runs[1].sha256`"),
        ({"target": "photo\n"}, r"at `\$.runs[1].target`"),
        ({"target": "photo\x9f"}, r"at `\$.runs[1].target`"),
        ({"target": ""}, r"at `\$.runs[1].target`"),
        ({"hyperparameters": {"lr": [1]}}, r"at `\$.runs[1].hyperparameters[...]`"),
        ({"trial": 1, "target_accuracy": 0.5}, "target_accuracy belongs in files of oracle and oracle_best_step only"),
        ({}, "it selects 2 runs for PACS, erm, swad, photo, 0"),
    ],
)
def test_a_damaged_file_is_one_line_with_the_place(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    path = tmp_path / "selection.json"
    write_selection(path, SelectionFile("iid", (entry(),)))
    content = json.loads(path.read_text())
    content["runs"].append({**content["runs"][0], **changes})
    path.write_text(json.dumps(content))
    pattern = problem.replace("[1]", r"\[1\]").replace("[...]", r"\[\.\.\.\]")
    with pytest.raises(ValueError, match=f"is not a valid selection file .*{pattern}.*: export it again, or") as error:
        read_selection(path)
    assert "\n" not in str(error.value)


def test_what_a_later_version_adds_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "selection.json"
    write_selection(path, SelectionFile("iid", (entry(),)))
    content = json.loads(path.read_text())
    content["runs"][0]["note"] = content["note"] = "new"
    path.write_text(json.dumps(content))
    assert read_selection(path).runs == (entry(),)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "Input data was truncated"),
        ("[]", "Expected `object`, got `array`"),
        ("{}", "required field `format`"),
        ('{"format": "swad-selection", "version": 2}', "its version is 2, but this swad reads version 1: upgrade"),
        ('{"format": "swad-selection", "version": 1, "selection": "best"}', r"'best' - at `\$.selection`"),
        ('{"format": "swad-selection", "version": 1, "selection": "iid"}', "required field `runs`"),
        ("[" * 100_000, "is not a valid selection file"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(ValueError, match=problem):
        read_selection(tmp_path / "file")


def test_a_missing_file_and_nothing_to_write(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="No such file or directory"):
        read_selection(tmp_path / "none")
    with pytest.raises(ValueError, match="got no results"):
        make_selection([], tmp_path)
    write_run(tmp_path / "run")
    with pytest.raises(ValueError, match="iid selected none: the table's notes say why"):
        make_selection(collect_results(find_runs(tmp_path), split="test"), tmp_path)
