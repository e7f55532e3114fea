"""Several runs at a time: their share of the cores, and how they end together."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from helpers.commands import SWAD, environment
from helpers.runs import short
from swad.testbed.workers import local
from swad.testbed.workers.train_all import train_all


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity on this system")
def test_threads_are_shared_by_the_runs(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 7})
    assert [local.threads_per_process(n) for n in (1, 2, 3, 8)] == [3, 1, 1, 1]


def test_processes_join_once_for_all_runs(monkeypatch, tmp_path):
    """A process that leaves a group and joins another finds the addresses of the first, and waits for ever."""
    events = []

    @contextmanager
    def group(device):
        events.append("join")
        yield
        events.append("leave")

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr("swad.testbed.training.distributed.process_group", group)
    monkeypatch.setattr("swad.testbed.training.loop.train", lambda config, callback: events.append(config.name))
    train_all([short(tmp_path / target, target=target) for target in ("paper", "board")])
    assert events == ["join", "paper-0", "board-0", "leave"]


def test_several_runs_at_a_time_are_refused_under_torchrun(monkeypatch, tmp_path):
    """Every rank would start processes that join the same group, and all would wait."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ValueError, match="under torchrun, runs train one after another"):
        train_all([short(tmp_path / target, target=target) for target in ("paper", "board")], jobs=2)


def start_two_runs(folder: Path, jobs: str) -> subprocess.Popen[str]:
    command = [
        *SWAD, "train", "digits", "-t", "paper", "-t", "board", "--steps", "3000", "--evaluate-every", "10",
        "-o", str(folder), "--jobs", jobs, "--checkpoint-every", "10",
    ]  # fmt: skip
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), start_new_session=True
    )


def start_two_runs_and_wait_for_checkpoints(folder: Path, jobs: str, wait_for: int = 1) -> subprocess.Popen[str]:
    """Start two long runs and wait until `wait_for` of them have written a checkpoint."""
    process = start_two_runs(folder, jobs)
    deadline = time.time() + 90
    while len(list(folder.rglob("state.pt"))) < wait_for:
        assert process.poll() is None, process.stderr.read()
        assert time.time() < deadline
        time.sleep(0.05)
    return process


def child_processes(process: subprocess.Popen[str]) -> list[Path]:
    """Return the /proc directories of a process's children."""
    found = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [Path(f"/proc/{pid}") for pid in found]


def wait_until_ended(processes: list[Path]) -> None:
    deadline = time.time() + 60
    while any(path.exists() and "\nState:\tZ" not in (path / "status").read_text() for path in processes):
        assert time.time() < deadline, [path.name for path in processes if path.exists()]
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.distributed
def test_a_signal_is_forwarded_to_parallel_runs(tmp_path):
    process = start_two_runs_and_wait_for_checkpoints(tmp_path, "2", wait_for=2)
    workers = child_processes(process)
    assert len(workers) >= 2
    process.send_signal(signal.SIGTERM)  # only to this process, as `kill` does
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "runs are finished. Run the same command again to resume" in errors
    assert errors.count("\n") == 1
    wait_until_ended(workers)
    assert len(list(tmp_path.rglob("state.pt"))) == 2
    assert not list(tmp_path.rglob("done.json"))


@pytest.mark.slow
@pytest.mark.distributed
def test_sigterm_while_worker_processes_import(tmp_path):
    process = start_two_runs(tmp_path, "2")
    deadline = time.time() + 90
    while len(child_processes(process)) < 3:  # two workers and the resource tracker
        assert process.poll() is None, process.stderr.read()
        assert time.time() < deadline
        time.sleep(0.02)
    workers = child_processes(process)
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors.count("\n")) == (130, 1), errors
    assert "0 of 2 runs are finished. Run the same command again to resume" in errors
    wait_until_ended(workers)


@pytest.mark.slow
@pytest.mark.distributed
def test_ctrl_c_leaves_resumable_runs(tmp_path):
    process = start_two_runs_and_wait_for_checkpoints(tmp_path, "1")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Run the same command again to resume" in errors
    assert "Traceback" not in errors
    assert list(tmp_path.rglob("state.pt"))
