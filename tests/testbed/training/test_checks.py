"""Checks of settings against the machine."""

from __future__ import annotations

import pytest
import torch

from swad.testbed.measure.saved_run import find_device
from swad.testbed.training.checks import device_problem
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
