from __future__ import annotations

import json
from pathlib import Path

from swad.testbed.results.failures import write_failure
from swad.testbed.workers import watch as module
from swad.testbed.workers.watch import Watch
from swad.testbed.workers.work import State
from swad.util.files import write_json


def test_lines_count_failures_of_before_and_estimate_only_what_is_left(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(module, "SECONDS", 0.0)
    done, failed, running, pending = (tmp_path / name for name in "abcd")
    write_failure(failed, "out of memory")
    states = {done: State.DONE, failed: State.FAILED, running: State.RUNNING, pending: State.PENDING}
    with Watch(lambda path: path.name) as watch:
        watch(states)
        watch({**states, running: State.DONE})
        watch({**states, running: State.DONE})
        write_failure(pending, "the disk is full")
        watch({**states, running: State.DONE, pending: State.FAILED})
    first, second, *_, message, last = capsys.readouterr().out.splitlines()
    assert first == "1 of 4 runs finished, 1 failed"
    assert second.startswith("2 of 4 runs finished, 1 failed, about ")
    assert message == "failed: d: the disk is full", "what failed before is listed at the end"
    assert last == "2 of 4 runs finished, 2 failed"


def test_the_time_left_falls_while_a_run_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(module, "SECONDS", 0.0)
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(module.time, "monotonic", lambda: float(next(clock)))
    running, pending = tmp_path / "a", tmp_path / "b"
    running.mkdir()
    write_json(running / "config.json", {"config": {"training": {"steps": 100}}})
    states = {running: State.RUNNING, pending: State.PENDING}
    with Watch() as watch:
        for step in (0, 25, 50, 75):
            (running / "records.jsonl").write_text(json.dumps({"step": step}) + "\n")
            watch(states)
        watch({**states, running: State.DONE})
    lines = [line.rpartition(", ")[2] for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "0 of 2 runs finished",
        *(f"about {left} left" for left in ("2 min 20 s", "1 min 30 s", "1 min 7 s", "50 s")),
    ]


def test_lines_are_seconds_apart(capsys):
    with Watch() as watch:
        for done in range(3):
            watch({Path(f"{i}"): State.DONE if i < done else State.PENDING for i in range(3)})
        watch({Path(f"{i}"): State.DONE for i in range(3)})
    assert [line[:11] for line in capsys.readouterr().out.splitlines()] == ["0 of 3 runs", "3 of 3 runs"]
