"""DDP, FSDP2 and distributed checkpoints on real gloo processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from helpers import HELPERS

WORKER = HELPERS / "distributed_worker.py"


def launch(scenario: str, folder: Path, world: int = 2) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    processes = []
    for rank in range(world):
        env = os.environ | {
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, str(WORKER), scenario, str(folder)]
        processes.append(
            subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output
        assert "done" in output


def test_ddp_ranks_hold_the_average_of_one_process(tmp_path):
    launch("ddp", tmp_path)
    one, two = (torch.load(tmp_path / f"ddp{rank}.pt", weights_only=True) for rank in (0, 1))
    for name in one:
        assert torch.equal(one[name], two[name])


def test_fsdp2_averages_each_shard_where_it_is(tmp_path):
    launch("fsdp", tmp_path)


def test_a_distributed_checkpoint_loads_on_another_number_of_processes(tmp_path):
    launch("checkpoint", tmp_path)
    launch("resumed", tmp_path, world=2)
    launch("resumed", tmp_path, world=1)


def test_a_feed_goes_through_a_distributed_checkpoint(tmp_path):
    launch("feed_checkpoint", tmp_path)


@pytest.mark.parametrize("scenario", ["disagree", "feed_disagrees"])
def test_ranks_that_disagree_about_the_loss_raise(tmp_path, scenario):
    launch(scenario, tmp_path)


@pytest.mark.parametrize("kill_after", [7, 23])
def test_a_killed_training_goes_on_to_the_last_bit(tmp_path, kill_after):
    """kill -9 in the middle of a segment, resume from the last checkpoint: same weights, same average."""
    script = HELPERS / "killed_training.py"
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"

    def train(folder, *extra):
        return subprocess.run([sys.executable, str(script), str(folder), *extra], capture_output=True, text=True)

    result = train(unbroken)
    assert result.returncode == 0, result.stderr
    assert train(broken, str(kill_after)).returncode == -9
    result = train(broken)
    assert result.returncode == 0, result.stderr
    assert "resumed" in result.stdout
    one, two = (torch.load(folder / "final.pt", weights_only=True) for folder in (unbroken, broken))
    for part in ("model", "average"):
        for name in one[part]:
            assert torch.equal(one[part][name], two[part][name]), (part, name)
    assert one["spans"] == two["spans"]
