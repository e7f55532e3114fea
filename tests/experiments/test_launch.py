"""Runs side by side: their share of the machine, and whether a GPU has room for one more."""

from __future__ import annotations

import os

import pytest
import torch

from swad.experiments import launch
from swad.util.cpu import available_cores


def test_room_is_asked_of_the_runs_own_gpu(monkeypatch):
    memory = {"cuda:0": (1, 100), "cuda:1": (60, 100)}
    monkeypatch.setattr(torch.cuda, "mem_get_info", memory.__getitem__)
    assert not launch._another_fits(1, "cuda:0")
    assert launch._another_fits(1, "cuda:1")


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity on this system")
def test_cores_are_those_this_process_may_run_on(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 7})
    assert available_cores() == 3
    assert [launch._threads(n) for n in (1, 2, 3, 8)] == [3, 1, 1, 1]
    monkeypatch.delattr(os, "sched_getaffinity")
    assert available_cores() == os.cpu_count()
