"""Runs take their hyperparameters from a selection file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from swad.experiments.selected_settings import use_selection
from swad.results.selection_file import SelectedRun, SelectionFile
from swad.training.config import ConfigError, RunConfig


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
    assert run.training.hyperparameters == {"lr": 1.0, "dropout": 0.1}
    assert (run.training.clip, run.evaluation.averages, run.training.steps, run.data.trial) == (2.0, ("swa",), None, 2)
    (run,) = use_selection([config(clip=9.0)], selection)
    assert run.training.clip == 9.0


def test_the_first_average_decides_where_the_choice_differs() -> None:
    best = selected(average="best", hyperparameters={"lr": 0.25})
    selection = SelectionFile("iid", (best, selected()))
    assert use_selection([config()], selection)[0].training.hyperparameters["lr"] == 0.5


def test_an_own_folder_is_found_by_its_name() -> None:
    entry = SelectedRun("mine", "erm", "swad", "a", 0, {"lr": 0.5}, {}, {}, 1, None, "run", None, None)
    (run,) = use_selection(
        [config(dataset="folder", data_dir="/data/mine", target="a")], SelectionFile("iid", (entry,))
    )
    assert run.training.hyperparameters == {"lr": 0.5}


def test_everything_that_is_missing_is_listed_at_once() -> None:
    selection = SelectionFile("iid", (selected(), selected("board", settings={"speed": 1})))
    configs = [config(), config(target="clutter"), config(target="board"), config(algorithm="coral")]
    with pytest.raises(ConfigError) as caught:
        use_selection(configs, selection)
    first, second, third = caught.value.problems
    assert first.startswith("the selection has no run of erm on digits with target clutter: it has erm on digits")
    assert second == "the selection sets speed, which is no hyperparameter of this version of swad"
    assert "no run of coral on digits with target paper" in third
