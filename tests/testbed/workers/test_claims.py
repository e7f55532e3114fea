"""No two workers train one run, on a file system without locks: killed, stopped and skewed workers, real trainings."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from helpers import forked
from helpers.worker_runs import WRITES, configs, ended, has_checkpoint, require_plain, start, wait_until
from swad.testbed.training.config import RunConfig
from swad.testbed.workers import claims as c
from swad.testbed.workers.claims import ClaimLostError, Claims, Watcher

SLOW = pytest.mark.slow


def is_stopped(process: forked.Process) -> bool:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def claim_of(folder: Path, config: RunConfig, number: int) -> Path:
    claims = Claims(folder / "claims")
    return claims.path(claims.name(config.output), number)


def require_end(*workers: forked.Process):
    for worker in workers:
        out, err = worker.communicate(timeout=120)
        assert worker.returncode == 0, (out, err)


def take_all(root: Path, taken: Path):
    claims = Claims(root)
    for i in range(300):
        if claims.take(f"{i % 16:x}{i:011}") is not None:
            with taken.open("a") as file:
                file.write(f"{i}\n")


def test_one_of_many_gets_a_claim(tmp_path):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=take_all, args=(tmp_path / "claims", tmp_path / "taken")) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert sorted(int(line) for line in (tmp_path / "taken").read_text().split()) == list(range(300))


def test_a_claim_is_taken_over_once_and_its_owner_notices(tmp_path):
    claims = Claims(tmp_path / "claims")
    first = claims.take("0a")
    assert first is not None
    assert claims.take("0a") is None
    content = first.path.read_bytes()
    second, late = claims.take("0a", 1, content), claims.take("0a", 1, content)
    assert second is not None
    assert late is None
    with pytest.raises(ClaimLostError):
        first.require()
    first.release()  # must not remove what belongs to the other
    second.require()
    second.release()
    assert claims.marks("0") == {}


def test_an_owner_that_returned_in_time_keeps_its_claim(tmp_path):
    claims = Claims(tmp_path / "claims")
    claim = claims.take("0a")
    seen = claim.path.read_bytes()
    claim._write_beat()
    assert claims.take("0a", 1, seen) is None
    claim.require()


def test_an_old_observer_does_not_take_what_others_used_meanwhile(tmp_path):
    """It saw the first claim, was stopped for long, and tries to follow it when the third is held or the run ended."""
    claims = Claims(tmp_path / "claims")
    first = claims.take("0a")
    seen = first.path.read_bytes()
    second = claims.take("0a", 1, seen)
    third = claims.take("0a", 2, second.path.read_bytes())
    assert claims.take("0a", 1, seen) is None
    assert claims.take("0a") is None
    third.require()
    third.end(c.DONE)
    third.release()
    assert claims.take("0a", 1, seen) is None
    assert claims.take("0a") is None
    assert claims.marks("0") == {"0a": c.DONE}


def test_liveness_counts_looks(tmp_path, monkeypatch):
    """Neither the clock of the day nor a long pause of the observer makes a claim stale."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    path, watcher = tmp_path / "0a.1", Watcher()
    path.write_bytes(b"1")
    assert watcher.is_alive(path)[0] is None
    now[0] = 1e6  # one look, however late
    os.utime(path, (0, 0))
    assert watcher.is_alive(path)[0] is None
    path.write_bytes(b"2")
    assert watcher.is_alive(path)[0] is True
    looks = []
    for _ in range(c.LOOKS):
        now[0] += c.BEAT
        looks.append(watcher.is_alive(path)[0])
    assert looks == [None] * (c.LOOKS - 1) + [False]


@SLOW
@pytest.mark.parametrize("flock", [True, False])
def test_a_killed_worker_is_followed(tmp_path, flock: bool):
    runs = configs(tmp_path, 1)
    first = start(tmp_path, flock=flock)
    wait_until(lambda: has_checkpoint(runs[0]))
    first.kill()
    first.communicate()
    require_end(start(tmp_path, flock=flock))
    assert ended(runs[0]) == "done"
    require_plain(runs, tmp_path)


@SLOW
def test_killed_in_the_middle_of_a_claim(tmp_path):
    runs = configs(tmp_path, 1)
    first = start(tmp_path, die_at="claim")
    first.communicate(timeout=60)
    assert first.returncode == -signal.SIGKILL
    assert claim_of(tmp_path, runs[0], 1).read_bytes() == b""
    require_end(start(tmp_path), start(tmp_path))
    assert ended(runs[0]) == "done"
    require_plain(runs, tmp_path)


@SLOW
@pytest.mark.parametrize("returns", ["while the other trains", "when the other has finished"])
def test_a_stopped_owner_writes_nothing_more(tmp_path, returns: str):
    """SIGSTOP for longer than the stale limit, then SIGCONT."""
    runs = configs(tmp_path, 1)
    first = start(tmp_path)
    wait_until(lambda: has_checkpoint(runs[0]))
    os.kill(first.pid, signal.SIGSTOP)
    second = start(tmp_path)
    wait_until(lambda: claim_of(tmp_path, runs[0], 2).exists() and not claim_of(tmp_path, runs[0], 1).exists())
    before = (tmp_path / WRITES).read_text().count(f"{first.pid} ")
    if returns == "when the other has finished":
        require_end(second)
    os.kill(first.pid, signal.SIGCONT)
    require_end(first, second)
    assert (tmp_path / WRITES).read_text().count(f"{first.pid} ") == before
    assert ended(runs[0]) == "done"
    require_plain(runs, tmp_path)


@SLOW
@pytest.mark.parametrize("where", ["records", "create", "rename"])
def test_an_owner_stopped_in_the_middle_of_a_write(tmp_path, where: str):
    """The fence allowed the write; then the process stands still, the other follows, and the write continues."""
    runs = configs(tmp_path, 1)
    first = start(tmp_path, stop_at=where)
    wait_until(lambda: is_stopped(first))
    second = start(tmp_path)
    wait_until(lambda: has_checkpoint(runs[0]) and claim_of(tmp_path, runs[0], 2).exists())
    wait_until(lambda: f"{second.pid} {runs[0].output / 'records.jsonl'}" in (tmp_path / WRITES).read_text())
    os.kill(first.pid, signal.SIGCONT)
    require_end(first, second)
    assert ended(runs[0]) == "done"
    require_plain(runs, tmp_path)


@SLOW
def test_clocks_may_differ(tmp_path):
    """Three machines, one an hour ahead and one an hour behind: no run is trained twice."""
    runs = configs(tmp_path, 4)
    require_end(*(start(tmp_path, 4, skew=skew, beat=2.0, train="train_and_log") for skew in (0, 3600, -3600)))
    assert Counter((tmp_path / "starts.log").read_text().split()) == {config.output.name: 1 for config in runs}
    assert {ended(config) for config in runs} == {"done"}


@SLOW
@pytest.mark.parametrize("skew", [3600, -3600])
def test_a_dead_owner_is_found_by_another_clock(tmp_path, skew: float):
    runs = configs(tmp_path, 1)
    first = start(tmp_path, skew=skew)
    wait_until(lambda: has_checkpoint(runs[0]))
    first.kill()
    first.communicate()
    require_end(start(tmp_path))
    require_plain(runs, tmp_path)
