"""Ray for real, on this machine: workers killed, a machine that leaves and one that joins, runs that stop."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

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
from helpers.runs import short
from swad.testbed.experiments.launchers import ray as ray_module
from swad.testbed.experiments.launchers.base import LauncherError, Task
from swad.testbed.experiments.launchers.ray import RayLauncher, import_ray
from swad.testbed.training.loop import train

pytestmark = [
    pytest.mark.slow,
    pytest.mark.distributed,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray"),
]


MEMORY = {"object_store_memory": 100 * 2**20}


@pytest.fixture(scope="module")
def cluster() -> Iterator[object]:
    """A head without CPUs, so that runs are on machines that can leave, and one machine."""
    import_ray()
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **MEMORY})
    cluster.add_node(num_cpus=2, **MEMORY)
    yield cluster
    cluster.shutdown()


def test_no_record_is_lost_or_doubled(cluster, tmp_path, capfd):
    """SIGKILL of a worker in mid-run, then its machine is removed in mid-run and another one added."""
    launched = tasks(tmp_path, 3)
    with RayLauncher(tmp_path, cluster.address, train=train_slowly) as launcher:
        launcher.submit(launched[:2])
        launcher.submit(launched[2:])
        assert launcher.slots == 2
        wait_until(lambda: has_checkpoint(launched[0]))
        killed = process_of(launched[0])
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: process_of(launched[0]) != killed and has_checkpoint(launched[0]))
        second = cluster.add_node(num_cpus=2, **MEMORY)
        (first,) = [node for node in cluster.worker_nodes if node is not second]
        cluster.remove_node(first, allow_graceful=False)
        outcomes = wait_for_all(launcher, 3)
    assert {outcome.status for outcome in outcomes.values()} == {"finished"}
    assert not list(tmp_path.rglob("starts.json"))
    require_plain_records(launched, tmp_path / "plain")
    printed = "".join(capfd.readouterr())
    assert "raylet" not in printed
    assert "worker" not in printed


def test_stop_leaves_resumable_runs(cluster, tmp_path):
    launched = tasks(tmp_path, 4, steps=400)
    with RayLauncher(tmp_path, cluster.address, train=train_slowly) as launcher:
        launcher.submit(launched)
        wait_until(lambda: has_checkpoint(launched[0]))
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            launcher.wait()
        launcher.stop()
        outcomes = wait_for_all(launcher, 4)
    assert {outcome.status for outcome in outcomes.values()} == {"interrupted"}
    assert has_checkpoint(launched[0])
    assert not list(tmp_path.rglob("failure.json"))


def test_a_machine_that_does_not_share_the_directory(cluster, tmp_path):
    with RayLauncher(tmp_path, cluster.address, share_seconds=0.1) as launcher:
        for path in Path(tmp_path).glob(".shared-*"):
            path.unlink()
        launcher.submit(tasks(tmp_path, 1))
        with pytest.raises(LauncherError, match=f"does not see {tmp_path} as this machine does"):
            launcher.wait()


def test_starts_count_until_records_grow(tmp_path, monkeypatch):
    assert [ray_module._count_start(tmp_path, "a") for _ in range(3)] == [1, 2, 3]
    (tmp_path / "records.jsonl").write_text("a line")
    assert [ray_module._count_start(tmp_path, "a") for _ in range(2)] == [1, 2]
    assert ray_module._count_start(tmp_path, "b") == 1, "an earlier command that was killed must not count"
    assert ray_module._count_start(tmp_path, tmp_path.name) == 1
    assert ray_module._count_start(tmp_path, tmp_path.name) == 2
    monkeypatch.setattr(ray_module, "MAX_STARTS", 2)
    options = ray_module._WorkerOptions(tmp_path, tmp_path, 1, None, 0)
    monkeypatch.chdir(tmp_path)
    outcome = ray_module._work(Task("a", short(tmp_path)), options)
    assert (outcome.status, "2 times in a row without a new record" in outcome.message) == ("failed", True)
    assert not (tmp_path / "starts.json").exists()


LAUNCH = """
import sys
from swad.testbed.experiments.launchers.ray import RayLauncher
from helpers.launched_runs import tasks, train_slowly
if __name__ == "__main__":
    with RayLauncher(sys.argv[1], train=train_slowly, jobs=1) as launcher:
        launcher.submit(tasks(__import__("pathlib").Path(sys.argv[1]), 1, steps=100))
        while True:
            launcher.wait(5)
"""


def processes_with(text: str) -> list[str]:
    """The processes in whose environment a text is."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            found += [path.parent.name] * (text in path.read_text(errors="replace"))
    return found


def test_what_a_killed_launcher_left_is_removed_by_the_next(tmp_path):
    """Its processes, its marker, and at the end of the run its count of starts."""
    (task,) = tasks(tmp_path, 1, steps=100)
    process = start_python(LAUNCH, str(tmp_path))
    wait_until(lambda: has_checkpoint(task))
    (marker,) = tmp_path.glob(".shared-*")
    mark = f"{ray_module.LAUNCHER}={marker.name.removeprefix('.shared-')}"
    process.kill()
    process.communicate()
    assert processes_with(mark), "the dashboard agent lives on"
    with RayLauncher(tmp_path, train=train_slowly, jobs=1):
        assert not marker.exists()
        wait_until(lambda: not processes_with(mark), 5)
    assert (task.config.output / "starts.json").exists()
    train(task.config)
    assert not (task.config.output / "starts.json").exists()
    assert not list(tmp_path.glob(".shared-*"))


def test_bad_arguments(tmp_path):
    with pytest.raises(ValueError, match="got cpus=0"):
        RayLauncher(tmp_path, cpus=0)
    with pytest.raises(LauncherError, match="cannot connect to the Ray cluster at"):
        RayLauncher(tmp_path, "127.0.0.1:1")
