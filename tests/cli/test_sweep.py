from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from helpers.commands import SWAD, environment
from helpers.fake_train import fake_train
from swad import cli
from swad.cli import _options as parse
from swad.cli import _sweep
from swad.cli import sweep as command
from swad.cli._launch import parse_launcher_options
from swad.cli._problems import Problems
from swad.testbed.results.failures import write_failure
from swad.testbed.sweep.directory import SweepDir
from swad.testbed.sweep.plan import expand
from swad.testbed.sweep.spec import OWN_OPTIONS, SweepSpec
from swad.testbed.training.config import SETTINGS, ConfigError
from swad.testbed.workers.work import State

SMALL = ["--target", "paper", "--steps", "8", "--evaluate-every", "4", "--averages", "swad,ema", "--jobs", "1"]
SMALL += ["--set", "batch_size=8"]


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path, monkeypatch, quick_workers):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "150")


def sweep(*arguments: str, code: int = 0) -> str:
    """Run `swad sweep run` in this process, which has imported torch already, and return what it prints."""
    result = CliRunner().invoke(cli.app, ["sweep", *["run"][: arguments[0] not in ("status", "work")], *arguments])
    if result.exit_code != code:
        raise result.exception or AssertionError(result.output)
    return result.stdout


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


@pytest.mark.slow
def test_a_sweep_trains_fails_retries_and_extends(tmp_path):
    options = {"steps": 8, "evaluate_every": 4, "hyperparameters": {"batch_size": 8}}
    spec = SweepSpec(
        targets=("paper",),
        trials=(0,),
        averages=("swad", "ema"),
        protocol="grid",
        grid={"lr": (1e-3, 1e-2)},
        options=options,
    )
    folder = SweepDir("s")
    damaged, whole = folder.plan([spec]).runs
    checkpoint = damaged.config.output / "checkpoint" / "state.pt"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_text("damaged")
    request = [*SMALL, "--trial", "0", "--grid", "lr=1e-3,1e-2", "-o", "s"]

    printed = sweep(*request, code=1)
    assert "SWAD" in printed  # the table of the other run
    assert "extending" not in printed
    assert f"digits/erm/paper-0/{damaged.key}: cannot read" in printed
    assert "1 of 2 runs failed; retry with: swad sweep run --output s --retry-failed" in printed
    assert (folder.state(whole), folder.state(damaged)) == (State.DONE, State.FAILED)
    header, row, *failures = sweep("status", "s").splitlines()
    assert header.split()[:6] == ["dataset", "algorithm", "done", "running", "failed", "pending"]
    assert row.split()[:7] == ["digits", "erm", "1", "0", "1", "0", "2"]
    assert "state.pt" in failures[0]
    before = {path: path.stat().st_mtime_ns for path in files(whole.config.output) if path.is_file()}

    # With other options the sweep is extended; failed runs are trained again on request only.
    checkpoint.unlink()
    printed = sweep(*SMALL, "--trial", "0,1", "--grid", "lr=1e-2", "-o", "s", "--retry-failed")
    assert printed.startswith("extending the sweep in s, which has 2 runs, by 1\n")
    assert "3 of 3 runs finished" in printed
    assert f"wrote {Path('s') / 'report.html'}" in printed
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert [one.trials for one in folder.specs] == [(0,), (0, 1)]
    assert sweep("status", "s").splitlines()[1].split()[2:7] == ["3", "0", "0", "0", "3"]


def test_the_plan_of_the_paper_is_440_runs_and_a_dry_run_writes_nothing(tmp_path):
    printed = sweep("--protocol", "paper", "--algorithm", "ERM", "--dry-run")
    assert printed.startswith("440 runs (396 to search + 44 to repeat the choice)")
    assert "108 + 12" in printed
    assert "not found: PACS, VLCS, OfficeHome, TerraIncognita, DomainNet" in printed
    assert files(tmp_path) == []


def test_a_dry_run_counts_the_cost_of_unfinished_runs():
    directory = SweepDir("s")
    directory.add(SweepSpec(datasets=("PACS",), targets=("photo",), averages=("ema",), trials=(0, 1)))
    request = ["--dataset", "PACS", "--target", "photo", "--averages", "ema", "--trial", "0,1", "-o", "s", "--dry-run"]
    first, second = directory.plan().runs
    fake_train(lambda config: 0.5)(first.config)
    printed = sweep(*request)
    assert printed.startswith("2 runs, 1 of them done")
    assert "the other runs" in printed
    fake_train(lambda config: 0.5)(second.config)
    assert "Nothing is left to train." in sweep(*request)


@pytest.mark.slow
def test_a_dry_run_measures_what_is_at_hand(tmp_path):
    arguments = ["--algorithm", "erm,coral", "--trial", "0,1", "--dataset", "digits,RotatedMNIST,PACS"]
    printed = sweep(*arguments, "--dry-run", "-o", "s", "--jobs", "3", "--processes", "2")
    rows = {
        tuple(line.split()[:2]): line for line in printed.splitlines() if line.startswith(("digits", "Rot", "PACS"))
    }
    assert " s " in rows["digits", "erm"]
    assert rows["RotatedMNIST", "coral"].split()[2:4] == ["?", "?"]
    assert "?" in rows["PACS", "erm"]
    assert "of training in one process, at best" in printed
    assert "with 3 at a time in 2 processes each" in printed
    assert files(tmp_path) == []


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_runs_that_need_fewer_processes_are_refused(tmp_path, options):
    with pytest.raises(ConfigError) as error:
        sweep("--grid", "batch_size=9,8", "--keep-segments", "--processes", "2", "-o", "s", *options)
    assert list(error.value.problems) == [
        "keep_segments needs a single process, got 2: turn it off or use one",
        "batch_size must be a multiple of the 2 processes, got 9: change one of them",
    ]
    assert files(tmp_path) == []


def test_all_problems_are_listed_at_once(tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text('algoritms = ["erm"]\n[options]\nstepz = 3\n')
    bad = ["--algorithm", "corral", "--dataset", "digits,PACS", "--draws", "3", "--grid", "lr", "--trial", "x"]
    bad += ["--launcher", "slrum", "--jobs", "0", "--set", "lr"]
    with pytest.raises(ConfigError) as error:
        sweep(str(plan), *bad, "-o", "s", code=0)
    for words in (
        "there is no key 'algoritms': did you mean 'algorithm'?",
        "there is no setting 'stepz': did you mean 'steps'?",
        "there is no algorithm 'corral': did you mean 'coral'?",
        "draws is for the protocols domainbed and random",
        "--grid takes NAME=VALUE, got 'lr'",
        "got 'x'",
        "got 'slrum': did you mean 'slurm'?",
        "--jobs must be 1 or more, got 0",
        "--set takes NAME=VALUE, got 'lr'",
        "dataset PACS needs its directory",
    ):
        assert words in str(error.value)
    assert files(tmp_path) == [plan]


def test_a_plan_file_and_options_that_win(tmp_path):
    plan = 'algorithm = ["erm", "coral"]\ntarget = ["paper"]\nprotocol = "random"\ndraws = 4\n'
    (tmp_path / "plan.toml").write_text(plan)
    options = ["--draws", "2", "--protocol", "domainbed", "--select", "iid", "--dataset", "PACS,DomainNet"]
    printed = sweep("plan.toml", *options, "--target", "sketch", "--dry-run")
    assert printed.startswith("24 runs")  # 2 draws, 3 trials, 2 algorithms, 2 datasets


@pytest.mark.slow
def test_ctrl_c_saves_checkpoints_and_the_same_command_resumes(tmp_path):
    arguments = [
        "sweep",
        "run",
        *SMALL[:2],
        "--trial",
        "0,1",
        "--steps",
        "4000",
        "--evaluate-every",
        "20",
        "--averages",
        "ema",
    ]
    arguments += ["--set", "batch_size=8", "-o", "s", "--jobs", "1"]
    process = subprocess.Popen([*SWAD, *arguments], env=environment(), text=True, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline and not any(path.stat().st_size for path in Path("s").rglob("records.jsonl")):
        time.sleep(0.1)
    assert sweep("status", "s").splitlines()[1].split()[2:6] == ["0", "1", "0", "1"]
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=100)
    assert process.returncode == 130, error
    assert "Interrupted: 0 of 2 runs are finished. Run the same command again to resume." in error
    assert len(list(Path("s").rglob("state.pt"))) == 1
    assert sweep("status", "s").splitlines()[1].split()[2:6] == ["0", "0", "0", "2"]


def test_a_misspelled_command_gets_a_suggestion_and_options_do_not():
    for words, hint in (
        (["stauts", "s"], "did you mean 'status'?"),
        (["plan.toml"], "swad sweep run plan.toml ... trains a sweep"),
        (["--algorithm", "erm"], "swad sweep run --algorithm ... trains a sweep"),
    ):
        result = CliRunner().invoke(cli.app, ["sweep", *words])
        assert result.exit_code == 2
        assert hint in result.output
    assert sweep("--target", "photo", "--dataset", "PACS", "--trial", "0", "--dry-run").startswith("1 run\n")


@pytest.mark.parametrize("options", [(), ("--retry-failed",), ("--data", "."), ("--device", "cpu", "--dry-run")])
def test_a_misspelled_directory_starts_no_sweep_of_defaults(options):
    with pytest.raises(ConfigError, match="typo contains no sweep to resume: check --output, or say what to compare"):
        sweep("-o", "typo", *options)
    assert not Path("typo").exists()


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_a_setting_that_cannot_be_parsed_is_listed_with_the_other_problems(options):
    with pytest.raises(ConfigError) as error:
        sweep("--algorithm", "corral", "--set", "lr=1,2", *options)
    assert [problem[:40] for problem in error.value.problems] == [
        "--set takes one value for each name, got",
        "there is no algorithm 'corral': did you ",
    ]


def test_status_needs_a_sweep():
    with pytest.raises(ConfigError, match=r"contains no sweep \(sweep.json\)"):
        sweep("status", "s")


def test_sharing_a_gpu_is_for_the_local_launcher():
    with pytest.raises(ConfigError, match=r"--jobs-per-gpu is for the launcher local, got ray: use its own options"):
        sweep("--algorithm", "erm", "--launcher", "ray", "--jobs-per-gpu", "2", "--dry-run")


def test_every_setting_of_a_run_is_an_option():
    group = typer.main.get_command(cli.app).commands["sweep"]
    names = {option.name for option in group.commands["run"].params}
    assert names >= set(SETTINGS) - set(command.SWEPT) - {"dataset_options"}
    assert set(command.SWEPT) == set(OWN_OPTIONS)


def test_values_are_parsed():
    for texts in (["lr=1e-5,3e-5", "batch_size=8"], ["lr=1e-5,3e-5,batch_size=8"], ["lr=1e-5", "batch_size=8,lr=3e-5"]):
        assert parse.grid(texts) == {"lr": (1e-5, 3e-5), "batch_size": (8,)}
    assert isinstance(parse.grid(["batch_size=8"])["batch_size"][0], int)
    assert parse_launcher_options(["partition=gpu", "x="]) == {"partition": "gpu", "x": ""}
    assert parse_launcher_options(["partition=a,b", "export=A=1,B"]) == {"partition": "a,b", "export": "A=1,B"}
    for bad in (["lr"], ["lr=a"], ["lr="], ["=1"]):
        with pytest.raises(ValueError, match="--grid takes"):
            parse.grid(bad)
    with pytest.raises(ValueError, match="--launcher-option takes NAME=VALUE"):
        parse_launcher_options(["partition"])
    problems = Problems()
    assert problems.collect(parse.grid, ["lr"]) is None
    with pytest.raises(ConfigError, match="--grid takes"):
        problems.require_none()


def test_a_device_is_kept_until_another_is_stated(tmp_path):
    plan, output = tmp_path / "plan.toml", tmp_path / "sweep"
    plan.write_text('target = ["paper"]\ntrial = [0]\n[options]\ndevice = "cpu"\n')
    (run,) = expand(SweepSpec(targets=("paper",), trials=(0,)), output).runs
    write_failure(run.config.output, "lost")  # so that nothing is trained here
    for options, device in (([plan], "cpu"), ([], "cpu"), (["--device", "cpu:0"], "cpu:0"), ([], "cpu:0")):
        sweep(*map(str, options), "-o", str(output), code=1)
        assert [spec.options["device"] for spec in SweepDir(output).specs] == [device]


def test_the_launcher_gets_the_device_of_a_plan_file(here, tmp_path, monkeypatch):
    devices, plan = [], tmp_path / "plan.toml"
    monkeypatch.setattr(_sweep, "run", lambda sweep, launch, device, *rest: devices.append(device) or True)
    plan.write_text('dataset = ["digits"]\n[options]\ndevice = "cpu:0"\n')
    here("sweep", "run", plan, "-o", tmp_path / "sweep")
    assert devices == ["cpu:0"]


@pytest.mark.slow
def test_a_worker_trains_what_is_left_of_a_sweep(tmp_path):
    options = {"steps": 8, "evaluate_every": 4, "device": "cpu", "hyperparameters": {"batch_size": 8}}
    SweepDir("s").add(SweepSpec(targets=("paper",), trials=(0, 1), averages=("ema",), options=options))
    sweep("work", "s")
    assert sweep("status", "s").splitlines()[1].split()[2:7] == ["2", "0", "0", "0", "2"]
    with pytest.raises(ConfigError, match=r"typo contains no sweep \(sweep.json\)"):
        sweep("work", "typo")


@pytest.mark.parametrize("command", ["--dry-run", "work"])
def test_torchrun_is_refused(monkeypatch, command):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="leave torchrun out, and give --processes 2"):
        sweep(command)
