"""Checks of settings against the machine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from helpers.runs import short
from swad.testbed.measure.saved_run import find_device
from swad.testbed.training.checks import device_problem, require_processes
from swad.testbed.training.config import ConfigError
from swad.testbed.training.resolve import resolve
from swad.testbed.training.run_dir import RunError

BACKENDS = ("mps", "xpu", "meta", "hpu", "mtia", "vulkan", "xla", "privateuseone", "ipu", "lazy", "cuda:99")


@pytest.mark.parametrize("name", [*BACKENDS, "toaster", "", "cpu:-1", "cuda:x", "mps:3"])
def test_a_device_that_this_machine_lacks_is_one_line(name: str) -> None:
    if name == "mps" and torch.backends.mps.is_available():
        pytest.skip("this machine has it")
    problem = device_problem(name)
    assert problem is not None
    assert problem.startswith("device ")
    assert repr(name) in problem
    assert "\n" not in problem
    with pytest.raises(RunError) as refused:
        find_device(name)
    assert str(refused.value) == problem


def test_a_gpu_of_a_number_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device_problem("cuda") is device_problem("cuda:1") is device_problem("auto") is device_problem("cpu") is None
    assert device_problem("cuda:2") == "device is 'cuda:2', but torch finds 2 GPUs: use cuda:0 to cuda:1"


def test_runs_that_need_fewer_processes_are_listed_once() -> None:
    runs = [short(Path("a"), keep_segments=True), short(Path("b"), keep_segments=True), short(Path("c"))]
    runs.append(resolve(short(Path("d"), hyperparameters={"batch_size": 9})))
    require_processes(runs, 1)
    with pytest.raises(ConfigError) as refused:
        require_processes(runs, 2)
    assert list(refused.value.problems) == [
        "keep_segments needs a single process, got 2: turn it off or use one",
        "batch_size must be a multiple of the 2 processes, got 9: change one of them",
    ]
    with pytest.raises(ConfigError, match="device cuda:1 is one GPU, got 2 processes: use cuda"):
        require_processes([short(Path("d"), device="cuda:1")], 2)
    with pytest.raises(ConfigError, match="multiple of the 5 processes, got 32"):  # the default
        require_processes([short(Path("e"), hyperparameters={})], 5)
