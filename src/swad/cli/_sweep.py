"""What `swad sweep` does between parsing its options and printing its result."""

from __future__ import annotations

import dataclasses
import math
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from swad.cli import _options as parse
from swad.cli._console import make_console
from swad.data import benchmarks
from swad.experiments.launchers.base import Launcher, Outcome, Task
from swad.experiments.launchers.local import LocalLauncher
from swad.experiments.launchers.make import LAUNCHERS, make_cluster_launcher, option_problems
from swad.experiments.sweep import appendix_b3, checks, imported, spec_file
from swad.experiments.sweep.directory import SWEEP, State, SweepDir, runs_folder
from swad.experiments.sweep.estimate import GroupEstimate, estimate, size_text, totals
from swad.experiments.sweep.plan import Plan
from swad.experiments.sweep.run import Display, run_sweep
from swad.experiments.sweep.spec import SweepSpec
from swad.experiments.sweep.status import SweepStatus, duration, failure_lines, read_status, status_table
from swad.results.runs import find_runs
from swad.results.selection_file import read_selection
from swad.training.config import SETTINGS, ConfigError
from swad.training.display import LogDisplay, make_display
from swad.util.cpu import available_cores
from swad.util.names import counted, did_you_mean
from swad.util.progress import progress_report

if TYPE_CHECKING:
    from rich.table import Table

T = TypeVar("T")


class Problems(list[str]):
    """The problems found so far, one sentence each."""

    def collect(self, function: Callable[..., T], *arguments: Any) -> T | None:
        """Call a function; its error becomes a problem."""
        try:
            return function(*arguments)
        except ValueError as error:
            self += getattr(error, "problems", (str(error),))
            return None

    def require_none(self) -> None:
        """Raise all problems together."""
        if self:
            raise ConfigError(list(dict.fromkeys(self)))


def parse_trials(text: str) -> tuple[int, ...]:
    """Parse a number of trials, or the trials themselves where there is a comma."""
    numbers = parse.whole_numbers(text)
    if numbers == [0] and "," not in text:
        raise ValueError("--trials takes how many trials, 1 or more, or a list of trials (0,2), got 0")
    return tuple(numbers) if "," in text or not numbers else tuple(range(numbers[0]))


def parse_grid(texts: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """Parse NAME=NUMBERS."""
    grid: dict[str, tuple[float, ...]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        try:
            numbers = tuple(parse.number(value) for value in parse.words(values))
        except ValueError:
            numbers = ()
        if not name or not numbers:
            raise ValueError(f"--grid takes NAME=NUMBERS, got {text!r}: e.g. --grid lr=1e-5,3e-5")
        if name in grid:
            raise ValueError(f"--grid takes every name once, got {name} twice: separate its values with commas")
        grid[name] = numbers
    return grid


def parse_launcher_options(texts: Sequence[str]) -> dict[str, str]:
    """Parse NAME=VALUE."""
    options = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ValueError(f"--launcher-option takes NAME=VALUE, got {text!r}: e.g. --launcher-option partition=gpu")
        options[name] = value
    return options


# -- specs --------------------------------------------------------------------------------------------------------


def find_specs(
    directory: SweepDir,
    plan: Path | None,
    stated: Mapping[str, Any],
    settings: Mapping[str, Any],
    selection: Path | None,
    problems: Problems,
) -> list[SweepSpec]:
    """Return the spec that options and plan file state, or those of the sweep that is resumed; collect the problems.

    Args:
        directory: The directory of the sweep.
        plan: The plan file, if there is one.
        stated: Fields of the spec that were given as options.
        settings: Settings of the runs that were given as options.
        selection: File of hyperparameters that were selected before.
        problems: The problems found so far. All are raised together.
    """
    earlier = problems.collect(lambda: directory.specs) or ()
    on_machine = {name: value for name, value in settings.items() if SETTINGS[name].role == "machine"}
    resumes = plan is None and selection is None and set(stated) <= {"data"} and set(settings) <= set(on_machine)
    if resumes and not (directory.path / SWEEP).exists():  # a misspelled directory must not start a sweep of defaults
        problems.append(
            f"{directory.path} contains no sweep to resume: check --output, or say what to compare, "
            "e.g. --algorithms erm"
        )
    if resumes and earlier:
        specs = [
            dataclasses.replace(spec, data=stated.get("data", spec.data), options={**spec.options, **on_machine})
            for spec in earlier
        ]
    elif appendix_b3.is_plan(plan):
        found = appendix_b3.find_problems(stated)
        if selection is not None:
            found.append(f"the plan {appendix_b3.NAME} searches hyperparameters: leave out --hyperparameters-from")
        problems += found
        specs = appendix_b3.specs({**({} if found else stated), "options": settings})
    else:
        values, found = spec_file.read_spec_file(plan) if plan is not None else ({}, [])
        problems += found
        options = {**values.pop("options", {}), **settings}
        specs = [SweepSpec(**{**values, **stated}, options=options)]
    # The domains of a folder are known only after it was read, and targets are checked against them.
    specs = [problems.collect(spec.with_domains) or spec if spec.data is not None else spec for spec in specs]
    for spec in specs:
        problems += checks.find_problems(spec)
    if selection is not None:
        specs = _import(selection, specs[0], problems)
    return specs


def _import(path: Path, spec: SweepSpec, problems: Problems) -> list[SweepSpec]:
    """Return the spec with the hyperparameters of a selection file."""
    if problems:  # only the file itself can be checked
        problems.collect(read_selection, path)
        return [spec]
    selected = problems.collect(lambda: imported.read_selected(path, spec.with_domains())) or {}
    spec = dataclasses.replace(spec, selected=selected)
    problems += checks.find_problems(spec)
    return [spec]


def require_data(specs: Sequence[SweepSpec], problems: Problems) -> None:
    """Require that there is no problem, and that every dataset is there."""
    for spec in specs:
        problems += problems.collect(lambda spec=spec: checks.missing_data(spec)) or []
    problems.require_none()


# -- launchers ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Launch:
    """Where to train, as the options say.

    Args:
        name: Name of the launcher.
        jobs: Runs at a time. None: the launcher's default.
        jobs_per_gpu: Runs that share a GPU.
        options: Further options of the launcher.
    """

    name: str
    jobs: int | None
    jobs_per_gpu: int
    options: Mapping[str, str] = field(default_factory=dict)

    def problems(self) -> list[str]:
        """List what is wrong with the options."""
        problems = []
        if self.name not in LAUNCHERS:
            hint = did_you_mean(self.name, LAUNCHERS)
            problems.append(f"--launcher must be one of {', '.join(LAUNCHERS)}, got {self.name!r}{hint and ': '}{hint}")
        for option, value in (("jobs", self.jobs), ("jobs-per-gpu", self.jobs_per_gpu)):
            if value is not None and value < 1:
                problems.append(f"--{option} must be 1 or more, got {value}")
        if self.name in LAUNCHERS:
            problems += option_problems(self.name, self.options)
            if self.jobs_per_gpu != 1 and self.name != "local":
                instead = " (-l gpus=0.5 for two)" if self.name == "ray" else ""
                problems.append(
                    f"--jobs-per-gpu is for the launcher local, got {self.name}: use its own options{instead}"
                )
        return problems

    def slots(self, device: str) -> int | None:
        """Return how many runs train at a time; None if only the cluster knows."""
        return self.jobs or (self.make(device).slots if self.name == "local" else None)

    def make(self, device: str, directory: Path | None = None, display: LogDisplay | None = None) -> Launcher:
        """Return the launcher; those of a cluster need the directory of the runs."""
        if self.name != "local":
            assert directory is not None
            return make_cluster_launcher(self.name, directory, self.jobs, self.options)
        return LocalLauncher(self.jobs, jobs_per_gpu=self.jobs_per_gpu, device=device, display=display, name=_task_name)


def _task_name(task: Task) -> str:
    return "/".join(task.config.output.parts[-4:])


# -- before -------------------------------------------------------------------------------------------------------


def print_estimate(
    directory: SweepDir, specs: Sequence[SweepSpec], launch: Launch, device: str, problems: Problems
) -> None:
    """Print how many runs there are and what they will cost; write nothing."""
    missing: dict[str, str] = {}
    if not problems:
        for spec in specs:
            missing |= checks.data_problems(spec)
            folders = [name for name in spec.datasets if not benchmarks.get(name).domains]
            problems += [missing[benchmarks.get(name).name] for name in folders if benchmarks.get(name).name in missing]
    problems.require_none()
    plan = directory.plan([*directory.specs, *specs])
    unfinished = directory.unfinished(plan)
    done = len(plan.runs) - len(unfinished.runs)
    repeats = plan.counts_of("repeat")
    parts = f" ({plan.total - repeats:,} to search + {repeats:,} to repeat the choice)" if repeats else ""
    at_most = "at most " if plan.pending and any(spec.plans_pairs for spec in specs) else ""
    console = make_console()
    console.print(f"[bold]{at_most}{plan.total:,} runs[/]{parts}{f', {done:,} of them done' if done else ''}")
    console.print(_counts_table(plan))
    if not unfinished.total:
        print("Nothing is left to train. Nothing was written.", flush=True)
        return
    slots = launch.slots(device)
    threads = max(1, available_cores() // slots) if slots and parse.device(device) == "cpu" else None
    names = {name for name, _, _ in plan.counts}
    with progress_report() as progress:
        estimates = estimate(unfinished, {name: name not in missing for name in names}, device, threads, progress)
    _print_costs(estimates, slots, missing, "the other runs" if done else "all runs")


def _counts_table(plan: Plan) -> Table:
    from rich.table import Table

    counts = plan.counts
    datasets = list(dict.fromkeys(name for name, _, _ in counts))
    algorithms = list(dict.fromkeys(name for _, name, _ in counts))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("runs")
    for column in (*algorithms, *(["all"] if len(algorithms) > 1 else [])):
        table.add_column(column, justify="right")

    def cell(dataset: str | None, algorithm: str | None) -> str:
        def count(stage: str) -> int:
            return sum(
                number
                for (one, other, which), number in counts.items()
                if dataset in (None, one) and algorithm in (None, other) and which == stage
            )

        return f"{count('search'):,} + {count('repeat'):,}" if count("repeat") else f"{count('search'):,}"

    rows: list[str | None] = [*datasets, *([None] if len(datasets) > 1 else [])]
    for dataset in rows:
        cells = [cell(dataset, algorithm) for algorithm in algorithms]
        total = [cell(dataset, None)] if len(algorithms) > 1 else []
        table.add_row(dataset or "all", *cells, *total, style="bold" if dataset is None else "")
    return table


def _print_costs(estimates: Sequence[GroupEstimate], slots: int | None, missing: Mapping[str, str], which: str) -> None:
    from rich.table import Table

    console = make_console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("dataset", "algorithm", "a run", which, "disk", "basis"):
        table.add_column(column, justify="left" if column in ("dataset", "algorithm", "basis") else "right")
    for one in estimates:
        per_run = "?" if one.seconds is None else duration(one.seconds / one.runs)
        total = "?" if one.seconds is None else duration(one.seconds)
        table.add_row(one.dataset, one.algorithm, per_run, total, size_text(one.bytes), one.basis)
    console.print(table)
    seconds, size, complete = totals(estimates)
    if any(one.seconds is not None for one in estimates):
        wall = (
            f"{duration(seconds / slots)} with {slots} at a time"
            if slots
            else "to be divided by the number of runs at a time"
        )
        limit = "" if complete else "at least "
        console.print(
            f"{which.capitalize()}: {limit}{duration(seconds)} of training, {wall}; {limit}{size_text(size)} on disk."
        )
    if missing:
        print(f"not at hand: {', '.join(missing)}; give the directory above them with --data", flush=True)
    print("Nothing was written.", flush=True)


# -- during -------------------------------------------------------------------------------------------------------


def run(directory: SweepDir, launch: Launch, device: str, retry_failed: bool, selector: str) -> bool:
    """Train, print failures and the table, and return whether the sweep is complete."""
    plan = directory.plan()
    states = directory.states(plan.runs)
    left = plan.pending + sum(state is not State.DONE for state in states.values())
    with show_runs(directory, launch, device, left) as (launcher, display):
        status = run_sweep(directory, launcher, retry_failed=retry_failed, display=display)
    if appendix_b3.is_search(directory.specs) and status.complete:
        table = appendix_b3.choices_table(find_runs(runs_folder(directory.path), warn=False))
        make_console().print(table.rich(), *table.notes, sep="\n")
    print_result(directory, status, selector)
    return status.complete


@contextmanager
def show_runs(directory: SweepDir, launch: Launch, device: str, n_runs: int) -> Iterator[tuple[Launcher, Display]]:
    """Open the launcher, with a bar for every run in a terminal, and lines elsewhere."""
    bars = launch.name == "local" and sys.stderr.isatty()
    with ExitStack() as stack:
        run_display = stack.enter_context(make_display(n_runs)) if bars else None
        display: Display = BarLog(run_display) if run_display is not None else StatusLines(directory)
        yield stack.enter_context(launch.make(device, directory.path, run_display)), display


class BarLog:
    """Shows messages above the bars of the runs, which the launcher draws."""

    def __init__(self, display: LogDisplay) -> None:
        self._display = display

    def update(self, plan: Plan, outcome: Outcome | None) -> None:
        """The bars show it."""

    def log(self, message: str) -> None:
        """Show one line."""
        self._display.log(message)


class StatusLines:
    """Prints how far the sweep is, at most every few seconds."""

    SECONDS = 10.0

    def __init__(self, directory: SweepDir) -> None:
        self._directory = directory
        self._start = self._last = -math.inf
        self._done_before = 0
        self._counts: Counter[str] = Counter()

    def update(self, plan: Plan, outcome: Outcome | None) -> None:
        """Print a line if the last one is some seconds old, or if this is the last run."""
        now = time.monotonic()
        if outcome is None:
            states = Counter(self._directory.states(plan.runs).values())
            self._counts = Counter(finished=states[State.DONE])
            self._start, self._done_before = now, states[State.DONE]
        else:
            self._counts[outcome.status] += 1
        done, failed, total = self._counts["finished"], self._counts["failed"], plan.total
        if now - self._last < self.SECONDS and done + failed < total:
            return
        self._last = now
        text = f"{done:,} of {total:,} runs finished" + (f", {failed:,} failed" if failed else "")
        if self._done_before < done < total:
            per_run = (now - self._start) / (done - self._done_before)
            text += f", about {duration(per_run * (total - done - failed))} left"
        print(text, flush=True)

    def log(self, message: str) -> None:
        """Print one line."""
        print(message, flush=True)


# -- after --------------------------------------------------------------------------------------------------------


def print_result(directory: SweepDir, status: SweepStatus, selector: str) -> None:
    """Print the table of the finished runs, write the page, and list what is missing."""
    from swad.cli.report import print_report
    from swad.results.records import RecordError
    from swad.results.selection import SelectionError

    if status.count(State.DONE):
        try:
            print_report(runs_folder(directory.path), directory.path / "report.html", selector)
        except (SelectionError, RecordError) as error:
            print(f"no table: {error}", file=sys.stderr, flush=True)
    print_failures(status)
    again = f"swad sweep --output {shlex.quote(str(directory.path))}"
    if status.failed:
        print(f"{len(status.failed):,} of {status.total:,} runs failed; retry them with: {again} --retry-failed")
    if status.waiting and status.failed:
        print(
            f"waiting for a search with failed runs: {counted(status.waiting, 'run')}; to choose without those, add "
            "--allow-failed"
        )
    elif not status.failed and not status.complete:
        print(f"not finished: {counted(status.total - status.count(State.DONE), 'run')}; resume with: {again}")


def print_failures(status: SweepStatus, most: int = 20, lines: int = 3) -> None:
    """List the failed runs with the last lines of each."""
    for line in failure_lines(status.failed, lines, most):
        print(line, flush=True)


def show_status(directory: SweepDir, watch: bool, interval: float, failures: int, lines: int) -> None:
    """Print where the sweep stands; with `watch` in a terminal, keep the table up to date until it is complete."""
    from rich.live import Live

    console = make_console()
    plan, specs = directory.plan(), directory.specs
    current = read_status(directory, plan)
    if watch and console.is_terminal:
        with Live(status_table(current), console=console, auto_refresh=False) as live:
            # A search that has just ended is not chosen from yet; one with failed runs has no choice.
            while (
                current.count(State.PENDING) or current.count(State.RUNNING) or (current.waiting and not current.failed)
            ):
                time.sleep(interval)
                if plan.searches or directory.specs != specs:  # else the plan stays the same
                    plan, specs = directory.plan(), directory.specs
                current = read_status(directory, plan)
                live.update(status_table(current), refresh=True)
    else:
        console.print(status_table(current))
    print_failures(current, failures, lines)
    if current.failed:
        again = f"swad sweep --output {shlex.quote(str(directory.path))} --retry-failed"
        print(f"retry the failed runs with: {again}", flush=True)
