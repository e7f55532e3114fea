"""Several processes give the numbers of one."""

from __future__ import annotations

import json
import socket

import pytest
import torch

from helpers.runs import short, start_worker, values, weights
from swad.training.loop import train


@pytest.mark.distributed
def test_two_processes_give_the_numbers_of_one(tmp_path):
    changes = {"hyperparameters": {"batch_size": 8, "dropout": 0.5, "lr": 1e-4}, "snapshots": [1, 4]}
    train(short(tmp_path / "one", **changes))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    workers = [start_worker(tmp_path / "two", changes, RANK=str(rank), **world) for rank in range(2)]
    outs = [worker.communicate(timeout=90) for worker in workers]
    assert all(worker.returncode == 0 for worker in workers), outs
    first, second = (json.loads(out.splitlines()[-1]) for out, _ in outs)
    for key in ("scores", "ranges", "weights", "steps"):
        assert first[key] == second[key]
    one, two = values(tmp_path / "one"), values(tmp_path / "two")
    assert [(*row[:5], row[6]) for row in one] == [(*row[:5], row[6]) for row in two]
    for mine, theirs in zip(one, two, strict=True):
        assert mine[5] == pytest.approx(theirs[5], abs=1e-5), mine
    for name, tensors in weights(tmp_path / "one").items():
        for key, tensor in tensors.items():
            torch.testing.assert_close(weights(tmp_path / "two")[name][key], tensor, rtol=0, atol=1e-5)
