"""Failures that a user can act on end in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from helpers.commands import environment
from helpers.forked import run
from helpers.runs import short
from swad.testbed import algorithms
from swad.testbed.algorithms import erm
from swad.testbed.data.images import read_ahead
from swad.testbed.training import errors
from swad.testbed.training.loop import RunError, train

FAULTY = """
from swad.testbed.algorithms.erm import ERM


class Faulty(ERM):
    def loss(self, batch, noise):
        rows = {"images": batch.images}
        return rows["pixels"].mean()


ALGORITHM = Faulty
"""


@pytest.fixture
def faulty(tmp_path) -> Path:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "faulty.py").write_text(FAULTY)
    return tmp_path / "own" / "faulty.py"


def test_an_error_in_an_own_algorithm_names_its_line(tmp_path, monkeypatch, faulty):
    monkeypatch.setattr(algorithms, "__path__", [*algorithms.__path__, str(faulty.parent)])
    with pytest.raises(RunError) as caught:
        train(short(tmp_path / "run", algorithm="faulty"))
    place = f"({faulty}, line 8, in loss); set SWAD_TRACEBACK=1 to see the traceback"
    assert str(caught.value) == f"faulty failed with KeyError: 'pixels' {place}"


@pytest.mark.slow
def test_an_error_in_a_process_of_a_command_is_one_line(tmp_path, faulty):
    command = ["-m", "swad", "train", "digits", "-t", "paper", "-t", "board", "--algorithm", "faulty", "--steps", "4"]
    command += ["--jobs", "2", "-o", str(tmp_path / "runs")]
    ended = run(command, env=environment() | {"SWAD_ALGORITHMS": str(faulty.parent)})
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert f"faulty failed with KeyError: 'pixels' ({faulty}, line 8, in loss); set SWAD_TRACEBACK=1" in line


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "lower batch_size (it is 8)"),
        (MemoryError(), "out of memory on the host; lower batch_size"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), "out of memory on the"),
        (
            RuntimeError("DataLoader worker (pid 5) is killed by signal: Killed."),
            "lower workers (--workers) or",
        ),
    ],
)
def test_a_lack_of_memory_is_one_line_with_advice(tmp_path, monkeypatch, error, advice):
    def fail(*arguments):
        raise error

    monkeypatch.setattr(erm.ERM, "loss", fail)
    with pytest.raises(RunError) as caught:
        train(short(tmp_path / "run"))
    assert advice in str(caught.value)
    assert str(tmp_path / "run") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_lost_rank_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    error = RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4711")
    explained = errors.explain(error, short(tmp_path / "run"), erm.ERM)
    assert "another process of this run ended, so rank 0 stops" in str(explained)


def test_a_worker_that_fails_is_not_called_killed(tmp_path):
    def fail(key: int) -> int:
        raise TypeError(f"no image {key}")

    with pytest.raises(TypeError) as caught:
        list(read_ahead(fail, [3], 1, torch.device("cpu")))
    explained = str(errors.explain(caught.value, short(tmp_path / "run"), erm.ERM))
    assert explained.endswith("loading images failed with TypeError: no image 3; SWAD_TRACEBACK=1 shows where")
    killed = RuntimeError("DataLoader worker (pid 123) is killed by signal: Killed. ")
    assert "was killed, probably because memory ran out" in str(errors.explain(killed, short(tmp_path), erm.ERM))


def test_other_errors_stay_as_they_are(tmp_path):
    for error in (KeyError("x"), RunError("one line")):
        assert errors.explain(error, short(tmp_path / "run"), erm.ERM) is None
