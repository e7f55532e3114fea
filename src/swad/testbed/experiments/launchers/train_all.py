"""Train several runs and show their progress: in this process, or several at a time with the local launcher."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from swad.testbed.experiments.launchers.base import Outcome, Task
from swad.testbed.experiments.launchers.local import LocalLauncher
from swad.testbed.results.failures import read_failure
from swad.testbed.training.display import DisplayCallback, LogDisplay, make_display

if TYPE_CHECKING:
    from swad.testbed.training.config import RunConfig
    from swad.testbed.training.result import RunResult


def train_all(configs: Sequence[RunConfig], jobs: int = 1) -> list[RunResult]:
    """Train every run and display the progress; finished runs are returned at once, interrupted ones resume.

    Args:
        configs: The runs. All settings are checked before the first step of any run.
        jobs: How many runs train at a time, each in a process of its own with its share of the cores. Small networks
            do not fill a machine: several runs at a time finish sooner than one after another.
    """
    from swad.testbed.training.distributed import in_main_process, launched, process_group
    from swad.testbed.training.loop import train
    from swad.testbed.training.resolve import resolution_notes, resolve
    from swad.testbed.training.run_dir import read_result

    if jobs > 1 and launched()[1] > 1:
        raise ValueError("under torchrun, runs train one after another: leave torchrun out to train several at a time")
    resolved = [resolve(config) for config in configs]
    branches = [config for config in resolved if config.branch_from is not None]
    if jobs > 1 and 0 < len(branches) < len(resolved):  # a branch starts when the run that it branches from is done
        trunks = [config for config in resolved if config.branch_from is None]
        return train_all(trunks, jobs) + train_all(branches, jobs)
    notes = dict.fromkeys(note for pair in zip(configs, resolved, strict=True) for note in resolution_notes(*pair))
    names = display_names(resolved)
    # Under torchrun one process group serves all runs: processes that leave one cannot join a second.
    joined = process_group(resolved[0].device) if launched()[1] > 1 else nullcontext()
    with joined, make_display(len(resolved)) as display:
        for line in notes if in_main_process() else ():
            display.log(line)
        unfinished = [config for config in resolved if read_result(config) is None]
        parallel = unfinished if min(jobs, len(unfinished)) > 1 else []
        if parallel:
            tasks = [Task(name, config) for name, config in zip(names, resolved, strict=True) if config in parallel]
            _train_tasks(tasks, min(jobs, len(tasks)), display)
        return [
            train(config, callback=None if config in parallel else DisplayCallback(name, display))
            for name, config in zip(names, resolved, strict=True)
        ]


def display_names(configs: Sequence[RunConfig]) -> list[str]:
    """Return the name of every run in the display: target and trial, with what else differs between the runs."""
    several = len({config.algorithm for config in configs}) > 1
    schedules = len({config.lr_schedule for config in configs}) > 1
    return [f"{config.algorithm} " * several + config.name + f" {config.lr_schedule}" * schedules for config in configs]


def _train_tasks(tasks: Sequence[Task], jobs: int, display: LogDisplay) -> None:
    """Train all tasks; raises the first error, or `Interrupted`.

    After an error no further run starts, and the runs in progress are finished. After an interrupt they are stopped.
    """
    devices = {task.config.device for task in tasks}
    device = devices.pop() if len(devices) == 1 else "several"
    waiting, outcomes, running, interrupted = deque(tasks), list[Outcome](), 0, False
    with LocalLauncher(jobs, device=device, display=display) as launcher:
        while running or waiting:
            started = [waiting.popleft() for _ in range(min(jobs - running, len(waiting)))]
            launcher.submit(started)
            running += len(started)
            try:
                ended = launcher.wait()
            except KeyboardInterrupt:
                interrupted, ended = True, []
                launcher.stop()
            outcomes += ended
            running -= len(ended)
            if interrupted or any(outcome.status != "finished" for outcome in ended):
                waiting.clear()
    _raise_problem(outcomes, tasks[0] if interrupted else None)


def _raise_problem(outcomes: Sequence[Outcome], interrupted: Task | None) -> None:
    from swad.testbed.training.loop import Interrupted
    from swad.testbed.training.run_dir import RunError

    for outcome in outcomes:
        if outcome.status == "failed" or outcome.elsewhere:
            raise RunError(f"{outcome.task.key}: {outcome.message}{_traceback_hint(outcome)}")
    if stopped := [outcome for outcome in outcomes if outcome.status == "interrupted"]:
        furthest = max(stopped, key=lambda outcome: outcome.step)
        raise Interrupted(furthest.task.config.output, furthest.step)
    if interrupted is not None:  # when every run in progress was at its end
        raise Interrupted(interrupted.config.output, 0)


def _traceback_hint(outcome: Outcome) -> str:
    """Print the traceback if it is wanted, else return how to see it; errors written for users need none."""
    failure = read_failure(outcome.task.config.output)
    if failure is None or not failure.lines:
        return ""
    if os.environ.get("SWAD_TRACEBACK"):
        print(*failure.lines, sep="\n", file=sys.stderr)
    return "; set SWAD_TRACEBACK=1 to see the traceback" if failure.traceback else ""
