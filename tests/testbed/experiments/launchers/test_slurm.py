"""Slurm jobs, as processes of submitit's local cluster: requeued, killed, and left by the launcher that began them."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers.launched_runs import (
    has_checkpoint,
    process_of,
    require_plain_records,
    tasks,
    train_slowly,
    wait_for_all,
    wait_until,
)
from helpers.python_process import start_python
from swad.testbed.experiments.launchers.base import LauncherError
from swad.testbed.experiments.launchers.slurm import SlurmLauncher, _Job

pytestmark = [
    pytest.mark.slow,
    pytest.mark.distributed,
    pytest.mark.skipif(importlib.util.find_spec("submitit") is None, reason="needs submitit"),
]

OPTIONS = {"cluster": "local", "poll_seconds": 0.2, "cpus_per_job": 1}


def test_requeued_before_the_time_limit_and_killed(tmp_path):
    """One job gets the signal that precedes its time limit, the process of the other is killed."""
    launched = tasks(tmp_path, 3)
    with SlurmLauncher(tmp_path, **OPTIONS, runs_per_job=2, train=train_slowly) as launcher:
        launcher.submit(launched)
        wait_until(lambda: has_checkpoint(launched[0]))
        requeued = process_of(launched[0])
        os.kill(requeued, signal.SIGUSR2)
        wait_until(lambda: has_checkpoint(launched[2]))
        os.kill(process_of(launched[2]), signal.SIGKILL)
        outcomes = wait_for_all(launcher, 3)
    assert {outcome.status for outcome in outcomes.values()} == {"finished"}
    assert process_of(launched[0]) == process_of(launched[1]) != requeued
    logs = "".join(path.read_text() for path in (tmp_path / "slurm").rglob("*_log.*"))
    assert logs.count("Requeued job") == 1
    assert not list((tmp_path / "slurm").glob("*.json*"))
    require_plain_records(launched, tmp_path / "plain")


SUBMIT = """
import os, sys
from pathlib import Path
from helpers.launched_runs import tasks, train_slowly
from swad.testbed.experiments.launchers.slurm import SlurmLauncher
launcher = SlurmLauncher(sys.argv[1], cluster="local", cpus_per_job=1, train=train_slowly)
launcher.submit(tasks(Path(sys.argv[1]), 1))
os._exit(0)
"""


def test_jobs_outlive_the_launcher_and_are_found_again(tmp_path):
    process = start_python(SUBMIT, str(tmp_path))
    assert process.wait(timeout=120) == 0  # its output stays open, since the job has inherited it
    (job,) = (tmp_path / "slurm").glob("*.json")
    launched = tasks(tmp_path, 1)
    with SlurmLauncher(tmp_path, **OPTIONS) as launcher:
        launcher.submit(launched)
        assert list((tmp_path / "slurm").glob("*.json")) == [job]
        wait_until(lambda: has_checkpoint(launched[0]))
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            launcher.wait()
        launcher.stop()
        (outcome,) = launcher.wait()
        assert (outcome.status, outcome.elsewhere) == ("interrupted", True)
        assert "stays with job" in outcome.message
    with SlurmLauncher(tmp_path, **OPTIONS) as launcher:
        launcher.submit(launched)
        assert wait_for_all(launcher, 1)["task-0"].status == "finished"
    assert len(list((tmp_path / "slurm").rglob("*_submitted.pkl"))) == 1
    require_plain_records(launched, tmp_path / "plain")


def test_a_cancelled_job_is_left_to_the_caller(tmp_path):
    launched = tasks(tmp_path, 2)
    with SlurmLauncher(tmp_path, **OPTIONS) as launcher:
        cancelled = SimpleNamespace(job_id="7", state="CANCELLED by 0", done=lambda: True)
        launcher._jobs.append(_Job(cancelled, tmp_path / "7.jsonl", {task.key: task for task in launched}))
        outcomes = launcher.wait(timeout=1)
    assert [(outcome.task, outcome.status) for outcome in outcomes] == [(task, "interrupted") for task in launched]
    assert outcomes[0].message.endswith("job 7 was cancelled")


@pytest.mark.parametrize("line", ["garbage", "5", '{"key": ["x"]}', '{"key": "task-0", "color": 1}', "[" * 100_000])
def test_a_line_that_no_job_wrote_is_named_with_its_file(tmp_path, line):
    launched = tasks(tmp_path, 1)
    report = tmp_path / "7.jsonl"
    report.write_text(f"{line}\n")
    job = _Job(SimpleNamespace(job_id="7"), report, {task.key: task for task in launched})
    with pytest.raises(LauncherError, match=r"7\.jsonl, line 1 is not the report of a job: remove the file"):
        list(job.new_outcomes())


def test_what_slurm_is_asked_for(tmp_path, monkeypatch):
    """Slurm's commands are stand-ins here: what counts is the text that `sbatch` gets."""
    for name, line in {"srun": "exit 1", "sbatch": "echo Submitted batch job 4711", "sacct": "exit 1"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    options = {"partition": "gpu", "timeout_min": 240, "gpus_per_job": 1, "cpus_per_job": 8, "mem_gb": 32.0}
    with SlurmLauncher(
        tmp_path / "sweep", **options, max_parallel=2, runs_per_job=2, options={"slurm_account": "lab"}
    ) as launcher:
        assert launcher.slots == 2
        launcher.submit(tasks(tmp_path / "sweep", 5))
        assert launcher.wait(timeout=0) == []
    (text,) = (path.read_text() for path in (tmp_path / "sweep" / "slurm").rglob("*_submission.sh"))
    for line in ("partition=gpu", "time=240", "gpus-per-node=1", "cpus-per-task=8", "mem=32GB", "account=lab"):
        assert f"#SBATCH --{line}\n" in text
    assert "#SBATCH --array=0-2%2\n" in text
    assert "#SBATCH --signal=USR2@300\n" in text
    held = [json.loads(path.read_text()) for path in (tmp_path / "sweep" / "slurm").glob("*.json")]
    assert sorted((job["job"], len(job["keys"])) for job in held) == [("4711_0", 2), ("4711_1", 2), ("4711_2", 1)]


def test_bad_arguments(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="runs_per_job must be 1 or more, got 0"):
        SlurmLauncher(tmp_path, cluster="local", runs_per_job=0)
    with pytest.raises(ValueError, match="signal_delay_s must be below the time limit of 1 min, got 60"):
        SlurmLauncher(tmp_path, cluster="local", timeout_min=1, signal_delay_s=60)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LauncherError, match="cannot submit jobs to the cluster 'slurm'"):
        SlurmLauncher(tmp_path)
    assert not list(Path(tmp_path).iterdir())
