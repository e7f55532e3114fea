"""Where the runs of a sweep or of a reproduction train, and what is shown meanwhile."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from swad.cli import _options as parse
from swad.testbed.experiments.launchers.base import Launcher, Outcome
from swad.testbed.experiments.launchers.make import LauncherConfig
from swad.testbed.experiments.sweep.directory import State, SweepDir
from swad.testbed.experiments.sweep.plan import Plan
from swad.testbed.experiments.sweep.run import Display
from swad.testbed.experiments.sweep.status import SweepStatus, failure_lines
from swad.testbed.training.display import make_display
from swad.util.progress import duration


def parse_launcher_options(texts: Sequence[str] | None) -> dict[str, str]:
    """Parse NAME=VALUE. A value may be a list itself, as Slurm's partition=a,b."""
    options = parse.pairs("launcher-option", texts, "partition=gpu")
    return {name: ",".join(values) for name, values in options.items()}


@contextmanager
def show_runs(
    directory: SweepDir, launch: LauncherConfig, device: str, n_runs: int, retry_failed: bool
) -> Iterator[tuple[Launcher, Display]]:
    """Open the launcher, with a bar for every run in a terminal, and lines elsewhere."""
    bars = launch.name == "local" and sys.stderr.isatty()
    with ExitStack() as stack:
        run_display = stack.enter_context(make_display(n_runs)) if bars else None
        # Messages go above the bars, which show the rest.
        display = Display(run_display.log) if run_display is not None else StatusLines(directory, retry_failed)
        yield stack.enter_context(launch.make(device, directory.path, run_display)), display


class StatusLines(Display):
    """Prints how far the sweep is, at most every few seconds."""

    SECONDS = 10.0

    def __init__(self, directory: SweepDir, retry_failed: bool) -> None:
        super().__init__(partial(print, flush=True))
        self._directory, self._retry_failed = directory, retry_failed
        self._start = self._last = -math.inf
        self._done = self._done_before = self._failed = 0

    def update(self, plan: Plan, outcome: Outcome | None) -> None:
        """Print a line if the last one is some seconds old, or if this is the last run."""
        now = time.monotonic()
        if outcome is None:
            states = Counter(self._directory.states(plan.runs).values())
            self._done = self._done_before = states[State.DONE]
            self._failed = 0 if self._retry_failed else states[State.FAILED]  # retried runs still have to train
            self._start = now
        elif outcome.status == "failed":
            self._failed += 1
        elif outcome.status == "finished":
            self._done += 1
        done, failed, total = self._done, self._failed, plan.total
        left = total - done - failed
        if left and now - self._last < self.SECONDS:
            return
        self._last = now
        text = f"{done:,} of {total:,} runs finished" + (f", {failed:,} failed" if failed else "")
        if left and done > self._done_before:
            per_run = (now - self._start) / (done - self._done_before)
            text += f", about {duration(per_run * left)} left"
        print(text, flush=True)


def print_failures(status: SweepStatus, most: int = 20, lines: int = 3) -> None:
    """List the failed runs with the last lines of each."""
    for line in failure_lines(status.failed, lines, most):
        print(line, flush=True)
