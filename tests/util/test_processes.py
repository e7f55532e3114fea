"""The number of cores that this process may use."""

import os

from swad.util.processes import available_cores


def test_cores_are_those_this_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 7})
    assert available_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    assert available_cores() == os.cpu_count()
