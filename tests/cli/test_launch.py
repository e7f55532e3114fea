from __future__ import annotations

from pathlib import Path

from helpers.in_process_launcher import fake_train
from swad.cli._launch import StatusLines
from swad.testbed.experiments.launchers.base import Outcome, Task
from swad.testbed.experiments.sweep.directory import SweepDir
from swad.testbed.experiments.sweep.plan import Plan
from swad.testbed.experiments.sweep.spec import SweepSpec
from swad.testbed.results.failures import write_failure


def sweep_with_a_failed_run(folder: Path) -> tuple[SweepDir, Plan, list[Task]]:
    """Return a sweep of four runs, of which the first is done and the second failed, and the tasks of all."""
    directory = SweepDir(folder)
    directory.add(SweepSpec(targets=("paper",), trials=(0, 1, 2, 3)))
    plan = directory.plan()
    tasks = [Task(run.key, run.config) for run in plan.runs]
    fake_train(lambda config: 0.5)(tasks[0].config)
    write_failure(tasks[1].config.output, "out of memory")
    return directory, plan, tasks


def test_status_lines_count_failures_of_before_and_estimate_only_what_is_left(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(StatusLines, "SECONDS", 0.0)
    directory, plan, tasks = sweep_with_a_failed_run(tmp_path)
    lines = StatusLines(directory, retry_failed=False)
    lines.update(plan, None)
    lines.update(plan, Outcome(tasks[2], "finished"))
    lines.update(plan, Outcome(tasks[3], "failed"))
    first, second, last = capsys.readouterr().out.splitlines()
    assert first == "1 of 4 runs finished, 1 failed"
    assert second.startswith("2 of 4 runs finished, 1 failed, about ")
    assert last == "2 of 4 runs finished, 2 failed"


def test_status_lines_count_runs_that_are_retried_as_left(tmp_path, monkeypatch, capsys):
    directory, plan, tasks = sweep_with_a_failed_run(tmp_path)
    lines = StatusLines(directory, retry_failed=True)
    lines.update(plan, None)
    lines.update(plan, Outcome(tasks[2], "finished"))
    lines.update(plan, Outcome(tasks[3], "finished"))  # the retried run still trains: no line within a few seconds
    assert capsys.readouterr().out == "1 of 4 runs finished\n"
    monkeypatch.setattr(StatusLines, "SECONDS", 0.0)
    lines.update(plan, Outcome(tasks[1], "failed"))
    assert capsys.readouterr().out == "3 of 4 runs finished, 1 failed\n"
