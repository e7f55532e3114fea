"""Several processes give the numbers of one."""

from __future__ import annotations

import json
import threading
from itertools import permutations

import pytest
import torch
from pandas.testing import assert_frame_equal

from helpers import HELPERS
from helpers.forked import run_ranks
from helpers.runs import short, values, weights
from swad.testbed.results.predictions import read_predictions
from swad.testbed.training import distributed, loop
from swad.testbed.training.distributed import Dist, in_main_process, launched, process_group
from swad.testbed.training.loop import RunError, train


@pytest.mark.slow
@pytest.mark.distributed
def test_two_processes_give_the_numbers_of_one(tmp_path):
    changes = {"hyperparameters": {"batch_size": 8, "dropout": 0.5, "lr": 1e-4}, "snapshots": [1, 4], "clip": 1.0}
    train(short(tmp_path / "one", **changes))
    resumed = {**changes, "interrupt_at": 10, "checkpoint_every": None}
    runs = [tmp_path / "two", json.dumps(changes), tmp_path / "resumed", json.dumps(resumed)]
    outs = run_ranks([HELPERS / "run_worker.py", *runs])
    for line in (-2, -1):
        first, second = (json.loads(out.splitlines()[line]) for out in outs)
        for key in ("scores", "ranges", "weights", "steps"):
            assert first[key] == second[key]
    one, alone = values(tmp_path / "one"), weights(tmp_path / "one")
    for folder in (tmp_path / "two", tmp_path / "resumed"):
        two = values(folder)
        assert [(*row[:5], row[6]) for row in one] == [(*row[:5], row[6]) for row in two]
        for mine, theirs in zip(one, two, strict=True):
            assert mine[5] == pytest.approx(theirs[5], abs=1e-5), mine
        predictions = [read_predictions(run).drop(columns=["prediction"]) for run in (tmp_path / "one", folder)]
        assert_frame_equal(*predictions, check_exact=False, rtol=0, atol=1e-4)
        for name, tensors in alone.items():
            for key, tensor in tensors.items():
                torch.testing.assert_close(weights(folder)[name][key], tensor, rtol=0, atol=1e-5)


@pytest.mark.parametrize("variables", [{"RANK": "3"}, {"RANK": "2"}, {"RANK": "-1"}, {"RANK": "first"}, {}])
def test_a_rank_that_nobody_waits_for_is_refused(variables, tmp_path, monkeypatch):
    """Joined by such a rank, a group of two would wait for half an hour."""
    monkeypatch.delenv("RANK", raising=False)
    for name, value in {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", **variables}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RunError, match=f"RANK must be from 0 to WORLD_SIZE - 1, got RANK={variables.get('RANK', '')} "):
        train(short(tmp_path))


def test_a_rank_alone_does_not_make_several_processes(monkeypatch):
    """Some schedulers set RANK for every job."""
    monkeypatch.setenv("RANK", "3")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert launched() == (0, 1)
    assert in_main_process()


def test_a_process_says_that_it_waits_for_the_others(monkeypatch, capfd):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(distributed, "WAIT_SECONDS", 0.01)

    def wait_in_vain(backend):
        for timer in filter(lambda thread: isinstance(thread, threading.Timer), threading.enumerate()):
            timer.join()
        raise torch.distributed.DistStoreError("timed out after 1800s")

    monkeypatch.setattr(torch.distributed, "init_process_group", wait_in_vain)
    with pytest.raises(RunError, match="rank 0 cannot join the 2 processes"):
        process_group("cpu").__enter__()
    assert "rank 0 is waiting for all 2 processes at 127.0.0.1:29511" in capfd.readouterr().err


def test_tensors_of_several_types_are_averaged_in_their_order(monkeypatch):
    """Every process must send the same messages; the order of a set differs between processes."""
    sent = []
    monkeypatch.setattr(Dist, "sum", lambda _, tensor: sent.append(tensor.dtype) or tensor)
    for dtypes in permutations((torch.float32, torch.float64, torch.float16)):
        sent.clear()
        Dist(torch.device("cpu"), 0, 2).average([torch.ones(1, dtype=dtype) for dtype in dtypes])
        assert tuple(sent) == dtypes


def test_collectives_of_a_single_process_change_nothing():
    with process_group("cpu") as dist:
        rows = torch.arange(6.0).reshape(6, 1)
        assert (dist.is_main, dist.rank, dist.world_size) == (True, 0, 1)
        assert dist.sum(rows) is rows
        assert dist.gather(3, rows) is rows
        assert dist.local_shard(3, rows) is rows
        assert dist.broadcast("text") == "text"
        assert [dist.any(flag) for flag in (False, True)] == [False, True]
        dist.barrier()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_shard_has_the_same_part_of_every_group(rank):
    dist = Dist(torch.device("cpu"), rank, 2)
    rows = torch.arange(12).reshape(12, 1)  # 3 domains of 4 images
    start = 2 * rank
    assert dist.local_shard(3, rows).flatten().tolist() == [
        start,
        start + 1,
        start + 4,
        start + 5,
        start + 8,
        start + 9,
    ]


@pytest.mark.parametrize("error", [OSError("no space left"), KeyboardInterrupt()], ids=repr)
def test_other_processes_learn_of_any_error_of_the_main_process(error, tmp_path, monkeypatch):
    """The others wait for the broadcast: without it they would wait for ever."""
    sent = []

    def fail(config):
        raise error

    monkeypatch.setattr(loop, "RunDir", fail)
    monkeypatch.setattr(Dist, "broadcast", lambda self, text: sent.append(text) or text)
    with pytest.raises(type(error)) as raised:
        train(short(tmp_path / "run"))
    assert raised.value is error
    assert sent == [str(error) or "KeyboardInterrupt"]


@pytest.mark.parametrize(
    ("problem", "error"), [("no space left", RunError), ("KeyboardInterrupt", KeyboardInterrupt), (None, None)]
)
def test_a_process_that_waits_for_the_main_one_raises_its_error(problem, error, monkeypatch):
    monkeypatch.setattr(Dist, "broadcast", lambda self, value: problem)
    dist = Dist(torch.device("cpu"), 1, 2)
    if error is None:
        assert dist.call_in_main(lambda: pytest.fail("not here"), RunError) is None
        return
    with pytest.raises(error) as raised:
        dist.call_in_main(lambda: pytest.fail("not here"), RunError)
    assert str(raised.value) == ("" if error is KeyboardInterrupt else problem)
