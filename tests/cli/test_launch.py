from __future__ import annotations

from helpers.in_process_launcher import fake_train
from swad.cli._launch import StatusLines
from swad.experiments.launchers.base import Outcome, Task
from swad.experiments.sweep.directory import SweepDir
from swad.experiments.sweep.spec import SweepSpec
from swad.results.failures import write_failure


def test_status_lines_count_failures_of_before_and_estimate_only_what_is_left(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(StatusLines, "SECONDS", 0.0)
    directory = SweepDir(tmp_path)
    directory.add(SweepSpec(targets=("paper",), trials=(0, 1, 2, 3)))
    plan = directory.plan()
    done, failed, *rest = (Task(run.key, run.config) for run in plan.runs)
    fake_train(lambda config: 0.5)(done.config)
    write_failure(failed.config.output, "out of memory")
    lines = StatusLines(directory)
    lines.update(plan, None)
    lines.update(plan, Outcome(rest[0], "finished"))
    lines.update(plan, Outcome(rest[1], "failed"))
    lines.update(plan, Outcome(failed, "finished"))  # it was retried
    first, second, third, last = capsys.readouterr().out.splitlines()
    assert first == "1 of 4 runs finished, 1 failed"
    assert second.startswith("2 of 4 runs finished, 1 failed, about ")
    assert third == "2 of 4 runs finished, 2 failed"
    assert last == "3 of 4 runs finished, 1 failed"
