from __future__ import annotations

from functools import partial
from pathlib import Path

from swad.cli._launch import LaunchOptions, _start
from swad.testbed.sweep.directory import SweepDir
from swad.testbed.workers.ray import train_on_ray
from swad.testbed.workers.slurm import train_on_slurm


def start(launcher: str, **options: str) -> partial[None]:
    started = _start(
        SweepDir(Path("s"), allow_failed=True), LaunchOptions(launcher, 3, 1, options, 4), "cpu", lambda states: None
    )
    assert isinstance(started, partial)
    return started


def test_options_are_those_of_sbatch_and_of_ray():
    slurm = start("slurm", partition="a,b", time="4:00:00")
    assert slurm.func is train_on_slurm
    assert slurm.keywords["options"] == {"partition": "a,b", "time": "4:00:00"}
    assert slurm.keywords["command"][1:] == ["-m", "swad", "sweep", "work", "s", "--allow-failed", "--processes=4"]
    ray = start("ray", address="auto", num_gpus="0.5", resources='{"fast": 1}', accelerator_type="H100")
    assert ray.func is train_on_ray
    assert (ray.keywords["address"], ray.keywords["jobs"]) == ("auto", 3)
    assert ray.keywords["options"] == {"num_gpus": 0.5, "resources": {"fast": 1}, "accelerator_type": "H100"}
    assert {start(name).keywords["processes"] for name in ("local", "slurm", "ray")} == {4}


def test_all_problems_are_listed():
    assert LaunchOptions("local", 0, 1, {"partition": "gpu"}, 0).problems() == [
        "--jobs must be 1 or more, got 0",
        "--processes must be 1 or more, got 0",
        "the launcher local has no options, got partition: use --jobs or --jobs-per-gpu",
    ]
    assert LaunchOptions("local", 5, 1).slots("cpu") == 5
    assert LaunchOptions("ray", None, 1).slots("cpu") is None
