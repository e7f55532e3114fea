"""Runs in several processes: the numbers of one, and one rule for whatever disturbs a rank."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from helpers import few_digits
from helpers.runs import require_same, short, values
from helpers.worker_runs import ended, has_checkpoint, is_gone, start_quickly, train_as_rank
from swad.testbed.data.benchmarks import digits
from swad.testbed.results.failures import read_failure
from swad.testbed.training.config import RunConfig
from swad.testbed.training.loop import train
from swad.testbed.workers import local
from swad.testbed.workers.claims import Claims
from swad.testbed.workers.ranks import RankProcess, in_ranks
from swad.testbed.workers.work import work
from swad.util.signals import Interrupted

pytestmark = [pytest.mark.slow, pytest.mark.distributed]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, quick_workers) -> None:
    monkeypatch.setattr(digits, "render", few_digits.render)


def launch(folder: Path, run: RunConfig, **options: Any):
    """Train a run in two processes, of which rank 0 is a worker of its own."""
    local.train_locally(partial(tuple, [run]), Claims(folder / "claims"), 1, device="cpu", **options)


def work_here(folder: Path, run: RunConfig):
    """Train a run in two processes, of which this one is rank 0."""
    work(partial(tuple, [run]), Claims(folder / "claims"), in_ranks(train_as_rank, 2, start=start_quickly))


def test_the_numbers_of_one_process_and_the_same_bits_whatever_ends_a_rank(tmp_path):
    alone, plain, disturbed = (short(tmp_path / name, seed=1) for name in ("alone", "plain", "disturbed"))
    train(alone)
    work_here(tmp_path, plain)
    for one, two in zip(values(alone.output), values(plain.output), strict=True):
        assert (*one[:5], one[6]) == (*two[:5], two[6])
        assert one[5] == pytest.approx(two[5], abs=1e-4), one
    assert (alone.output / "config.json").read_text() == (plain.output / "config.json").read_text()

    with pytest.raises(Interrupted, match="from step 12"):
        work_here(tmp_path, disturbed)
    assert has_checkpoint(disturbed)
    assert not (disturbed.output / "starts.json").exists()
    launch(tmp_path, disturbed, processes=2, train=train_as_rank)
    assert read_failure(disturbed.output) is None
    require_same(plain.output, disturbed.output)
    assert is_gone(int((tmp_path / "disturbed.18-1").read_text()))
    assert "RANK" not in os.environ


def test_ranks_that_srun_starts_take_no_rank_from_around_the_worker(monkeypatch):
    """Each would be that rank, and the run would wait for the others for ever."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("LOCAL_RANK", "0")
    code = "import os, sys; sys.exit('RANK' in os.environ or 'LOCAL_RANK' in os.environ)"
    assert RankProcess([sys.executable, "-c", code], None).wait() == 0
    assert RankProcess([sys.executable, "-c", code], None, RANK="1").wait() == 1


def test_an_error_of_one_rank_is_that_of_the_run(tmp_path):
    fails, hangs = (short(tmp_path / name) for name in ("fails", "hangs"))
    work_here(tmp_path, fails)
    launch(tmp_path, hangs, train=in_ranks(train_as_rank, 2, start=start_quickly))
    for run in (fails, hangs):
        assert ended(run) == "failed"
        failure = read_failure(run.output)
        assert failure.error == "rank 1: ArithmeticError: no memory is left"
        assert "in disturbed" in "".join(failure.lines)
        assert failure.attempts == 1
