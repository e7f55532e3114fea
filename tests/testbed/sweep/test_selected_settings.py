"""Runs and sweeps take their hyperparameters from a selection file."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest

from swad.testbed.results.selection_file import SelectedRun, SelectionFile, write_selection
from swad.testbed.sweep.checks import find_problems
from swad.testbed.sweep.plan import expand
from swad.testbed.sweep.selected_settings import read_selected, use_selection
from swad.testbed.sweep.spec import SweepSpec
from swad.testbed.training.config import ConfigError, RunConfig


def selected(target: str = "paper", average: str = "swad", **changes: Any) -> SelectedRun:
    values: dict[str, Any] = {
        "hyperparameters": {"lr": 0.5, "dropout": 0.1},
        "settings": {"clip": 2.0, "lr_schedule": "constant", "averages": ["ema"]},
    }
    protocol, step, score, run = {"steps": 5}, 5, 0.5, "run"
    values = {**values, "protocol": protocol, "step": step, "score": score, "run": run, "weights": None, **changes}
    return SelectedRun("digits", "erm", average, target, 0, sha256=None, **values)


def config(**options: Any) -> RunConfig:
    return RunConfig.from_options(**{"dataset": "Digits", "target": "paper", "output": Path("runs"), **options})


def test_a_run_takes_hyperparameters_but_keeps_its_own() -> None:
    selection = SelectionFile("iid", (selected(),))
    (run,) = use_selection([config(trial=2, averages=("swa",), hyperparameters={"lr": 1.0})], selection)
    assert run.hyperparameters == {"lr": 1.0, "dropout": 0.1}
    assert (run.clip, run.averages, run.steps, run.trial) == (2.0, ("swa",), None, 2)
    (run,) = use_selection([config(clip=9.0)], selection)
    assert run.clip == 9.0


def test_the_first_average_decides_where_the_choice_differs() -> None:
    best = selected(average="best", hyperparameters={"lr": 0.25})
    selection = SelectionFile("iid", (best, selected()))
    assert use_selection([config()], selection)[0].hyperparameters["lr"] == 0.5


@pytest.mark.parametrize(("dataset", "name"), [("folder", "mine"), ("imagenet", "ImageNet")])
def test_only_an_own_folder_is_found_by_the_name_of_its_directory(dataset: str, name: str) -> None:
    entry = SelectedRun(name, "erm", "swad", "a", 0, {"lr": 0.5}, {}, {}, 1, None, "run", None, None)
    (run,) = use_selection([config(dataset=dataset, data_dir="/data/mine", target="a")], SelectionFile("iid", (entry,)))
    assert run.hyperparameters == {"lr": 0.5}


def test_everything_that_is_missing_is_listed_at_once() -> None:
    selection = SelectionFile("iid", (selected(), selected("board", settings={"speed": 1})))
    configs = [config(), config(target="clutter"), config(target="board"), config(algorithm="coral")]
    with pytest.raises(ConfigError) as caught:
        use_selection(configs, selection)
    first, second, third = caught.value.problems
    assert first.startswith("the selection has no run of erm on digits with target clutter: it has erm on digits")
    assert second == "the selection sets speed, which this version of swad does not have"
    assert "no run of coral on digits with target paper" in third


# -- sweeps --------------------------------------------------------------------------------------------------------


def entry(target, trial, lr, average="swad", **settings):
    return SelectedRun(
        "digits", "erm", average, target, trial, {"lr": lr}, settings, {}, 10, 0.9, f"{target}-{trial}", None, None
    )


@pytest.fixture
def path(tmp_path):
    runs = [entry("paper", 0, 0.1), entry("paper", 1, 0.2, clip=2.0), entry("board", 0, 0.3)]
    runs.append(entry("board", 0, 0.4, "ema"))
    write_selection(tmp_path / "selection.json", SelectionFile("iid", tuple(runs)))
    return tmp_path / "selection.json"


SPEC = SweepSpec(targets=("paper", "board"), averages=("swad", "ema"))


def planned(spec):
    return {
        (run.config.target, run.config.trial): (
            run.config.hyperparameters["lr"],
            run.config.clip,
        )
        for run in expand(spec, "sweep").runs
    }


def test_selected_hyperparameters_replace_a_search(path):
    spec = dataclasses.replace(SPEC, selected=read_selected(path, SPEC))
    assert find_problems(spec) == []
    # Trials that the file lacks use its first trial; the first average decides where the selection differs.
    assert planned(spec) == {
        ("paper", 0): (0.1, None),
        ("paper", 1): (0.2, 2.0),
        ("paper", 2): (0.1, None),
        **{("board", trial): (0.3, None) for trial in range(3)},
    }
    other = dataclasses.replace(SPEC, averages=("ema", "swad"))
    assert planned(dataclasses.replace(other, selected=read_selected(path, other)))["board", 0] == (0.4, None)
    again = SweepSpec.from_json(spec.to_json(), "sweep.json")
    assert [run.key for run in expand(again, "sweep").runs] == [run.key for run in expand(spec, "sweep").runs]


def test_the_selection_of_a_sweep_is_found_by_the_name_in_results(tmp_path):
    run = msgspec.structs.replace(entry("none", 0, 0.7), dataset="ImageNet")
    write_selection(tmp_path / "selection.json", SelectionFile("iid", (run,)))
    spec = SweepSpec(datasets=("imagenet",), data=tmp_path / "ilsvrc", domains={"imagenet": ("train",)}, trials=(0,))
    spec = dataclasses.replace(spec, selected=read_selected(tmp_path / "selection.json", spec))
    assert [run.config.hyperparameters for run in expand(spec, tmp_path).runs] == [{"lr": 0.7}]


def test_missing_runs_are_listed_together(path):
    with pytest.raises(ConfigError) as error:
        read_selected(path, SweepSpec(algorithms=("erm", "coral")))
    assert len(error.value.problems) == 2 + 4
    assert "no run of erm on digits with target clutter" in error.value.problems[0]


def test_stated_settings_win_and_stated_hyperparameters_are_a_contradiction(path):
    spec = dataclasses.replace(SPEC, selected=read_selected(path, SPEC), options={"clip": 5.0})
    assert find_problems(spec) == []
    assert {clip for _, clip in planned(spec).values()} == {5.0}
    spec = dataclasses.replace(spec, options={**spec.options, "hyperparameters": {"lr": 0.7, "dropout": 0.1}})
    assert find_problems(spec) == [
        "lr cannot be both set and imported: leave it out, or change the selection file",
    ]


def test_a_search_besides_is_a_contradiction(path):
    spec = dataclasses.replace(SPEC, selected=read_selected(path, SPEC), protocol="random")
    assert find_problems(spec) == [
        "hyperparameters that were selected before replace a search, got the protocol random too: use one of them"
    ]
