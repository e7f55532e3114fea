"""Launchers from the texts of a command line."""

from __future__ import annotations

import importlib.util

import pytest

from helpers import SOURCE
from swad.testbed.experiments.launchers.base import LauncherError
from swad.testbed.experiments.launchers.make import LauncherConfig, option_types, parse_options


def test_every_option_is_an_argument_of_the_class():
    assert {
        "partition",
        "timeout_min",
        "cpus_per_job",
        "gpus_per_job",
        "mem_gb",
        "max_parallel",
        "runs_per_job",
    } <= set(option_types("slurm"))
    assert not {"train", "directory", "options"} & {*option_types("slurm"), *option_types("ray")}


@pytest.mark.parametrize("launcher", ["ray", "slurm"])
def test_every_option_is_documented(launcher):
    text = (SOURCE.parent / "docs" / "sweeps.md").read_text()
    assert [name for name in option_types(launcher) if f"`{name}`" not in text] == []


def test_all_problems_are_listed():
    values, problems = parse_options("ray", {"gpus": "one", "adress": "auto", "jobs": "2.5", "cpus": "2"})
    assert values == {"cpus": 2.0}
    assert problems == [
        "gpus takes a number, got 'one'",
        "the launcher ray has no option 'adress': did you mean 'address'?",
        "jobs takes a whole number, got '2.5'",
    ]
    assert parse_options("local", {"partition": "gpu"})[1] == [
        "the launcher local has no option 'partition': it takes none; use --jobs or --jobs-per-gpu"
    ]


@pytest.mark.skipif(importlib.util.find_spec("submitit") is None, reason="needs submitit")
def test_texts_become_values(tmp_path):
    options = {"cluster": "local", "mem_gb": "1.5", "timeout_min": "30", "slurm_account": "lab"}
    assert parse_options("slurm", options)[1] == []
    assert LauncherConfig("slurm", 1, 1, options).make("cpu", tmp_path).slots == 1
    with pytest.raises(LauncherError, match=r"'acount'.* Valid arguments: .*account"):  # so the others reach submitit
        LauncherConfig("slurm", 1, 1, {**options, "slurm_acount": "lab"}).make("cpu", tmp_path)
