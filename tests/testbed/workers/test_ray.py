"""Ray for real on this machine: a process killed, a machine that leaves and one that joins, options, stop."""

from __future__ import annotations

import importlib.util
import os
import signal
import threading
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from helpers.runs import require_same, short
from helpers.worker_runs import (
    configs,
    ended,
    has_checkpoint,
    in_thread,
    process_of,
    require_plain,
    train_and_tell,
    train_as_rank,
    train_slowly,
    wait_until,
)
from swad.testbed.training.config import RunConfig
from swad.testbed.workers import ray as ray_module
from swad.testbed.workers.claims import Claims
from swad.testbed.workers.local import WorkerError
from swad.util.signals import Interrupted

pytestmark = [
    pytest.mark.slow,
    pytest.mark.distributed,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray"),
]

MEMORY = {"object_store_memory": 100 * 2**20}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **MEMORY})
    cluster.add_node(num_cpus=2, resources={"fast": 2}, **MEMORY)
    yield cluster
    cluster.shutdown()


def launch(cluster: Any, folder: Path, runs: tuple[RunConfig, ...], train: Any = train_slowly, **more: Any):
    ray_module.train_on_ray(
        partial(tuple, runs), Claims(folder / "claims"), address=cluster.address, train=train, **more
    )


def test_options_are_passed_through(cluster: Any, tmp_path):
    """A task gets its resources and its environment, and a run that no machine has room for waits."""
    runs = configs(tmp_path, 2)
    options = {"resources": {"fast": 1}, "memory": 50 * 2**20, "runtime_env": {"env_vars": {"SWAD_TEST": "passed"}}}
    launch(cluster, tmp_path, runs, train_and_tell, options=options)
    seen = [(tmp_path / f"{config.output.name}.seen").read_text().split() for config in runs]
    assert [words[0] for words in seen] == ["passed"] * 2
    assert all(float(words[1]) == 1.0 for words in seen)
    assert {ended(config) for config in runs} == {"done"}


def test_options_that_ray_refuses(cluster: Any, tmp_path):
    with pytest.raises(WorkerError, match=r"Ray refuses the options of a run: .*nowhere.zip"):
        launch(cluster, tmp_path, configs(tmp_path, 1), options={"runtime_env": {"working_dir": "/nowhere.zip"}})


def test_no_record_is_lost_or_doubled(cluster: Any, tmp_path):
    runs = configs(tmp_path, 3)
    thread, result = in_thread(lambda: launch(cluster, tmp_path, runs))
    wait_until(lambda: has_checkpoint(runs[0]))
    killed = process_of(runs[0])
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: ended(runs[0]) or (process_of(runs[0]) != killed and has_checkpoint(runs[0])))
    second = cluster.add_node(num_cpus=2, **MEMORY)
    (first,) = [node for node in cluster.worker_nodes if node is not second]
    cluster.remove_node(first, allow_graceful=False)
    thread.join(240)
    assert result == [None]
    assert {ended(config) for config in runs} == {"done"}
    assert not list(tmp_path.rglob("starts.json"))
    require_plain(runs, tmp_path)


def test_the_processes_of_a_run_have_a_placement_group(cluster: Any, tmp_path):
    """Rank 1 is killed, which ends rank 0, and Ray starts both again."""
    runs = plain, disturbed = short(tmp_path / "plain", seed=1), short(tmp_path / "disturbed", seed=1)
    for step, rank in product((10, 18), (0, 1)):
        (tmp_path / f"disturbed.{step}-{rank}").touch()  # nothing happens there
    launch(cluster, tmp_path, runs, train_as_rank, processes=2)  # one after another: there is room for one group
    require_same(plain.output, disturbed.output)
    assert (tmp_path / "disturbed.14-1").exists()
    assert not list(tmp_path.rglob("starts.json"))


def test_stop_leaves_resumable_runs(cluster: Any, tmp_path):
    runs = configs(tmp_path, 3, steps=400)

    def stop():
        wait_until(lambda: any(has_checkpoint(config) for config in runs))
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop, daemon=True).start()
    with pytest.raises(Interrupted):
        launch(cluster, tmp_path, runs)
    assert Claims(tmp_path / "claims").held() == {}
    assert any(has_checkpoint(config) for config in runs)
    assert not list(tmp_path.rglob("failure.json"))


def test_a_machine_that_does_not_share_the_directory(cluster: Any, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_module, "_train_one", _elsewhere)
    with pytest.raises(WorkerError, match=r"does not see .* as this machine does"):
        launch(cluster, tmp_path, configs(tmp_path, 1))


def _elsewhere(config: RunConfig, claims: Claims, *rest: Any) -> str:
    from swad.testbed.workers import ray as module

    module.SHARE_SECONDS = 0.1
    return module._train_one(config, Claims(Path("/nowhere/claims")), *rest)


def test_no_cluster():
    with pytest.raises(WorkerError, match="cannot connect to the Ray cluster at"):
        ray_module.start_ray("127.0.0.1:1")
