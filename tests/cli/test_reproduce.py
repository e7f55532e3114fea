import re
import subprocess
from collections.abc import Callable

import pytest

pytest.importorskip("matplotlib")

from swad.testbed.paper.items import ITEMS
from swad.testbed.paper.paper_config import make_config
from swad.testbed.paper.reproduce import cost_of
from swad.testbed.results.failures import write_failure
from swad.testbed.sweep.directory import SweepDir

Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.slow
def test_an_item_is_trained_once_and_built(here: Call, tmp_path, monkeypatch):
    options = ["--scale", "smoke", "-o", tmp_path, "--figure-formats", "svg", "--device", "cpu"]
    result = here("reproduce", "figure5", *options)
    assert "runs: 1 in total, 0 finished, 1 to train" in result.stdout
    assert f"index: {tmp_path / 'index.md'}" in result.stdout
    drawn = (tmp_path / "figure5" / "figure5.svg").read_text()
    assert "Validation accuracy, %" in drawn
    assert "Validation loss" in drawn

    monkeypatch.setattr("swad.testbed.sweep.run.run_sweep", lambda *_: pytest.fail("nothing is missing"))
    result = here("reproduce", "figure4", "figure5", "table7", *options)
    assert "runs: 1 in total, 1 finished, 0 to train" in result.stdout
    assert "target: board" in (tmp_path / "figure4" / "figure4.svg").read_text()
    assert "Loss surfaces on digits" in (tmp_path / "figure4" / "report.html").read_text()
    index = (tmp_path / "index.md").read_text()
    assert "![figure4](figure4/figure4.svg)" in index
    assert "[table7.tex](table7/table7.tex)" in index


@pytest.mark.slow
def test_failed_runs_are_listed_and_the_rest_is_built(here: Call, tmp_path):
    config = make_config(scale="smoke", output=tmp_path)
    cyclic = [run.config for run in cost_of([ITEMS["table5"]], config).plan.runs if run.config.lr_schedule == "cyclic"]
    write_failure(cyclic[0].output, "RuntimeError: CUDA out of memory", ["the last line"])
    result = here("reproduce", "table5", "--scale", "smoke", "-o", tmp_path, "--device", "cpu", "--jobs", "1")
    assert "RuntimeError: CUDA out of memory" in result.stdout
    assert "1 of 2 runs failed; add --retry-failed to retry" in result.stdout
    text = (tmp_path / "table5" / "table5.txt").read_text()
    assert "No finished run of ours: SWA w/ cyclic." in text
    assert "SWAD fit-on-val " in text


def test_items_are_listed_with_their_cost(here: Call, tmp_path):
    result = here("reproduce", "--scale", "smoke", "--trial", "1", "-o", tmp_path / "none")
    for line in ("table13 ", "figure4 ", "ranking "):
        assert line in result.stdout
    assert "Scale smoke, protocol defaults, 1 trial, datasets digits" in result.stdout
    assert not (tmp_path / "none").exists()


def test_a_dry_run_states_the_cost_and_writes_nothing(here: Call, tmp_path):
    result = here("reproduce", "table4", "--scale", "small", "--dry-run", "-o", tmp_path / "none", "--jobs", "2")
    assert "scale small, protocol defaults, datasets digits; not found: DomainNet, OfficeHome" in result.stdout
    assert "runs: 24 in total, 0 finished, 24 to train" in result.stdout  # ERM, CORAL, SAM; 4 targets; 2 trials
    assert re.search(r"cost: about .* of training, .* with 2 at a time; about [0-9.]+ MB on disk", result.stdout)
    assert not (tmp_path / "none").exists()


def test_a_dataset_without_images_is_named(here: Call, tmp_path):
    for domain in ("art_painting", "cartoon", "photo", "sketch"):
        (tmp_path / "data" / "PACS" / domain).mkdir(parents=True)
    result = here("reproduce", "table5", "--data", tmp_path / "data", "--dry-run", "-o", tmp_path / "none", code=1)
    assert "scale full, protocol printed, datasets PACS; not found: VLCS" in result.stdout
    assert "runs: 24 in total" in result.stdout  # constant and cyclic learning rate; 4 targets; 3 trials
    assert "folder art_painting contains no <class>/<image>" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reproduce", "figure9"], "the paper has no item figure9: did you mean 'figure"),
        (["reproduce", "figure3", "--dataset", "pacs"], "needs its directory"),
        (["reproduce", "figure3", "--trial=0,-1"], "trial must be a whole number of at least 0, got -1"),
        (["reproduce", "figure3", "--jobs", "0"], "--jobs must be 1 or more"),
        (["reproduce", "figure3", "--scale", "smoke", "--radii=-1"], "radii must be different numbers of 0 or more"),
        (
            ["reproduce", "figure2", "--trial", "1"],
            "figure2 cannot be made: only runs of trial 0 keep snapshots; add 0 to the trials (--trial)",
        ),
        (["reproduce", "table2", "--scale", "full"], "give the directory that contains them as data (--data), or use"),
        (["reproduce", "table2", "--data", "."], "(PACS, VLCS, OfficeHome, TerraIncognita, DomainNet), but . has none"),
        (["reproduce", "table6", "--runs", "nowhere"], "nowhere is not a directory"),
        (["reproduce", "table2", "-t", "papper"], "there is no domain 'papper': did you mean 'paper'?"),
    ],
)
def test_wrong_inputs_get_one_line(here: Call, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    result = here(*arguments, code=1)
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.iterdir())


def test_all_wrong_inputs_are_listed_together(here: Call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["--scale", "tiny", "--trial", "a", "--figure-formats", "gif", "--launcher", "slrum"]
    problems = here("reproduce", "tabel3", *options, code=1).stderr
    for words in ("no item tabel3", "got 'tiny'", "--trial takes", "got 'gif'", "got 'slrum'"):
        assert problems.count(words) == 1
    assert problems.count("\n") == 6  # "error:", then one line each


def test_every_machine_finds_its_own_device(here: Call, tmp_path):
    (run,) = cost_of([ITEMS["figure5"]], make_config(scale="smoke", output=tmp_path)).plan.runs
    write_failure(run.config.output, "lost")  # so that nothing is trained here
    assert (
        "no run on digits is finished"
        in here("reproduce", "figure5", "--scale", "smoke", "-o", tmp_path, code=1).stderr
    )
    assert [spec.options["device"] for spec in SweepDir(tmp_path).specs] == ["auto"]


def test_the_cost_of_runs_on_an_own_folder_is_estimated(here: Call, own_dataset, tmp_path):
    options = ["--network", "test_resnet", "--weights", "random", "--steps", "2", "-o", tmp_path / "none"]
    result = here("reproduce", "figure5", "--dataset", "folder", "-d", own_dataset, *options, "--dry-run")
    assert re.search(r"cost: about .*; about [1-9][0-9.]* MB on disk", result.stdout)
