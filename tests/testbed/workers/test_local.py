"""Workers of this machine: replaced, stopped, shared with other commands; with real trainings."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from helpers import forked
from helpers.commands import environment
from helpers.runs import require_same
from helpers.worker_runs import (
    configs,
    ended,
    has_checkpoint,
    in_thread,
    is_gone,
    process_of,
    require_plain,
    train_and_die,
    train_and_note,
    train_or_fail,
    train_slowly,
    wait_until,
    with_helpers,
)
from swad.testbed.results.failures import read_failure
from swad.testbed.sweep.directory import SweepDir
from swad.testbed.sweep.spec import SweepSpec
from swad.testbed.training.config import RunConfig
from swad.testbed.training.loop import train
from swad.testbed.workers import local
from swad.testbed.workers.claims import Claims
from swad.testbed.workers.work import State, read_states

pytestmark = [pytest.mark.slow, pytest.mark.distributed]

OPTIONS = {"steps": 24, "evaluate_every": 4, "checkpoint_every": 4, "hyperparameters": {"batch_size": 8, "lr": 0.08}}
SPEC = SweepSpec(datasets=("digits",), targets=("paper", "board"), trials=(0, 1), averages=("swad",), options=OPTIONS)


def make_sweep(folder: Path, spec: SweepSpec = SPEC) -> tuple[SweepDir, list[RunConfig]]:
    sweep = SweepDir(folder / "sweep")
    sweep.add(spec)
    return sweep, sweep.configs()


def launch(folder: Path, runs: tuple[RunConfig, ...], jobs: int, train: Any = None):
    local.train_locally(partial(tuple, runs), Claims(folder / "claims"), jobs, device="cpu", train=train)


@pytest.mark.usefixtures("quick_workers")
def test_a_killed_worker_is_replaced_and_records_are_bit_equal(tmp_path):
    runs = configs(tmp_path)
    thread, result = in_thread(lambda: launch(tmp_path, runs, 2, train_slowly))
    wait_until(lambda: has_checkpoint(runs[0]))
    os.kill(process_of(runs[0]), signal.SIGKILL)
    thread.join(180)
    assert result == [None]
    assert {ended(config) for config in runs} == {"done"}
    assert set(read_states(runs, Claims(tmp_path / "claims")).values()) == {State.DONE}
    assert not list(tmp_path.rglob("starts.json"))
    assert not list(tmp_path.rglob("failure.json"))
    require_plain(runs, tmp_path)


@pytest.mark.usefixtures("quick_workers")
def test_a_run_that_kills_every_worker_fails_and_the_others_finish(tmp_path):
    runs = configs(tmp_path, 3)
    launch(tmp_path, runs, 1, train_and_die)
    assert [ended(config) for config in runs] == ["done", "failed", "failed"]
    assert [path.read_text() for path in sorted(tmp_path.glob("*.deaths"))] == ["x", "xxx", "xxx"]
    assert "ended 3 times in a row" in read_failure(runs[1].output).error


@pytest.mark.usefixtures("quick_workers")
def test_a_failed_run_stops_nothing(tmp_path):
    runs = configs(tmp_path, 3)
    launch(tmp_path, runs, 1, train_or_fail)
    assert [ended(config) for config in runs] == ["done", "failed", "done"]
    assert read_failure(runs[1].output).error == "ValueError: the disk is full"
    (runs[1].output / "failure.json").unlink()  # --retry-failed
    launch(tmp_path, runs, 1)
    assert ended(runs[1]) == "done"


MAIN = """
import sys
from helpers.worker_runs import train_slowly
from swad.testbed.sweep.directory import SweepDir
from swad.testbed.workers import local
if __name__ == "__main__":
    sweep = SweepDir(sys.argv[1])
    try:
        local.train_locally(sweep.configs, sweep.claims, 2, device="cpu", train=train_slowly)
    except local.Interrupted as error:
        print(error)
        sys.exit(130)
"""


def start_command(folder: Path, sweep: SweepDir, fresh: bool = False) -> forked.Process | subprocess.Popen[str]:
    """Start a command with two workers; `fresh` with processes as a user starts them, in a group that has Ctrl-C."""
    script = folder / "main.py"
    script.write_text(MAIN)
    if not fresh:
        return forked.Process([script, sweep.path], quick_workers=True)
    return subprocess.Popen(
        [sys.executable, script, sweep.path],
        start_new_session=True,
        stdout=-1,
        stderr=-1,
        text=True,
        env=with_helpers(),
    )


@pytest.fixture(scope="module")
def plain_runs(tmp_path_factory) -> dict[str, Path]:
    """The runs of a sweep that nothing disturbs, by their keys."""
    folder = tmp_path_factory.mktemp("plain")
    _, runs = make_sweep(folder)
    return {config.output.name: train(config.replace(output=folder / config.output.name)).run_dir for config in runs}


@pytest.mark.usefixtures("quick_workers")
@pytest.mark.parametrize("how", ["term", "ctrl-c", "kill"])
def test_the_command_is_stopped_and_resumes(tmp_path, plain_runs: dict[str, Path], how: str):
    sweep, runs = make_sweep(tmp_path)
    process = start_command(tmp_path, sweep, fresh=how == "ctrl-c")
    wait_until(lambda: sum(has_checkpoint(config) for config in runs) == 2)
    workers = [process_of(config) for config in runs if has_checkpoint(config)]
    if how == "ctrl-c":
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(signal.SIGTERM if how == "term" else signal.SIGKILL)
    out, err = process.communicate(timeout=120)
    if how != "kill":
        assert (process.returncode, err) == (130, "")
        assert "of 4 runs are finished" in out
    wait_until(lambda: all(is_gone(pid) for pid in workers))
    assert not list(tmp_path.rglob("failure.json"))
    assert any(not ended(config) for config in runs)
    local.train_locally(sweep.configs, sweep.claims, 2, device="cpu")
    assert {ended(config) for config in runs} == {"done"}
    for config in runs:
        require_same(plain_runs[config.output.name], config.output)


def test_two_commands_share_a_sweep_that_is_extended_meanwhile(tmp_path):
    sweep, runs = make_sweep(tmp_path)
    commands = [start_command(tmp_path, sweep), start_command(tmp_path, sweep)]
    wait_until(lambda: any(has_checkpoint(config) for config in runs))
    sweep.add(dataclasses.replace(SPEC, trials=(0, 1, 2)))
    for process in commands:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, (out, err)
    assert [ended(config) for config in sweep.configs()] == ["done"] * 6


@pytest.mark.usefixtures("quick_workers")
def test_a_search_is_followed_by_its_choice(tmp_path):
    options = {"steps": 8, "evaluate_every": 4}
    grid = {"lr": (0.01, 0.08)}
    sweep, runs = make_sweep(tmp_path, dataclasses.replace(SPEC, protocol="paper", grid=grid, options=options))
    assert len(runs) == 4
    local.train_locally(sweep.configs, sweep.claims, 2, device="cpu")
    assert [ended(config) for config in sweep.configs()] == ["done"] * 6


@pytest.mark.usefixtures("quick_workers")
def test_workers_that_cannot_start(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "visible_gpus", lambda: ["\0"])  # the first line of a worker fails
    with pytest.raises(local.WorkerError, match="ended before any run did"):
        local.train_locally(partial(tuple, configs(tmp_path, 1)), Claims(tmp_path / "claims"), 1)


@pytest.mark.usefixtures("quick_workers")
def test_workers_are_kept_and_see_one_gpu_each(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "visible_gpus", lambda: ["5", "GPU-7"])
    runs = configs(tmp_path, 6, device="cpu")
    local.train_locally(partial(tuple, runs), Claims(tmp_path / "claims"), train=train_and_note)
    noted = [(config.output / "pid").read_text().split() for config in runs]
    assert len({pid for pid, _ in noted}) <= 2
    assert {gpu for _, gpu in noted} == {"5", "GPU-7"}


def test_gpus_are_named_as_the_environment_names_them(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert local.visible_gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-1")
    assert local.visible_gpus() == ["3", "GPU-1"]
    assert local.count_jobs("auto", 3) == 6
    assert local.count_jobs("cuda:0", 3) == local.available_cores()


def test_a_worker_has_a_gpu_for_each_process(monkeypatch):
    monkeypatch.setattr(local, "visible_gpus", lambda: ["0", "1", "GPU-7", "3", "4"])
    assert local.gpus_of_workers("auto", 2) == ["0,1", "GPU-7,3"]
    assert local.count_jobs("cuda", 1, 2) == 2
    assert local.gpus_of_workers("cpu", 2) == []
    assert local.count_jobs("cpu", 1, 10**6) == 1
    with pytest.raises(local.WorkerError, match="a run in 6 processes needs 6 GPUs, and this machine has 5"):
        local.gpus_of_workers("cuda", 6)


def test_a_script_without_a_guard_reads_what_to_write(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from functools import partial\n"
        "from pathlib import Path\n"
        "from swad.testbed.training.config import RunConfig\n"
        "from swad.testbed.workers.claims import Claims\n"
        "from swad.testbed.workers import local\n"
        "local.MAX_STARTS = 0\n"  # a worker that fails is not replaced
        "config = RunConfig.from_options(dataset='digits', target='paper', output='run')\n"
        "local.train_locally(partial(tuple, [config]), Claims(Path('claims')), 1, device='cpu')\n"
    )
    result = subprocess.run([sys.executable, script], cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert 'put it under if __name__ == "__main__"' in result.stderr
    assert "worker processes ended before any run did" in result.stderr
    assert not (tmp_path / "run").exists()
