"""`swad train`: options generated from the settings of a run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import typer

from helpers.commands import QUICK, swad, swad_without
from swad import cli
from swad.cli import train as command
from swad.testbed.results.runs import load_run
from swad.testbed.training.config import SECTIONS, SETTINGS, ConfigError, RunConfig


def configs(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> list[RunConfig]:
    """The runs that a command line asks for."""
    trained: list[RunConfig] = []
    monkeypatch.setattr("swad.testbed.workers.train_all.train_all", lambda configs, *how: trained.extend(configs))
    monkeypatch.setattr("swad.cli.report.report_trained", lambda *arguments: None)
    typer.main.get_command(cli.app)(["train", *arguments], standalone_mode=False)
    return trained


def test_every_setting_has_an_option():
    parameters = {option.name for option in typer.main.get_command(cli.app).commands["train"].params}
    assert parameters - {"output", "jobs", "processes", "no_resume", "hyperparameters_from"} == set(SETTINGS) - set(
        command.PYTHON_ONLY
    )


def test_without_options_the_settings_have_their_defaults(monkeypatch):
    runs = configs("digits", "--device", "cpu", monkeypatch=monkeypatch)
    assert [config.target for config in runs] == ["board", "clutter", "outline", "paper"]
    assert runs[-1] == RunConfig.from_options(dataset="digits", target="paper", output="runs/digits/erm/paper-0")


OPTIONS: list[tuple[list[str], dict[str, Any]]] = [
    (["--set", "lr=3e-5", "-s", "batch_size=8"], {"hyperparameters": {"lr": 3e-5, "batch_size": 8}}),
    (
        ["-a", "swad:semantics=text,tolerance_ratio=0.2,ema"],
        {"averages": ("swad:semantics=text,tolerance_ratio=0.2", "ema")},
    ),
    (["-a", "swad", "-a", "swa"], {"averages": ("swad", "swa")}),
    (["--snapshots", "20,10"], {"snapshots": (10, 20)}),
    (["--no-freeze-bn"], {"freeze_bn": False}),
    (["--freeze-bn"], {"freeze_bn": True}),
    (["--no-report-live"], {"report_live": False}),
    (["--no-early-stop"], {"early_stop": False}),
    (["--allow-count-mismatch"], {"check_counts": False}),
    (["--data", "there"], {"data_dir": Path("there")}),
    (["--deterministic", "--engine", "eager"], {"deterministic": True, "engine": "eager"}),
    (["--split", "60/20/20", "--schedule", "reference"], {"split": "60/20/20", "schedule": "reference"}),
]


@pytest.mark.parametrize(("arguments", "options"), OPTIONS)
def test_options_set_the_fields_of_the_config(arguments, options, monkeypatch):
    (config,) = configs("digits", "-t", "paper", "--device", "cpu", *arguments, monkeypatch=monkeypatch)
    plain = RunConfig.from_options(dataset="digits", target="paper", output="runs/digits/erm/paper-0")
    assert config == plain.replace(**options)


def test_the_imagenet_recipe_trains_erm_swad_and_swa(monkeypatch):
    def runs(*arguments: str) -> list[tuple[str, tuple[str, ...], bool, str | None]]:
        trained = configs("imagenet", "-d", "there", *arguments, monkeypatch=monkeypatch)
        trunks = [config.branch_from and config.branch_from.name for config in trained]
        kept = [(config.averages, config.report_live) for config in trained]
        return [(c.output.name, *keeps, trunk) for c, keeps, trunk in zip(trained, kept, trunks, strict=True)]

    swad = ("without_opt_overfit:as=swad",)
    assert runs() == [
        ("none-0-decay", ("ema",), True, None),
        ("none-0-constant", swad, False, None),
        ("none-0-cyclic", ("swa",), False, "none-0-constant"),
    ]
    assert runs("--lr-schedule", "constant") == [("none-0", swad, True, None)]
    assert runs("-a", "swa,ema") == [("none-0", ("swa", "ema"), True, None)]


def test_one_run_for_each_target_and_trial(monkeypatch):
    targets = ["-t", "paper,board+clutter", "-t", "paper"]
    runs = configs("digits", *targets, "--trial", "0,2", "--algorithm", "SAM+Coral", monkeypatch=monkeypatch)
    assert [(config.target, config.trial) for config in runs] == [
        ("paper", 0),
        (("board", "clutter"), 0),
        ("paper", 2),
        (("board", "clutter"), 2),
    ]
    assert runs[1].output == Path("runs/digits/coral+sam/board+clutter-0")


def test_no_target(monkeypatch, own_dataset):
    (config,) = configs("digits", "-t", "none", monkeypatch=monkeypatch)
    assert (config.target, config.output) == (None, Path("runs/digits/erm/none-0"))
    # A dataset without domains has no target to hold out.
    options = ["-d", str(own_dataset / "east"), "--network", "test_resnet", "--weights", "random"]
    (config,) = configs("folder", *options, monkeypatch=monkeypatch)
    assert (config.target, config.output) == (None, Path("runs/east/erm/none-0"))
    with pytest.raises(ConfigError, match="coral needs at least 2 source domains, got images: choose an algorithm"):
        configs("folder", *options, "--algorithm", "coral", monkeypatch=monkeypatch)


def test_a_plus_may_be_part_of_a_domain_s_name(monkeypatch, own_dataset, tmp_path):
    shutil.copytree(own_dataset, tmp_path / "places")
    (tmp_path / "places" / "east").rename(tmp_path / "places" / "far+east")
    options = ["-d", str(tmp_path / "places"), "--network", "test_resnet", "--weights", "random"]
    runs = configs("folder", *options, "-t", "far+east,north+south", monkeypatch=monkeypatch)
    assert [config.targets for config in runs] == [("far+east",), ("north", "south")]


def test_one_run_for_each_algorithm(monkeypatch):
    algorithms = ["--algorithm", "erm,CORAL", "--algorithm", "ERM"]
    runs = configs("digits", "-t", "paper", *algorithms, monkeypatch=monkeypatch)
    assert [config.algorithm for config in runs] == ["erm", "coral"]
    assert [config.output.parent.name for config in runs] == ["erm", "coral"]


def test_help_shows_every_section(capsys):
    with pytest.raises(SystemExit):
        typer.main.get_command(cli.app)(["train", "--help"])
    text = capsys.readouterr().out
    for title, _ in SECTIONS.values():
        assert title in text
    assert "Keep training after every requested average is complete." in " ".join(text.replace("│", " ").split())


# --- whole runs ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_train_one_target_with_hyperparameters_and_averages(tmp_path):
    result = swad(
        "train", "digits", "-t", "paper", *QUICK, "-o", tmp_path, "--set", "lr=1e-3", "--set", "batch_size=8",
        "--averages", "swad:semantics=text,tolerance_ratio=0.2,ema", "--snapshots", "20", "--keep-segments",
        fresh=True,
    )  # fmt: skip
    assert "leaked" not in result.stderr  # what Triton would say of its types if they were frozen at exit
    folder = tmp_path / "digits" / "erm" / "paper-0"
    config = load_run(folder).config
    assert config["hyperparameters"]["lr"] == 1e-3
    assert config["hyperparameters"]["batch_size"] == 8
    assert config["averages"] == ["swad:semantics=text,tolerance_ratio=0.2", "ema"]
    assert (folder / "weights" / "step-000020.safetensors").exists()
    assert len(list((folder / "segments").iterdir())) == 4
    assert "step 40/40" in result.stdout
    refused = swad("train", "digits", "-t", "paper", *QUICK, "-o", tmp_path, "--set", "lr=2e-3", code=1)
    assert "lr" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert "--no-resume" in swad("train", "digits", "-t", "paper", *QUICK, "-o", tmp_path, "--no-resume", code=1).stderr


@pytest.mark.slow
def test_a_dataset_in_a_directory_of_ones_own(here, tmp_path, own_dataset):
    options = ["-d", own_dataset, "--network", "test_resnet", "--weights", "random", "--set", "batch_size=2"]
    text = here("train", "folder", *options, "--steps", "4", "--evaluate-every", "2", "-o", tmp_path).stdout
    assert text.splitlines()[-1] == f"wrote {tmp_path / 'report.html'}"
    assert "mine" in text
    assert {path.name for path in (tmp_path / "mine" / "erm").iterdir()} == {"east-0", "north-0", "south-0"}
    pairs = " ".join(here("report", tmp_path, "--select", "lodo").stdout.split())
    assert "Not shown: ERM (best), ERM (last), SWAD on east: lodo needs" in pairs
    assert pairs.count("train the missing pairs with --target TARGET+SOURCE, or use iid.") == 3  # for each target
    assert "Selected runs" not in pairs
    both = here("train", "folder", *options, "--steps", "2", "-o", tmp_path, "-t", "north+south").stdout
    assert "north+south-0: finished" in both


@pytest.mark.slow
def test_training_without_the_report_extra_ends_with_the_table(tmp_path, own_dataset):
    missing = ["matplotlib", "jinja2", "scipy"]
    options = ["-d", own_dataset, "--network", "test_resnet", "--weights", "random", "--set", "batch_size=2"]
    options += ["-t", "east", "--steps", "2", "-o", tmp_path / "runs", "--device", "cpu"]
    result = swad_without(missing, "train", "folder", *options)
    assert "SWAD" in result.stdout
    note = "The page was not written: the report page needs jinja2: pip install 'swad[report]'"
    assert result.stderr.splitlines()[-1] == note
    assert "Traceback" not in result.stderr
    again = swad_without(["jinja2"], "report", tmp_path / "runs", code=1)
    assert "SWAD" in again.stdout
    assert again.stderr.strip() == note
    run = next((tmp_path / "runs").rglob("done.json")).parent
    refused = swad_without(
        missing[:1], "measure", "flatness", run, "--directions", "4", "--radii", "0,1", "--device", "cpu", code=1
    )
    assert refused.stderr.splitlines()[-1] == "error: figures need matplotlib: pip install 'swad[report]'"
    assert not (run / "flatness.jsonl").exists(), "a missing package is reported before anything is measured"


def test_all_targets_are_checked_before_training(here, tmp_path, own_dataset):
    options = ["-d", own_dataset, "--network", "test_resnet", "--weights", "random", "-o", tmp_path / "runs"]
    for wrong, words in (("west", "has no domain 'west'; its domains: east"), ("east+north+south", "must be left")):
        assert words in here("train", "folder", *options, "-t", "east", "-t", wrong, code=1).stderr
        assert not (tmp_path / "runs").exists()


def test_repeated_values_train_once_and_skipped_files_are_reported(here, tmp_path, own_dataset):
    (own_dataset / "east" / "cat" / "x.gif").touch()
    shutil.rmtree(own_dataset / "north" / "dog")
    options = ["-d", own_dataset, "--network", "test_resnet", "--weights", "random", "--set", "batch_size=2"]
    options += ["--steps", "1", "-o", tmp_path, "-t", "east", "-t", "east", "--trial", "0,0", "--cache-size", "64"]
    text = here("train", "folder", *options).stdout
    assert text.count(": finished (") == text.count("finished (1 of 1)") == 1
    assert "ignored 1 file without an image extension, e.g. east/cat/x.gif" in text
    assert text.count("class dog has no images in north; the labels of other classes do not change") == 1
    assert "cache_size: ignored" in text


def test_an_algorithm_with_sam_has_a_directory_of_its_own(here, tmp_path):
    options = ["-t", "paper", "--steps", "4", "--evaluate-every", "2", "-o", tmp_path, "--set", "batch_size=2"]
    text = here("train", "digits", *options, "--algorithm", "SAM+CORAL", "--set", "rho=0.1").stdout
    config = load_run(tmp_path / "digits" / "coral+sam" / "paper-0").config
    assert config["algorithm"] == "coral+sam"
    assert config["hyperparameters"]["rho"] == 0.1
    assert "CORAL + SAM + SWAD" in text
    here("report", tmp_path, "--figures", tmp_path / "figures", "--figure-formats", "svg")
    assert list((tmp_path / "figures").iterdir())
