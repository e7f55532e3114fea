"""One task: its files and its outcome, whatever happens to the run."""

from __future__ import annotations

import signal

import pytest

from helpers.runs import crash_at, interrupt_at, require_same, short
from swad.testbed.experiments.launchers.base import Task
from swad.testbed.experiments.launchers.work import describe, train_task
from swad.testbed.results.failures import read_failure
from swad.testbed.results.records import RecordWriter, lock_run_directory
from swad.testbed.training.loop import RunError, train


def test_a_finished_task_has_the_files_of_a_plain_run(tmp_path):
    task = Task("a", short(tmp_path / "a"))
    outcome = train_task(task)
    assert (outcome.status, outcome.message, outcome.task) == ("finished", "", task)
    assert outcome.seconds > 0
    require_same(tmp_path / "a", train(short(tmp_path / "b")).run_dir)
    assert train_task(task).status == "finished"


def test_a_failure_is_kept_until_success(tmp_path):
    task = Task("a", short(tmp_path))
    outcome = train_task(task, callback=crash_at(10))
    assert (outcome.status, outcome.message) == ("failed", "ZeroDivisionError: division by zero")
    train_task(task, callback=crash_at(20))
    failure = read_failure(tmp_path)
    assert (failure.error, failure.attempts) == (outcome.message, 2)
    assert "1 / 0" in "".join(failure.lines)
    assert train_task(task).status == "finished"
    assert read_failure(tmp_path) is None


def test_bad_settings_fail_in_one_line(tmp_path):
    outcome = train_task(Task("a", short(tmp_path, steps=0, algorithm="ermm")))
    assert outcome.status == "failed"
    assert "steps" in outcome.message
    assert "ermm" in outcome.message
    assert "\n" not in outcome.message


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_task_resumes(tmp_path, signum):
    task = Task("a", short(tmp_path))
    outcome = train_task(task, callback=interrupt_at(10, signum))
    assert outcome.status == "interrupted"
    assert "step 10" in outcome.message
    assert read_failure(tmp_path) is None
    assert train_task(task).status == "finished"


def test_a_run_of_another_process_is_left_alone(tmp_path):
    with lock_run_directory(tmp_path):
        outcome = train_task(Task("a", short(tmp_path)), lock_seconds=0)
    assert outcome.status == "interrupted"
    assert "is being written by process" in outcome.message
    assert [path.name for path in tmp_path.iterdir()] == ["run.lock"]


def test_a_lock_that_is_released_is_waited_for(tmp_path):
    writer = RecordWriter(tmp_path)
    attempts = []

    def train_twice(config, *, callback=None):
        attempts.append(config)
        if len(attempts) == 2:
            writer.close()
        train(config, callback=callback)

    assert train_task(Task("a", short(tmp_path)), train=train_twice, lock_seconds=60).status == "finished"
    assert len(attempts) == 2


def test_only_errors_written_for_users_stand_alone():
    assert describe(RunError("a\nb")) == "a b"
    assert describe(ValueError("a")) == "ValueError: a"
    assert describe(ValueError()) == "ValueError"
