"""Run a sweep: give its runs to a launcher, and start what follows a search as soon as that search is complete.

The scheduler keeps no state of its own. Whatever it knows it reads from the run directories, so it may be killed at
any moment and started again, with this launcher or another. A failed run does not stop the others.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from swad.testbed.algorithms.hyperparameters import as_text
from swad.testbed.experiments.launchers.base import Launcher, Outcome, Task
from swad.testbed.experiments.sweep.directory import State, SweepDir
from swad.testbed.experiments.sweep.plan import Plan, PlannedRun, Search, path_in_sweep
from swad.testbed.experiments.sweep.spec import SweepSpec
from swad.testbed.experiments.sweep.status import SweepStatus, read_status
from swad.testbed.training.config import ConfigError
from swad.util.files import FileLock, FileLockedError
from swad.util.names import counted
from swad.util.signals import Interrupted

POLL_SECONDS = 5.0
"""How often the runs that other processes train are looked at."""

MAX_STARTS = 5
"""How often a run that keeps being interrupted, without a request to stop, is started again."""


class Display:
    """Shows messages by the function `log`; a subclass also shows how far the sweep is."""

    def __init__(self, log: Callable[[str], None] = lambda message: None) -> None:
        self.log = log

    def update(self, plan: Plan, outcome: Outcome | None) -> None:
        """The plan changed, or a run ended with this outcome."""


def run_sweep(
    sweep: SweepDir,
    launcher: Launcher,
    *,
    specs: Sequence[SweepSpec] | None = None,
    retry_failed: bool = False,
    display: Display | None = None,
) -> SweepStatus:
    """Train every run of a sweep that is not finished, and return where the sweep stands then.

    Args:
        launcher: Trains the runs. The caller opens and closes it.
        specs: Train the runs of these specs only. Default: those of all specs of the sweep.
        retry_failed: Also train runs that failed before.
        display: Shows the progress.

    Raises:
        Interrupted: Ctrl-C or SIGTERM. The runs saved checkpoints; call again to resume.
        ConfigError: Another process runs this sweep.
    """
    with _only_scheduler(sweep):
        scheduler = _Scheduler(sweep, launcher, specs, retry_failed, display or Display())
        scheduler.start()
        try:
            scheduler.run()
        except KeyboardInterrupt:
            scheduler.stop()
            status = scheduler.status()
            raise Interrupted(
                f"Interrupted: {status.count(State.DONE):,} of {status.total:,} runs are finished. "
                "Run the same command again to continue."
            ) from None
        return scheduler.status()


def _only_scheduler(sweep: SweepDir) -> AbstractContextManager[object]:
    try:
        return FileLock(sweep.path / "scheduler.lock")
    except FileLockedError as error:
        raise ConfigError(
            [
                f"process {error.owner} runs the sweep in {sweep.path}: run the command again when it has ended "
                f"(`swad sweep status {sweep.path}`)"
            ]
        ) from None


class _Scheduler:
    def __init__(
        self,
        sweep: SweepDir,
        launcher: Launcher,
        specs: Sequence[SweepSpec] | None,
        retry_failed: bool,
        display: Display,
    ) -> None:
        self._sweep, self._launcher, self._display = sweep, launcher, display
        self._trained = {State.PENDING, State.FAILED} if retry_failed else {State.PENDING}
        self._plan = sweep.plan(specs)
        self._runs = {run.key: run for run in self._plan.runs}
        self._searches = list(self._plan.searches)
        self._searches_of: dict[str, list[Search]] = defaultdict(list)  # by the key of a run
        for search in self._searches:
            for run in search.runs:
                self._searches_of[run.key].append(search)
        self._submitted: set[str] = set()
        self._elsewhere: dict[str, PlannedRun] = {}  # runs that other processes train
        self._starts: Counter[str] = Counter()

    def start(self) -> None:
        """Submit all runs that are not finished."""
        self._submit_unfinished(self._plan.runs)
        if self._elsewhere:
            self._display.log(f"waiting for {counted(len(self._elsewhere), 'run')} that other processes are training")
        self._display.update(self._plan, None)

    def run(self) -> None:
        """Wait for outcomes until nothing is left to do."""
        while self._submitted or self._elsewhere:
            outcomes = self._launcher.wait(POLL_SECONDS if self._elsewhere else None)
            for outcome in outcomes:
                self._handle(outcome)
            if not outcomes and not self._elsewhere:
                break
            if not self._submitted and self._elsewhere:
                time.sleep(POLL_SECONDS)  # a launcher without tasks does not wait
            self._look_elsewhere()

    def stop(self) -> None:
        """Let the launcher stop, and wait until its runs have saved their checkpoints."""
        self._launcher.stop()
        self._display.log("stopping: runs that this command trains save a checkpoint")
        continued = len(self._elsewhere)
        while self._submitted and (outcomes := self._launcher.wait()):
            for outcome in outcomes:
                continued += outcome.elsewhere
                self._submitted.discard(outcome.task.key)
                self._display.update(self._plan, outcome)
        if continued:
            self._display.log(f"jobs or other processes continue with {counted(continued, 'run')}")

    def status(self) -> SweepStatus:
        """Read where the runs of this call stand."""
        return read_status(self._sweep, self._plan, self._launcher.slots)

    def _handle(self, outcome: Outcome) -> None:
        key = outcome.task.key
        self._submitted.discard(key)
        if outcome.status == "finished":
            self._continue_searches(key)
        elif outcome.status == "failed":
            self._display.log(f"failed: {outcome.task.name}: {outcome.message}")
            self._continue_searches(key)
        else:
            self._start_again(self._runs[key], outcome.message)
        self._display.update(self._plan, outcome)

    def _start_again(self, run: PlannedRun, message: str) -> None:
        """Handle a run that was interrupted although no one asked for it."""
        if self._sweep.state(run) is State.RUNNING:
            self._elsewhere[run.key] = run
        elif self._starts[run.key] < MAX_STARTS:
            self._submit([run])
        else:
            self._display.log(f"interrupted {MAX_STARTS} times, not started again: {run.config.output}: {message}")

    def _look_elsewhere(self) -> None:
        """Take over the runs that other processes have stopped training."""
        for key, run in list(self._elsewhere.items()):
            state = self._sweep.state(run)
            if state is State.RUNNING:
                continue
            del self._elsewhere[key]
            if state is State.PENDING:
                self._submit([run])
            else:
                self._continue_searches(key)

    def _continue_searches(self, key: str) -> None:
        """Submit the runs that follow a search which this run may have completed."""
        complete: list[Search] = []
        for search in self._searches_of[key]:
            point = self._sweep.choose(search)
            if point is None or search not in self._searches:
                continue
            complete.append(search)
            chosen = ", ".join(f"{name}={as_text(value)}" for name, value in point.items()) or "the defaults"
            self._display.log(f"{search.name}: chose {chosen}")
            # Several requests may wait for one choice.
            repeats = [run for run in search.repeat(point) if run.key not in self._runs]
            self._runs.update((run.key, run) for run in repeats)
            self._submit_unfinished(repeats)
        if complete:
            self._searches = [search for search in self._searches if search not in complete]
            self._plan = Plan(tuple(self._runs.values()), tuple(self._searches))

    def _submit_unfinished(self, runs: Sequence[PlannedRun]) -> None:
        states = self._sweep.states(runs)
        self._elsewhere.update((run.key, run) for run in runs if states[run.key] is State.RUNNING)
        self._submit([run for run in runs if states[run.key] in self._trained])

    def _submit(self, runs: Sequence[PlannedRun]) -> None:
        self._submitted.update(run.key for run in runs)
        self._starts.update(run.key for run in runs)
        if runs:
            self._launcher.submit([Task(run.key, run.config, path_in_sweep(run.config.output)) for run in runs])
