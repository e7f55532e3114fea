"""Several runs at a time: their share of the cores."""

from __future__ import annotations

import os

import pytest

from swad.experiments import launch
from swad.util.cpu import available_cores


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity on this system")
def test_cores_are_those_this_process_may_run_on(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 7})
    assert available_cores() == 3
    assert [launch.threads_per_run(n) for n in (1, 2, 3, 8)] == [3, 1, 1, 1]
    monkeypatch.delattr(os, "sched_getaffinity")
    assert available_cores() == os.cpu_count()
