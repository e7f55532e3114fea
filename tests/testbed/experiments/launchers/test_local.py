"""The local launcher: workers that are kept, killed, replaced and stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from helpers.commands import environment
from helpers.launched_runs import (
    has_checkpoint,
    process_of,
    require_plain_records,
    tasks,
    train_and_die,
    train_forever,
    train_slowly,
    wait_for_all,
    wait_until,
)
from swad.testbed.experiments.launchers import local
from swad.testbed.experiments.launchers.base import LauncherError
from swad.testbed.experiments.launchers.local import LocalLauncher
from swad.testbed.results.failures import read_failure

pytestmark = [pytest.mark.slow, pytest.mark.distributed]


@pytest.fixture(autouse=True)
def _quick(request):
    if request.function is not test_workers_are_kept_see_one_gpu_each_and_stop:  # as they start for users
        request.getfixturevalue("quick_workers")


def test_workers_are_kept_see_one_gpu_each_and_stop(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "visible_gpus", lambda: ["5", "GPU-7"])
    with LocalLauncher(train=train_forever) as launcher:
        assert launcher.slots == 2
        launcher.submit(tasks(tmp_path / "a", 2))
        launcher.submit(tasks(tmp_path / "b", 2))
        done = launcher.wait(timeout=0)  # whatever has finished by now
        while outcomes := launcher.wait():
            done += outcomes
        assert [outcome.status for outcome in done] == ["finished"] * 4
        noted = {path.read_text() for path in tmp_path.rglob("pid")}
        assert {text.split()[1] for text in noted} == {"5", "GPU-7"}
        pids = [worker.process.pid for worker in launcher._workers]
        assert {int(text.split()[0]) for text in noted} == set(pids)
        one, two, *rest = [task for name in "cdef" for task in tasks(tmp_path / name, 3)[2:]]
        launcher.submit([one, two, *rest])
        wait_until(lambda: launcher.wait(timeout=0.1) or (two.config.output / "pid").exists())
        stopped = []
        os.kill(pids[0], signal.SIGTERM)  # as a scheduler does that ends a job: it means all of them
        with pytest.raises(KeyboardInterrupt):
            while True:
                stopped += launcher.wait(timeout=1)
        launcher.stop()
        launcher.submit([two])
        while outcomes := launcher.wait():
            stopped += outcomes
        assert [outcome.status for outcome in stopped] == ["interrupted"] * 5
        assert sum("was not started" in outcome.message for outcome in stopped) == 3
    assert not list(tmp_path.rglob("failure.json"))


def test_a_worker_that_is_killed_in_mid_run_is_replaced(tmp_path):
    launched = tasks(tmp_path, 2)
    with LocalLauncher(2, train=train_slowly) as launcher:
        launcher.submit(launched)
        wait_until(lambda: launcher.wait(timeout=0.1) or has_checkpoint(launched[0]))
        os.kill(process_of(launched[0]), signal.SIGKILL)
        assert {outcome.status for outcome in wait_for_all(launcher, 2).values()} == {"finished"}
    require_plain_records(launched, tmp_path / "plain")


def test_a_run_that_kills_every_worker_fails(tmp_path):
    launched = tasks(tmp_path, 2)
    with LocalLauncher(1, train=train_and_die) as launcher:
        launcher.submit(launched)
        outcomes = wait_for_all(launcher, 2)
    assert [outcomes[task.key].status for task in launched] == ["finished", "failed"]
    assert [path.read_text() for path in sorted(tmp_path.glob("*.deaths"))] == ["x", "xxx"]
    failure = read_failure(launched[1].config.output)
    assert failure.error == outcomes["task-1"].message
    assert "ended 3 times in a row (signal 9, SIGKILL)" in failure.error


def test_workers_that_cannot_start(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "visible_gpus", lambda: [5])  # not text: the first line of a worker fails
    with LocalLauncher(1) as launcher, pytest.raises(LauncherError, match="ended while they started"):
        launcher.submit(tasks(tmp_path, 1))
        launcher.wait()


def test_bad_numbers():
    with pytest.raises(ValueError, match="jobs must be 1 or more, got 0"):
        LocalLauncher(0)
    with pytest.raises(ValueError, match="jobs_per_gpu must be 1 or more, got -1"):
        LocalLauncher(1, jobs_per_gpu=-1)


def test_gpus_are_named_as_the_environment_names_them(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert local.visible_gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-1")
    assert local.visible_gpus() == ["3", "GPU-1"]
    assert LocalLauncher(jobs_per_gpu=3).slots == 6
    assert LocalLauncher(jobs_per_gpu=3, device="cuda:0").slots == local.available_cores()
    assert LocalLauncher(5).slots == 5


def test_a_script_without_a_guard_is_told_what_to_write(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from swad.testbed.experiments.launchers.base import Task\n"
        "from swad.testbed.experiments.launchers.local import LocalLauncher\n"
        "from swad.testbed.training.config import RunConfig\n"
        "config = RunConfig.from_options(dataset='digits', target='paper', output='run')\n"
        "with LocalLauncher(jobs=1, device='cpu') as launcher:\n"
        "    launcher.submit([Task('a', config)])\n"
        "    launcher.wait()\n"
    )
    result = subprocess.run([sys.executable, script], cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert 'put it under if __name__ == "__main__"' in result.stderr
    assert "3 worker processes in a row ended while they started" in result.stderr
    assert not (tmp_path / "run").exists()
