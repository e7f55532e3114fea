"""Workers as Slurm jobs. Slurm's commands are stand-ins that start real processes."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from functools import partial
from pathlib import Path

import pytest

from helpers.commands import environment
from helpers.runs import require_same, short, values
from helpers.worker_runs import ended, has_checkpoint, in_thread, process_of, wait_until
from swad.testbed.sweep.directory import SweepDir
from swad.testbed.sweep.spec import SweepSpec
from swad.testbed.training.config import RunConfig
from swad.testbed.training.loop import train
from swad.testbed.workers import slurm
from swad.testbed.workers.claims import Claims
from swad.testbed.workers.in_job import work_here
from swad.testbed.workers.local import WorkerError

OPTIONS = {"evaluate_every": 100, "checkpoint_every": 100, "hyperparameters": {"batch_size": 8, "lr": 0.08}}
SPEC = SweepSpec(datasets=("digits",), targets=("paper", "board"), trials=(0,), averages=("swad",), options=OPTIONS)


def make_sweep(folder: Path) -> tuple[SweepDir, list[RunConfig]]:
    sweep = SweepDir(folder / "sweep")
    sweep.add(dataclasses.replace(SPEC, options={**OPTIONS, "steps": 1200}))
    return sweep, sweep.configs()


SBATCH = """#!{python}
import glob, os, subprocess, sys
wrap = sys.argv[sys.argv.index("--wrap") + 1]
flags = dict(a.lstrip("-").split("=", 1) for a in sys.argv[1:] if a.startswith("--") and "=" in a)
open(os.environ["FAKE"] + "/asked", "a").write(" ".join(sys.argv[1:]) + "\\n")
first = len(glob.glob(os.environ["FAKE"] + "/job-*"))  # jobs of earlier submissions may still run
for i in range(first, first + int(flags["array"].split("-")[1]) + 1):
    log = open(flags["output"].replace("%A", "7").replace("%a", str(i)), "a")
    env = {{**os.environ, "SLURM_JOB_ID": str(i), "WRAP": wrap}}
    process = subprocess.Popen(["sh", "-c", wrap], env=env, stdout=log, stderr=log, start_new_session=True)
    open(os.environ["FAKE"] + f"/job-{{i}}", "w").write(str(process.pid))
print(7)
"""
SQUEUE = """#!{python}
import glob, os
for file in glob.glob(os.environ["FAKE"] + "/job-*"):
    try:
        state = open(f"/proc/{{open(file).read()}}/stat").read()
        if state.split(")")[1].split()[0] != "Z": print(file)
    except OSError: pass
"""
SRUN = """#!{python}
import os, subprocess, sys
flags = dict(a.lstrip("-").split("=", 1) for a in sys.argv[1:] if a.startswith("--"))
command = sys.argv[len(flags) + 1:]
open(os.environ["FAKE"] + "/srun", "w").write(" ".join(sys.argv[1:]))
tasks = []
for i in range(int(flags["ntasks"])):
    env = {{**os.environ, "SLURM_PROCID": str(i), "SLURM_LOCALID": "0"}}
    tasks.append(subprocess.Popen(command, env=env, stdin=subprocess.PIPE))
while data := os.read(0, 65536):  # each task reads what this process does
    for task in tasks:
        try: os.write(task.stdin.fileno(), data)
        except BrokenPipeError: pass
    if all(task.poll() is not None for task in tasks): break
for task in tasks: task.stdin.close()
sys.exit(max(task.wait() for task in tasks))
"""
SCONTROL = """#!{python}
import os, subprocess, sys
open(os.environ["FAKE"] + "/requeued", "a").write("x")
process = subprocess.Popen(["sh", "-c", os.environ["WRAP"]], start_new_session=True)
open(os.environ["FAKE"] + f"/job-{{sys.argv[2]}}", "w").write(str(process.pid))
"""


def install(folder: Path, monkeypatch, **programs: str):
    folder.mkdir()
    for name, text in programs.items():
        (folder / name).write_text(text.format(python=sys.executable))
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE", str(folder))
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    monkeypatch.setattr(slurm, "POLL_SECONDS", 0.3)


@pytest.mark.slow
@pytest.mark.distributed
def test_jobs_reach_their_time_limit_and_lose_a_node(tmp_path, monkeypatch):
    """Stand-ins for Slurm's commands start real processes. A job reaches its time limit, a node is lost."""
    fake = tmp_path / "fake"
    install(fake, monkeypatch, sbatch=SBATCH, squeue=SQUEUE, scontrol=SCONTROL)
    sweep, runs = make_sweep(tmp_path)
    command = [sys.executable, "-m", "swad", "sweep", "work", str(sweep.path)]
    launched = partial(
        slurm.train_on_slurm, sweep.configs, sweep.claims, command, 2, options={"partition": "gpu"}, device="cpu"
    )
    thread, result = in_thread(launched)

    def running() -> list[RunConfig]:
        return [config for config in runs if has_checkpoint(config) and not ended(config)]

    wait_until(running)
    first = running()[0]
    os.kill(process_of(first), signal.SIGUSR1)  # the time limit is near
    wait_until(lambda: (fake / "requeued").exists())
    wait_until(lambda: [config for config in running() if config is not first])
    os.kill(process_of(next(config for config in running() if config is not first)), signal.SIGKILL)  # a lost node
    thread.join(240)
    assert result == [None], [path.read_text() for path in (sweep.path / "slurm").glob("*.log")]
    assert {ended(config) for config in runs} == {"done"}
    asked = (fake / "asked").read_text()
    assert "--partition=gpu" in asked
    assert "--signal=B:USR1@300" in asked
    require_same(train(first.replace(output=tmp_path / "plain" / first.output.name)).run_dir, first.output)


@pytest.mark.slow
@pytest.mark.distributed
def test_a_run_on_several_nodes(tmp_path, monkeypatch):
    """The worker is rank 0, on the first node; srun starts the others."""
    install(tmp_path / "fake", monkeypatch, srun=SRUN)
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "3")
    run, alone = short(tmp_path / "run"), short(tmp_path / "alone")
    work_here(partial(tuple, [run]), Claims(tmp_path / "claims"), device="cpu", processes=2)
    train(alone)
    for one, two in zip(values(alone.output), values(run.output), strict=True):
        assert (*one[:5], one[6]) == (*two[:5], two[6])
        assert one[5] == pytest.approx(two[5], abs=1e-4), one
    asked = (tmp_path / "fake" / "srun").read_text()
    assert asked.startswith("--kill-on-bad-exit=1 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=3 ")


def test_a_slurm_that_refuses(tmp_path, monkeypatch):
    refuse = "#!/bin/sh\necho 'invalid partition' >&2; exit 1\n"
    install(tmp_path / "fake", monkeypatch, squeue="#!/bin/sh\n", sbatch=refuse)
    sweep, _ = make_sweep(tmp_path)
    with pytest.raises(WorkerError, match="cannot submit jobs: invalid partition"):
        slurm.train_on_slurm(sweep.configs, sweep.claims, ["true"], 2, device="cpu")


@pytest.mark.parametrize(
    ("options", "processes", "device", "asked"),
    [
        ({}, 1, "auto", ["--gpus=1", "--array=0-1", "--cpus-per-task=4"]),
        ({}, 1, "cpu", ["--array=0-1"]),
        ({"gpus_per_node": "2", "exclusive": ""}, 1, "auto", ["--gpus-per-node=2", "--exclusive", "--array=0-0"]),
        ({"gres": "gpu:a100:2", "time": "4:00:00"}, 1, "cuda", ["--gres=gpu:a100:2", "--time=4:00:00", "--array=0-0"]),
        ({}, 4, "auto", ["--nodes=1", "--ntasks-per-node=4", "--gpus-per-node=4", "--array=0-1"]),
        ({"gpus-per-node": "8"}, 4, "auto", ["--nodes=1", "--ntasks-per-node=8", "--gpus-per-node=8", "--array=0-0"]),
        ({"nodes": "2"}, 8, "auto", ["--nodes=2", "--ntasks-per-node=4", "--gpus-per-node=4", "--array=0-1"]),
    ],
)
def test_what_slurm_is_asked_for(tmp_path, monkeypatch, options, processes, device, asked):
    """The user's own options win. Jobs with several GPUs train several runs; jobs that do nothing end the command."""
    echo = '#!/bin/sh\necho "$@" >> $FAKE/asked\n'
    install(tmp_path / "fake", monkeypatch, squeue="#!/bin/sh\n", sbatch=echo)
    monkeypatch.setattr(slurm, "POLL_SECONDS", 0.01)
    sweep, _ = make_sweep(tmp_path)
    with pytest.raises(WorkerError, match=r"the jobs end before they train anything: see .*slurm"):
        slurm.train_on_slurm(
            sweep.configs, sweep.claims, ["true"], 2, options=options, processes=processes, device=device
        )
    first, *rest = (tmp_path / "fake" / "asked").read_text().splitlines()
    assert set(asked) <= set(first.split())
    assert ("--gpus=1" in first) == (asked[0] == "--gpus=1")
    assert len(rest) == slurm.MAX_SUBMISSIONS - 1


def test_a_range_of_nodes_is_refused(tmp_path):
    with pytest.raises(WorkerError, match="nodes must be a number for runs in several processes, got 2-4"):
        slurm.train_on_slurm(tuple, Claims(tmp_path / "claims"), ["true"], options={"nodes": "2-4"}, processes=4)


def test_a_machine_without_slurm(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    sweep, _ = make_sweep(tmp_path)
    with pytest.raises(WorkerError, match="there is no Slurm on this machine"):
        slurm.train_on_slurm(sweep.configs, sweep.claims, ["true"])
