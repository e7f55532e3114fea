from __future__ import annotations

from collections import Counter
from io import StringIO

from rich.console import Console

from swad.testbed.results.failures import Failure
from swad.testbed.sweep.directory import SweepDir
from swad.testbed.sweep.spec import SweepSpec
from swad.testbed.sweep.status import (
    GroupStatus,
    State,
    SweepStatus,
    failure_lines,
    read_status,
    status_table,
)


def group(name, done, running, failed, pending, waiting=0, seconds=None):
    counts = Counter({State.DONE: done, State.RUNNING: running, State.FAILED: failed, State.PENDING: pending})
    return GroupStatus(name, "erm", counts, waiting, seconds)


def shown(status):
    console = Console(file=StringIO(), width=120)
    console.print(status_table(status))
    return [line.split() for line in console.file.getvalue().splitlines() if line.strip()]


def test_the_table_has_a_row_for_every_group_and_one_for_all():
    status = SweepStatus((group("PACS", 3, 2, 1, 4, 6, 100.0), group("VLCS", 0, 0, 0, 5)), {}, slots=2)
    header, pacs, vlcs, total = shown(status)
    assert header == [
        "dataset",
        "algorithm",
        "done",
        "running",
        "failed",
        "pending",
        "waiting",
        "of",
        "per",
        "run",
        "left",
    ]
    # Left: 4 pending, 6 waiting and two halves, 100 s each, two at a time.
    assert pacs == ["PACS", "erm", "3", "2", "1", "4", "6", "16", "1", "min", "40", "s", "9", "min", "10", "s"]
    assert vlcs == ["VLCS", "erm", "0", "0", "0", "5", "0", "5", "4", "min", "10", "s"]  # by the mean of the others
    assert total[:7] == ["all", "3", "2", "1", "9", "6", "21"]
    assert status.seconds_left() == (11 + 5) * 100 / 2
    assert not status.complete


def test_nothing_is_estimated_before_a_run_is_finished():
    status = SweepStatus((group("PACS", 0, 1, 0, 3),), {}, slots=1)
    assert status.seconds_left() is None
    assert shown(status)[1] == ["PACS", "erm", "0", "1", "0", "3", "4"]


def test_failures_are_listed_with_their_last_lines():
    name = "digits/erm/paper-0/6ee9f5c70977"
    failures = dict.fromkeys([name, *"1234"], Failure("out of memory", ("a", "b", "c", "d"), attempts=2))
    lines = failure_lines(failures, lines=2, most=1)
    assert lines == [f"{name} (2 attempts): out of memory", "    c", "    d", "and 4 more"]
    assert failure_lines(failures, lines=0, most=1) == [lines[0], lines[-1]]
    expected = Failure("disk full", ("  File ...", "swad.testbed.training.run_dir.RunError: disk full"))
    assert failure_lines({name: expected}) == [f"{name}: disk full"]


def test_runs_that_wait_for_a_choice_are_counted(tmp_path):
    sweep = SweepDir(tmp_path)
    sweep.add(SweepSpec(protocol="paper", datasets=("digits",), grid={"lr": (1e-3, 1e-2)}, targets=("paper",)))
    status = read_status(sweep)
    assert (status.total, status.groups[0].waiting, status.count(State.PENDING)) == (4, 2, 2)
