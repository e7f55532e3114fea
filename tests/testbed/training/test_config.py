"""The settings of a run: built from flat names, checked, stored and compared."""

from __future__ import annotations

import dataclasses
import inspect
import json
import pydoc
from pathlib import Path

import numpy as np
import pytest

from helpers.runs import short
from swad.testbed.data.domains import Dataset, FileDomain
from swad.testbed.training.config import SECTIONS, SETTINGS, ConfigError, ResolvedConfig, RunConfig
from swad.testbed.training.loop import train
from swad.testbed.training.resolve import resolve
from swad.util.images import DataError
from swad.util.names import is_name


def test_a_setting_is_an_attribute_and_an_option(tmp_path):
    config = RunConfig.from_options(dataset="digits", target="paper", output=tmp_path, steps=10, workers=0)
    assert config.steps == 10
    assert config.workers == 0
    assert config.replace(steps=20).steps == 20
    assert config.replace(steps=20).workers == 0
    assert config.options()["steps"] == 10


def test_unknown_and_missing_names_are_refused_together(tmp_path):
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_options(dataset="digits", target="paper", output=tmp_path, step=10, averge=("swad",))
    assert caught.value.problems == (
        "there is no setting 'step': did you mean 'steps'?",
        "there is no setting 'averge': did you mean 'averages'?",
    )
    with pytest.raises(ConfigError, match="target is required"):
        RunConfig.from_options(dataset="digits", output=tmp_path)
    with pytest.raises(ConfigError, match="output is required"):
        train({"dataset": "digits", "target": "paper"})


def test_every_field_has_a_help_text_and_a_role():
    for setting in SETTINGS.values():
        assert setting.help.endswith((".", "?")), setting.name
        assert setting.role in ("identity", "hyperparameter", "protocol", "machine", "output")
    assert list(SETTINGS) == [field.name for field in dataclasses.fields(RunConfig) if field.name != "output"]
    assert {setting.section for setting in SETTINGS.values()} == SECTIONS.keys()


def test_help_shows_every_field_with_type_default_and_help_text():
    def shown(documented):
        return " ".join(inspect.getdoc(documented).split())

    for setting in SETTINGS.values():
        assert f"{setting.name} (" in shown(RunConfig)
        assert f"): {' '.join(setting.help.split())}" in shown(RunConfig)
    assert "steps (int | None = None): Optimizer steps." in shown(RunConfig)
    assert "dataset (str, required): Dataset" in shown(RunConfig)
    assert "input_pipeline (Literal['torchvision', 'gpu'] | None = None):" in shown(RunConfig)
    assert "data_dir (Path | None = None):" in shown(RunConfig)
    assert "output (Path, required):" in shown(RunConfig)
    assert "log (tuple[str, ...] = ()):" in pydoc.render_doc(RunConfig)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"steps": 0}, "steps must be a whole number of at least 1, got 0"),
        ({"trial": True}, "trial must be a whole number of at least 0, got True"),
        ({"engine": "fast"}, "engine must be one of auto, eager, graph, compile, got 'fast'"),
        ({"freeze_bn": "no"}, "freeze_bn must be True or False, got 'no'"),
        ({"clip": -1.0}, "clip must be a number above 0, got -1.0"),
        ({"clip": "x"}, "clip must be a number above 0, got 'x'"),
        ({"report_live": False, "averages": ()}, "a run without report_live needs at least one average"),
        ({"dataset_options": {"domains": {"a"}}}, "dataset_options are stored as JSON, which takes numbers, texts"),
    ],
)
def test_a_value_that_violates_its_declaration_is_a_problem(options, problem, tmp_path):
    (found,) = short(tmp_path, **options).problems()
    assert found.startswith(problem)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"averages": None}, "averages must be a list, each a text, got None"),
        ({"averages": [1]}, "averages must be a list, each a text, got [1]"),
        ({"target": 3}, "target must be a text or a list, each a text, got 3"),
        ({"snapshots": 5}, "snapshots must be a list, each a whole number, got 5"),
        ({"image_mean": 0.5}, "image_mean must be a list, each a number, got 0.5"),
        ({"image_std": (0.5, "x")}, "image_std must be a list, each a number, got (0.5, 'x')"),
        ({"hyperparameters": "lr=3"}, "hyperparameters must be a dictionary, got 'lr=3'"),
        ({"data_dir": 3}, "data_dir must be a path, got 3"),
        ({"dataset": None}, "dataset must be a text, got None"),
        ({"output": None}, "output must be a path, got None"),
    ],
)
def test_a_value_of_another_type_is_a_problem(options, problem, tmp_path):
    with pytest.raises(ConfigError) as caught:
        train({"dataset": "digits", "target": "paper", "output": tmp_path, **options})
    assert caught.value.problems == (problem,)


def test_only_a_config_or_a_dictionary_is_trained(tmp_path):
    with pytest.raises(ConfigError, match="the settings of a run are a RunConfig or a dictionary, got 'runs/paper-0'"):
        train("runs/paper-0")


def test_json_round_trip(tmp_path):
    config = resolve(short(tmp_path, target=("paper", "board"), snapshots=(4, 2)))
    back = ResolvedConfig.from_json(json.loads(json.dumps(config.to_json())), tmp_path)
    assert back == config
    assert resolve(back) == config


def test_a_config_file_of_another_version_is_refused(tmp_path):
    newer = resolve(short(tmp_path)).to_json()
    newer["config"]["data"]["from_the_future"] = 1
    for content in ({"dataset": "digits"}, newer):
        with pytest.raises(ConfigError, match="was written by another version of swad: train the run again"):
            ResolvedConfig.from_json(content, tmp_path)


def test_a_resumed_run_may_change_the_machine_and_nothing_that_alters_results(tmp_path):
    config = resolve(short(tmp_path))
    free = {"workers", "device", "engine", "cache", "checkpoint_every", "branch_from", "log", "data_dir", "predictions"}
    assert {name for name, setting in SETTINGS.items() if setting.free_on_resume} == free
    assert not config.replace(engine="eager", workers=3, cache=tmp_path).differences(config.to_json())
    assert config.replace(threads=2, seed=5, hyperparameters={"lr": 1.0}).differences(config.to_json()) == [
        "batch_size was 8, now None",
        "dropout was 0.0, now None",
        "lr was 0.08, now 1.0",
        "weight_decay was 0.0, now None",
        f"seed was {config.seed}, now 5",
        "threads was 1, now 2",
    ]


def test_runs_of_earlier_versions_can_still_be_read(tmp_path):
    content = RunConfig.from_options(dataset="digits", target="paper", output=tmp_path).to_json()
    content["config"]["files"]["tensorboard"] = True
    content["config"]["machine"]["strategy"] = "ddp"
    assert ResolvedConfig.from_json(content, tmp_path).log == ()
    content["config"]["machine"]["strategy"] = "fsdp"
    with pytest.raises(ConfigError, match=r"was trained with strategy fsdp, .* use DDP: train it again in another"):
        ResolvedConfig.from_json(content, tmp_path)


@pytest.mark.parametrize("name", ["da\nta", "da\rta", "\x1b[31mdata", "da\udcffta", "\x9b2J", "da\x00ta", "\x7f"])
def test_what_a_report_would_refuse_is_refused_before_the_first_step(name: str) -> None:
    """One rule for names: that of `swad report`, which reads them from `config.json` later."""
    assert not is_name(name)
    run = {"dataset": "folder", "output": "run", "data_dir": "/data/mine"}
    target = RunConfig.from_options(**run, target=name)
    folder = RunConfig.from_options(**{**run, "data_dir": f"/data/{name}"}, target="art")
    for config in (target, folder, RunConfig.from_options(**run, target=("art", name))):
        problems = config.problems()
        assert problems
        assert all(repr(name)[1:-1] in problem and is_name(problem) for problem in problems)
    labels = np.zeros(1, np.int64)
    for names in ((name, "art"), ("mine", name)):
        domains = (FileDomain(names[1], labels, Path("/data"), ("x.png",)),)
        with pytest.raises(DataError, match="must be a name without control characters") as refused:
            Dataset(names[0], domains, ("cat",))
        assert is_name(str(refused.value)), "one line"


@pytest.mark.parametrize("path", ["/data\udcff/mine", "/\ud800"])
@pytest.mark.parametrize("setting", ["data_dir", "weights", "branch_from", "cache"])
def test_a_path_that_config_json_cannot_hold_is_refused(setting: str, path: str) -> None:
    config = RunConfig.from_options(dataset="digits", target="paper", output="run", **{setting: path})
    (problem,) = config.problems()
    assert problem.startswith(f"{setting} must be in UTF-8, got ")
    problem.encode()


@pytest.mark.parametrize("target", ["../../x", "/etc", "a/../../b", ".."])
def test_a_target_outside_of_its_folder_is_refused(target: str) -> None:
    config = RunConfig.from_options(dataset="folder", target=target, output="run", data_dir="/data")
    assert any("not outside of its folder" in problem for problem in config.problems())
