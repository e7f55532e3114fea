"""The commands as a user runs them: real processes, real output."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer

from helpers import ROOT, SOURCE
from helpers.imports import HEAVY, modules_after
from swad import cli
from swad.results.runs import load_run

SWAD = [sys.executable, "-m", "swad"]
QUICK = ["--steps", "40", "--evaluate-every", "10"]


def swad(*arguments: str | Path, cwd: Path | None = None, code: int = 0) -> subprocess.CompletedProcess[str]:
    result = subprocess.run([*SWAD, *map(str, arguments)], capture_output=True, text=True, cwd=cwd, env=environment())
    assert result.returncode == code, result.stdout + result.stderr
    return result


def environment() -> dict[str, str]:
    source = str(SOURCE)
    return os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "150", "PYTHONPATH": source}


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> tuple[Path, str]:
    """A small demo: four runs of 40 steps, made once for all processes of the tests."""
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    folder, said = root / "demo", root / "demo.txt"
    with (root / "demo.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not said.exists():
            said.write_text(swad("demo", "--trials", "1", "--steps", "40", "--output", folder).stdout)
    return folder, said.read_text()


def test_help_loads_nothing_heavy():
    assert not modules_after("import swad.cli") & (set(HEAVY) - {"rich"})
    text = swad("--help").stdout
    for command in ("demo", "train", "report", "datasets", "doctor"):
        assert command in text
        assert "Usage" in swad(command, "--help").stdout


def test_the_documentation_names_every_option_and_no_other():
    text = (ROOT / "docs" / "benchmark.md").read_text()
    written = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) - {"--nproc-per-node", "--help"}
    commands = typer.main.get_command(cli.app).commands
    options = {name: [p for p in command.params if p.opts[0].startswith("-")] for name, command in commands.items()}
    there = {opt for found in options.values() for p in found for opt in (*p.opts, *p.secondary_opts)}
    assert written <= there
    missing = [p.opts for p in options["train"] + options["report"] if not written & {*p.opts, *p.secondary_opts}]
    assert not missing


def test_the_demo_prints_a_table_and_writes_a_page(demo):
    folder, text = demo
    for row in ("ERM (best)", "ERM (last)", "SWAD", "SWA", "EMA"):
        assert row in text
    for style in ("board", "clutter", "outline", "paper"):
        assert style in text
        assert (folder / f"{style}-0" / "weights" / "swad.safetensors").exists()
        assert (folder / f"{style}-0" / "done.json").exists()
    page = (folder / "report.html").read_text()
    assert "SWAD" in page
    assert "://" not in page.replace("http://www.w3.org", "")  # nothing to load from anywhere
    assert f"wrote {folder / 'report.html'}" in text.replace("\n", "")


def test_the_table_shows_what_the_runs_recorded(demo):
    folder, text = demo
    scores = json.loads((folder / "paper-0" / "done.json").read_text())["scores"]
    shown = f"{100 * scores['swad']['paper']['in']['accuracy']:.1f}"
    row = next(line for line in text.splitlines() if line.strip().startswith("SWAD"))
    assert shown in row


def test_a_finished_demo_answers_at_once(demo):
    folder, _ = demo
    again = swad("demo", "--trials", "1", "--steps", "40", "--output", folder)
    assert "4 of 4" in again.stdout + again.stderr
    assert "step 40/40" not in again.stdout + again.stderr


@pytest.mark.parametrize(
    ("form", "sign"), [("markdown", "| SWAD"), ("latex", r"\toprule"), ("csv", "SWAD,"), ("text", "Averaged range")]
)
def test_report_in_every_form(demo, here, tmp_path, form, sign):
    folder, _ = demo
    result = here("report", folder, "--format", form, "--output", tmp_path / "page.html")
    assert sign in result.stdout
    assert (tmp_path / "page.html").exists()


def test_report_draws_figures(demo, here, tmp_path):
    folder, _ = demo
    here("report", folder, "--figures", tmp_path / "figures", "--figure-formats", "svg,png", "-o", tmp_path / "p.html")
    names = {file.suffix for file in (tmp_path / "figures").iterdir()}
    assert names == {".svg", ".png"}


def test_train_one_target_with_settings_and_averages(tmp_path):
    result = swad(
        "train", "digits", "-t", "paper", *QUICK, "-o", tmp_path, "--set", "lr=1e-3", "--set", "batch_size=8",
        "--average", "swad:semantics=text,tolerance_ratio=0.2,ema", "--snapshots", "20", "--keep-segments",
    )  # fmt: skip
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


def begin_two_runs(folder: Path, jobs: str) -> subprocess.Popen[str]:
    command = [
        *SWAD, "train", "digits", "-t", "paper", "-t", "board", "--steps", "3000", "--evaluate-every", "10",
        "-o", str(folder), "--jobs", jobs, "--checkpoint-every", "10",
    ]  # fmt: skip
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), start_new_session=True
    )


def two_runs_under_way(folder: Path, jobs: str, wait_for: int = 1) -> subprocess.Popen[str]:
    """Two long trainings, of which so many have left a checkpoint."""
    process = begin_two_runs(folder, jobs)
    deadline = time.time() + 90
    while len(list(folder.rglob("state.pt"))) < wait_for:
        assert process.poll() is None, process.stderr.read()
        assert time.time() < deadline
        time.sleep(0.05)
    return process


def children(process: subprocess.Popen[str]) -> list[Path]:
    """Of a process: where the system shows them as long as they are there."""
    found = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [Path(f"/proc/{pid}") for pid in found]


def wait_until_gone(processes: list[Path]) -> None:
    deadline = time.time() + 30
    while any(one.exists() and "\nState:\tZ" not in (one / "status").read_text() for one in processes):
        assert time.time() < deadline, [one.name for one in processes if one.exists()]
        time.sleep(0.05)


def test_sigterm_reaches_the_runs_side_by_side(tmp_path):
    process = two_runs_under_way(tmp_path, "2", wait_for=2)
    under_way = children(process)
    assert len(under_way) >= 2
    process.terminate()  # it alone, as `kill` does
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Run the same command again to resume" in errors
    assert errors.count("\n") == 1
    wait_until_gone(under_way)
    assert len(list(tmp_path.rglob("state.pt"))) == 2
    assert not list(tmp_path.rglob("done.json"))


def test_sigterm_while_the_processes_of_runs_load(tmp_path):
    process = begin_two_runs(tmp_path, "2")
    deadline = time.time() + 90
    while len(children(process)) < 3:  # both, and the one that Python keeps beside them
        assert process.poll() is None, process.stderr.read()
        assert time.time() < deadline
        time.sleep(0.02)
    under_way = children(process)
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors.count("\n")) == (130, 1), errors
    assert "Run the same command again to start" in errors
    wait_until_gone(under_way)


def test_runs_side_by_side_follow_a_command_that_was_killed(tmp_path):
    process = two_runs_under_way(tmp_path, "2", wait_for=2)
    under_way = children(process)
    process.kill()
    process.communicate(timeout=60)
    wait_until_gone(under_way)
    assert len(list(tmp_path.rglob("state.pt"))) == 2
    assert not list(tmp_path.rglob("done.json"))


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_leaves_runs_that_go_on(tmp_path, jobs):
    process = two_runs_under_way(tmp_path, jobs)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "goes on" in errors
    assert "Traceback" not in errors
    assert list(tmp_path.rglob("state.pt"))


def test_bars_in_a_terminal(tmp_path):
    """On a real pseudo-terminal: bars with the loss, the phase and the time left."""
    parent, child = pty.openpty()
    command = [*SWAD, "train", "digits", "-t", "paper", "--steps", "300", "--evaluate-every", "10", "-o", str(tmp_path)]
    process = subprocess.Popen(command, stdout=child, stderr=child, env=environment() | {"TERM": "xterm-256color"})
    os.close(child)
    seen = b""
    deadline = time.time() + 120
    while time.time() < deadline:
        ready, _, _ = select.select([parent], [], [], 0.2)
        if ready:
            try:
                part = os.read(parent, 65536)
            except OSError:
                break
            if not part:
                break
            seen += part
    os.close(parent)
    assert process.wait(timeout=30) == 0
    text = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", seen).decode(errors="replace")
    assert re.search(r"paper-0 .*\d+/300 .*loss \d", text)
    assert "searching" in text or "averaging" in text


def test_datasets_lists_shows_and_checks(here, tmp_path):
    listing = here("datasets").stdout
    assert "9,991" in listing
    assert "TerraIncognita" in listing
    assert "ICCV 2017" in here("datasets", "show", "PACS").stdout.replace("\n", " ")
    from PIL import Image

    for domain in ("north", "south"):
        for label in ("cat", "dog"):
            place = tmp_path / "mine" / domain / label
            place.mkdir(parents=True)
            for i in range(3):
                Image.new("RGB", (8, 8), (40 * i, 0, 0)).save(place / f"{i}.png")
    assert "12" in here("datasets", "check", tmp_path / "mine", "--name", "folder").stdout
    (tmp_path / "mine" / "north" / "cat" / "1.png").write_bytes(b"no image")
    bad = here("datasets", "check", tmp_path / "mine", "--name", "folder", code=1)
    assert "1.png" in bad.stdout + bad.stderr


def test_a_folder_of_ones_own_under_its_own_name(here, tmp_path, grown_up_folder):
    options = ["-d", grown_up_folder, "--network", "test_resnet", "--weights", "random", "--set", "batch_size=2"]
    text = here("train", "folder", *options, "--steps", "4", "--evaluate-every", "2", "-o", tmp_path).stdout
    assert text.splitlines()[-1] == f"wrote {tmp_path / 'report.html'}"
    assert "mine" in text
    assert {path.name for path in (tmp_path / "mine" / "erm").iterdir()} == {"east-0", "north-0", "south-0"}
    pairs = here("report", tmp_path, "--select", "lodo").stdout
    assert "Not shown: ERM (best) on east, ERM (last) on east, SWAD on east: lodo needs" in pairs
    assert pairs.count("train them with --target TARGET+SOURCE, or use iid.") == 3  # one line for each target
    both = here("train", "folder", *options, "--steps", "2", "-o", tmp_path, "-t", "north+south").stdout
    assert "north+south-0: done" in both


def test_all_targets_are_looked_at_before_the_first_is_trained(here, tmp_path, grown_up_folder):
    options = ["-d", grown_up_folder, "--network", "test_resnet", "--weights", "random", "-o", tmp_path / "runs"]
    for wrong, words in (("west", "has no domain 'west'; it has east"), ("east+north+south", "fewer than all 3")):
        assert words in here("train", "folder", *options, "-t", "east", "-t", wrong, code=1).stderr
        assert not (tmp_path / "runs").exists()


def test_what_is_given_twice_is_trained_once_and_what_is_skipped_is_said(here, tmp_path, grown_up_folder):
    (grown_up_folder / "east" / "cat" / "x.gif").touch()
    options = ["-d", grown_up_folder, "--network", "test_resnet", "--weights", "random", "--set", "batch_size=2"]
    options += ["--steps", "1", "-o", tmp_path, "-t", "east", "-t", "east", "--trial", "0,0", "--cache-size", "64"]
    text = here("train", "folder", *options).stdout
    assert text.count(": finished (") == text.count("finished (1 of 1)") == 1
    assert "1 files are no images by their extension and are not read, e.g. east/cat/x.gif" in text
    assert "--cache-size: ignored" in text


def test_a_page_that_cannot_be_written_is_one_line(demo, here, tmp_path):
    (tmp_path / "file").touch()
    errors = here("report", demo[0], "-o", tmp_path / "file" / "page.html", code=1).stderr
    assert re.search(r"cannot write the page .*page\.html: .*; see to it or choose another file \(--output\)", errors)


def test_an_oracle_may_choose_a_step_where_the_target_was_measured(here, tmp_path, demo):
    folder, _ = demo
    once = here("report", folder, "--select", "oracle_best_step", "-o", tmp_path / "page.html").stdout
    assert "No step to choose" in once
    here("train", "digits", "-t", "paper", *QUICK, "-o", tmp_path, "--target-every-evaluation")
    text = here("report", tmp_path, "--select", "oracle_best_step").stdout
    assert "ERM (chosen step)" in text
    assert "No step to choose" not in text
    assert "ERM (chosen step)" not in here("report", tmp_path).stdout


@pytest.fixture
def grown_up_folder(tmp_path_factory) -> Path:
    """Three domains of two classes with eight images each."""
    from PIL import Image

    root = tmp_path_factory.mktemp("data") / "mine"
    for d, domain in enumerate(("east", "north", "south")):
        for c, label in enumerate(("cat", "dog")):
            (root / domain / label).mkdir(parents=True)
            for i in range(8):
                Image.new("RGB", (16, 16), (30 * i, 100 * c, 80 * d)).save(root / domain / label / f"{i}.png")
    return root


def test_doctor_tells_versions_and_devices(here):
    text = here("doctor").stdout
    assert "torch" in text
    assert "ms per update" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "pax"], "there is no dataset"),
        (["train", "digits", "-t", "crayon"], "the target must be one of"),
        (["train", "digits", "--average", "swadd"], "there is no average 'swadd'; choose from swad"),
        (["train", "digits", "--set", "lr"], "--set takes name=number, got 'lr'"),
        (["train", "digits", "--set", "lr=1", "--set", "lr=2"], "--set takes every name once, got lr twice"),
        (
            ["train", "digits", "--algorithm", "coral", "--target", "paper+board+clutter"],
            "coral needs 2 source domains, got outline",
        ),
        (["train", "digits", "--trial", "a"], "comma-separated whole numbers"),
        (["train", "pacs"], "needs the folder it lies in"),
        (["train", "digits", "--jobs", "0"], "--jobs must be 1 or more, got 0"),
        (["train", "digits", "--jobs", "-1"], "--jobs must be 1 or more, got -1"),
        (["train", "digits", "--device", "tpu9"], "device must be"),
        (["train", "folder", "-d", ".", "--network", "small", "-t", "x"], "takes images of 28 to 33 pixels"),
        (["train", "folder"], "(--data)"),
        (["train", "digits", "--algorithm", "corral"], "there is no algorithm 'corral'; choose one of arm, "),
        (["train", "digits", "--algorithm", "coral+irm"], "only SAM can be combined with another algorithm"),
        (["train", "digits", "--algorithm", "dann+sam"], "SAM climbs the one loss that a method steps on"),
        (["train", "digits", "--algorithm", "dann", "--set", "rho=1"], "no hyperparameter rho; there are lr, batch"),
        (["algorithms", "show", "corral"], "there is no algorithm 'corral'; choose one of arm, "),
        (["report", "."], "no run below ."),
        (["report", ".", "--format", "doc"], "--format must be one of text, markdown, latex, csv; got 'doc'"),
        (["report", ".", "--select", "best"], "--select must be one of iid, last, lodo"),
        (["report", ".", "--paper", "yes"], "--paper must be one of few, all, none"),
        (["report", ".", "--figure-formats", "gif"], "--figure-formats must be one of svg, pdf, png"),
        (["demo", "--trials", "0"], "at least one trial"),
    ],
)
def test_errors_are_one_line_without_a_traceback(tmp_path, here, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    result = here(*arguments, code=1)
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.iterdir()), "nothing may be left behind"


def test_algorithms_are_listed_and_shown(here):
    from swad.algorithms.registry import list_algorithms

    listing = here("algorithms").stdout
    names = re.findall(r"^(\w+) +(?:19|20)\d\d ", listing, re.MULTILINE)
    assert tuple(names) == list_algorithms()
    for words in ("2016", "own optimizers", "Foret et al.", "+sam"):
        assert words in listing
    text = here("algorithms", "show", "DANN").stdout
    for words in ("CE(h(z), y) - λ D", "Ganin et al.", "mlp_depth", "one of 3, 4, 5", "int 2^U(0, 3)", "0: as lr"):
        assert words in text
    both = here("algorithms", "show", "sam+coral").stdout
    for words in ("same mean and covariance", "worst point nearby", "gamma", "rho", "0.05"):
        assert words in both


def test_a_composition_trains_under_its_own_name(here, tmp_path):
    options = ["-t", "paper", "--steps", "4", "--evaluate-every", "2", "-o", tmp_path, "--set", "batch_size=2"]
    text = here("train", "digits", *options, "--algorithm", "SAM+CORAL", "--set", "rho=0.1").stdout
    config = load_run(tmp_path / "digits" / "coral+sam" / "paper-0").config
    assert config["algorithm"] == "coral+sam"
    assert config["hyperparameters"]["rho"] == 0.1
    assert "CORAL + SAM + SWAD" in text
    here("report", tmp_path, "--figures", tmp_path / "figures", "--figure-formats", "svg")
    assert list((tmp_path / "figures").iterdir())
