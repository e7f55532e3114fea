"""Where a sweep stands: how many runs are done, running, failed and pending, and when the rest will be finished."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean
from typing import TYPE_CHECKING

from swad.testbed.results.failures import Failure, read_failure
from swad.testbed.sweep.directory import SweepDir
from swad.testbed.sweep.plan import PlannedRun, SweepPlan, path_in_sweep
from swad.testbed.workers.work import State
from swad.util.progress import duration

if TYPE_CHECKING:
    from rich.table import Table

SAMPLED = 50
"""Finished runs of a dataset and algorithm whose time is read for the estimate: reading more would change little."""


@dataclass(frozen=True)
class GroupStatus:
    """The runs of one dataset and algorithm.

    Args:
        dataset: Name of the dataset.
        algorithm: Name of the algorithm.
        counts: The number of runs by state.
        waiting: Runs that wait for the choice of their hyperparameters.
        seconds: Mean time of a finished run; None if there is none.
    """

    dataset: str
    algorithm: str
    counts: Mapping[State, int]
    waiting: int
    seconds: float | None

    @property
    def total(self) -> int:
        """The number of runs."""
        return sum(self.counts.values()) + self.waiting

    @property
    def left(self) -> int:
        """The number of runs that will still be trained."""
        return self.counts[State.PENDING] + self.counts[State.RUNNING] + self.waiting


@dataclass(frozen=True)
class SweepStatus:
    """Where a sweep stands.

    Args:
        groups: The runs by dataset and algorithm.
        failed: Why runs failed, by their directories in the sweep.
        slots: Runs that train at the same time.
    """

    groups: tuple[GroupStatus, ...]
    failed: Mapping[str, Failure]
    slots: int

    def count(self, state: State) -> int:
        """The number of runs in a state."""
        return sum(group.counts[state] for group in self.groups)

    @property
    def total(self) -> int:
        """The number of all runs."""
        return sum(group.total for group in self.groups)

    @property
    def waiting(self) -> int:
        """The number of runs that wait for the choice of their hyperparameters."""
        return sum(group.waiting for group in self.groups)

    @property
    def complete(self) -> bool:
        """Whether every run is done."""
        return self.count(State.DONE) == self.total

    def seconds_left(self, group: GroupStatus | None = None) -> float | None:
        """Estimate the time until the runs, or those of one group, are finished; None before the first is finished.

        A running run counts as half done. A group without a finished run counts with the mean of the others.
        """
        known = [member.seconds for member in self.groups if member.seconds is not None]
        if not known:
            return None
        work = [
            (member.left - 0.5 * member.counts[State.RUNNING])
            * (fmean(known) if member.seconds is None else member.seconds)
            for member in (self.groups if group is None else (group,))
        ]
        return math.fsum(work) / self.slots


def read_status(sweep: SweepDir, plan: SweepPlan | None = None, slots: int | None = None) -> SweepStatus:
    """Read the status of a sweep from its directory.

    Args:
        plan: Its runs. Default: those of all its specs.
        slots: Runs that train at the same time. Default: as many as are running now.
    """
    plan = sweep.plan() if plan is None else plan
    states = sweep.states(plan.runs)
    waiting = Counter[tuple[str, str]]()
    for search in plan.searches:
        waiting[search.dataset, search.algorithm] += search.pending
    groups = tuple(
        GroupStatus(
            *name,
            Counter(states[run.key] for run in members),
            waiting[name],
            _mean_seconds(sweep, [run for run in members if states[run.key] is State.DONE]),
        )
        for name, members in plan.groups.items()
    )
    outputs = [run.config.output for run in plan.runs if states[run.key] is State.FAILED]
    failed = {path_in_sweep(path): read_failure(path) or Failure("the reason was not stored") for path in outputs}
    running = sum(state is State.RUNNING for state in states.values())
    return SweepStatus(groups, failed, max(1, running if slots is None else slots))


def _mean_seconds(sweep: SweepDir, done: Sequence[PlannedRun]) -> float | None:
    sampled = done[:: max(1, len(done) // SAMPLED)]
    seconds = [value for run in sampled if (value := sweep.seconds(run)) is not None]
    return fmean(seconds) if seconds else None


# -- tables -------------------------------------------------------------------------------------------------------


def status_table(status: SweepStatus) -> Table:
    """Return the status as a table: a row for each dataset and algorithm, and one for all."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    waiting = any(group.waiting for group in status.groups)
    table.add_column("dataset")
    table.add_column("algorithm")
    for column in ("done", "running", "failed", "pending", *(["waiting"] if waiting else []), "of", "per run", "left"):
        table.add_column(column, justify="right")

    def add_row(first: str, second: str, groups: Sequence[GroupStatus], left: float | None, style: str = "") -> None:
        counts = [sum(group.counts[state] for group in groups) for state in _COLUMNS]
        cells = [_count(number, style) for number, style in zip(counts, _COLUMNS.values(), strict=True)]
        if waiting:
            cells.append(_count(sum(group.waiting for group in groups)))
        seconds = groups[0].seconds if len(groups) == 1 else None
        total = sum(group.total for group in groups)
        times = ("" if seconds is None else duration(seconds), duration(left) if left else "")
        table.add_row(first, second, *cells, f"{total:,}", *times, style=style)

    for group in status.groups:
        add_row(group.dataset, group.algorithm, [group], status.seconds_left(group))
    if len(status.groups) > 1:
        table.add_section()
        add_row("all", "", status.groups, status.seconds_left(), "bold")
    return table


_COLUMNS = {State.DONE: "green", State.RUNNING: "cyan", State.FAILED: "red", State.PENDING: ""}
"""The states in the order of the table's columns, with their color."""


def _count(number: int, style: str = "") -> str:
    return f"[{style}]{number:,}[/]" if number and style else f"{number:,}"


def failure_lines(failed: Mapping[str, Failure], lines: int = 3, most: int = 20) -> list[str]:
    """Return the failed runs, each with its error and, if that was not expected, the last lines of its traceback.

    Args:
        failed: The failed runs.
        lines: Lines of each traceback.
        most: Runs that are listed; of more only the number is given.
    """
    text = []
    for name, failure in islice(failed.items(), most):
        attempts = f" ({failure.attempts} attempts)" if failure.attempts > 1 else ""
        text.append(f"{name}{attempts}: {failure.error}")
        text += [f"    {line.rstrip()}" for line in failure.traceback[-lines:] if lines > 0]
    if len(failed) > most:
        text.append(f"and {len(failed) - most:,} more")
    return text
