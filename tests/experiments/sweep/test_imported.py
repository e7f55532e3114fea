from __future__ import annotations

import dataclasses

import pytest

from swad.experiments.sweep.checks import find_problems
from swad.experiments.sweep.imported import read_selected
from swad.experiments.sweep.plan import expand
from swad.experiments.sweep.spec import SweepSpec
from swad.results.selection_file import SelectedRun, SelectionFile, write_selection
from swad.training.config import ConfigError


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
        (run.config.data.target, run.config.data.trial): (
            run.config.training.hyperparameters["lr"],
            run.config.training.clip,
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
