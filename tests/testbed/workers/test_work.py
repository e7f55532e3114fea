"""A worker in this process: its files, whatever happens to the run."""

from __future__ import annotations

import signal
from functools import partial

import pytest

from helpers.runs import crash_at, interrupt_at, require_same, short
from swad.testbed.results.failures import read_failure, retry_failed
from swad.testbed.results.records import RecordWriter, lock_run_directory
from swad.testbed.training.loop import RunError, train
from swad.testbed.workers import claims as c
from swad.testbed.workers import work as module
from swad.testbed.workers.claims import Claims
from swad.testbed.workers.work import State, attempt, describe, read_states, refresh, work
from swad.util.signals import Interrupted


def work_on(folder, *runs, train=None):
    """Work, and return the states of the runs."""
    claims = Claims(folder / "claims")
    refresh(runs, claims)
    work(partial(tuple, runs), claims, train)
    return list(read_states(runs, claims).values())


def test_a_finished_run_has_the_files_of_a_plain_one(tmp_path):
    run = short(tmp_path / "a")
    assert work_on(tmp_path, run) == [State.DONE]
    require_same(tmp_path / "a", train(short(tmp_path / "b")).run_dir)
    assert work_on(tmp_path, run, train=lambda config: pytest.fail("it is finished")) == [State.DONE]


def test_a_failure_is_kept_until_success_and_counts_attempts(tmp_path):
    run = short(tmp_path / "a")
    assert work_on(tmp_path, run, train=partial(train, callback=crash_at(10))) == [State.FAILED]
    assert work_on(tmp_path, run, train=lambda config: pytest.fail("it failed")) == [State.FAILED]
    retry_failed(run.output)
    assert work_on(tmp_path, run, train=partial(train, callback=crash_at(20))) == [State.FAILED]
    failure = read_failure(run.output)
    assert (failure.error, failure.attempts) == ("ZeroDivisionError: division by zero", 2)
    assert "1 / 0" in "".join(failure.lines)
    retry_failed(run.output)
    assert work_on(tmp_path, run) == [State.DONE]
    assert read_failure(run.output) is None
    assert not list(run.output.glob("failure*"))


def test_bad_settings_fail_in_one_line(tmp_path):
    run = short(tmp_path / "a", steps=0, algorithm="ermm")
    assert work_on(tmp_path, run) == [State.FAILED]
    error = read_failure(run.output).error
    assert "steps" in error
    assert "ermm" in error


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_resumes(tmp_path, signum):
    run = short(tmp_path / "a")
    with pytest.raises(Interrupted, match="step 10"):
        work_on(tmp_path, run, train=partial(train, callback=interrupt_at(10, signum)))
    assert read_failure(run.output) is None
    assert not (run.output / "starts.json").exists()
    assert Claims(tmp_path / "claims").all_marks() == {}
    assert work_on(tmp_path, run) == [State.DONE]


def test_a_run_without_a_claim_is_waited_for(tmp_path, monkeypatch):
    """`swad train` trains it; it may take long, and does not count as starts of this worker."""
    monkeypatch.setattr(c, "BEAT", 0.01)
    run, attempts = short(tmp_path / "a"), []
    writer = RecordWriter(run.output)

    def train_at_fifth(config):
        attempts.append(config)
        if len(attempts) == 5:
            writer.close()
        train(config)

    assert work_on(tmp_path, run, train=train_at_fifth) == [State.DONE]
    assert len(attempts) == 5


def test_a_run_of_another_process_is_left_alone(tmp_path):
    run, claims = short(tmp_path / "a"), Claims(tmp_path / "claims")
    run.output.mkdir()
    with lock_run_directory(run.output):
        assert not attempt(run, claims.take(claims.name(run.output)))
    assert [path.name for path in run.output.iterdir()] == ["run.lock"]


def test_starts_count_until_records_grow(tmp_path):
    assert [module._count_start(tmp_path) for _ in range(3)] == [1, 2, 3]
    (tmp_path / "records.jsonl").write_text("a line")
    assert [module._count_start(tmp_path) for _ in range(2)] == [1, 2]
    (tmp_path / "starts.json").write_text("damaged")
    assert module._count_start(tmp_path) == 1


def test_only_errors_written_for_users_stand_alone():
    assert describe(RunError("a\nb")) == "a b"
    assert describe(ValueError("a")) == "ValueError: a"
    assert describe(ValueError()) == "ValueError"
