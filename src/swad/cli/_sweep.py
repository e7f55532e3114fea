"""What `swad sweep run` does between parsing its options and printing its result."""

from __future__ import annotations

import dataclasses
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from swad.cli._console import make_console, print_table
from swad.cli._launch import LaunchOptions, print_failures, start_workers
from swad.cli._problems import Problems
from swad.testbed.results.runs import find_runs
from swad.testbed.results.selection_file import read_selection
from swad.testbed.sweep import appendix_b3, checks, spec_file
from swad.testbed.sweep.directory import SWEEP, SweepDir, runs_folder
from swad.testbed.sweep.run import run_sweep
from swad.testbed.sweep.selected_settings import read_selected
from swad.testbed.sweep.spec import SweepSpec
from swad.testbed.sweep.status import SweepStatus, read_status, status_table
from swad.testbed.training.config import SETTINGS
from swad.testbed.workers.work import State
from swad.util.names import counted

DEFAULTS = {"device": "auto"}
"""Settings of the runs of a new sweep that differ from those of `RunConfig`: every machine finds its own device."""


def find_specs(
    directory: SweepDir,
    plan: Path | None,
    stated: Mapping[str, Any],
    settings: Mapping[str, Any],
    selection: Path | None,
    problems: Problems,
) -> list[SweepSpec]:
    """Return the spec that options and plan file state, or those of the sweep that is resumed; collect the problems.

    Options state fields of the spec (`stated`) and settings of the runs. `selection` is a file of hyperparameters.
    """
    earlier = problems.collect(lambda: directory.specs) or ()
    on_machine = {name: value for name, value in settings.items() if SETTINGS[name].role == "machine"}
    resumes = plan is None and selection is None and set(stated) <= {"data"} and set(settings) <= set(on_machine)
    if resumes and not (directory.path / SWEEP).exists():  # a misspelled directory must not start a sweep of defaults
        problems.append(
            f"{directory.path} contains no sweep to resume: check --output, or say what to compare, "
            "e.g. --algorithm erm"
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
        specs = appendix_b3.specs({**({} if found else stated), "options": {**DEFAULTS, **settings}})
    else:
        values, found = spec_file.read_spec_file(plan) if plan is not None else ({}, [])
        problems += found
        options = {**DEFAULTS, **values.pop("options", {}), **settings}
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
    selected = problems.collect(lambda: read_selected(path, spec.with_domains())) or {}
    spec = dataclasses.replace(spec, selected=selected)
    problems += checks.find_problems(spec)
    return [spec]


def require_data(specs: Sequence[SweepSpec], problems: Problems) -> None:
    """Require that there is no problem, and that every dataset is there."""
    for spec in specs:
        problems += checks.missing_data(spec)
    problems.require_none()


def add(directory: SweepDir, specs: Sequence[SweepSpec]) -> None:
    """Add specs to a sweep, and say how many runs are new: other options extend a sweep and change none of its runs."""
    earlier = directory.specs
    for spec in specs:
        directory.add(spec)
    if not earlier or len(directory.specs) == len(earlier):
        return
    before = directory.plan(earlier).total
    if new := directory.plan().total - before:
        print(f"extending the sweep in {directory.path}, which has {counted(before, 'run')}, by {new:,}", flush=True)


def run(directory: SweepDir, launch: LaunchOptions, device: str, retry_failed: bool, selector: str) -> bool:
    """Train, print failures and the table, and return whether the sweep is complete."""
    status = run_sweep(directory, start_workers(directory, launch, device), retry_failed=retry_failed)
    if appendix_b3.is_search(directory.specs) and status.complete:
        table = appendix_b3.choices_table(find_runs(runs_folder(directory.path), warn=False))
        print_table(make_console(), table)
    print_result(directory, status, selector)
    return status.complete


def print_result(directory: SweepDir, status: SweepStatus, selector: str) -> None:
    """Print the table of the finished runs, write the page, and list what is missing."""
    from swad.cli.report import report_trained
    from swad.testbed.results.records import RecordError
    from swad.testbed.results.selection import SelectionError

    if status.count(State.DONE):
        try:
            report_trained(runs_folder(directory.path), directory.path / "report.html", selector)
        except (SelectionError, RecordError) as error:
            print(f"no table: {error}", file=sys.stderr, flush=True)
    print_failures(status)
    again = f"swad sweep run --output {shlex.quote(str(directory.path))}"
    if status.failed:
        print(f"{len(status.failed):,} of {status.total:,} runs failed; retry with: {again} --retry-failed")
    if status.waiting and status.failed:
        print(
            f"waiting for a search with failed runs: {counted(status.waiting, 'run')}; to choose without those, add "
            "--allow-failed"
        )
    elif not status.failed and not status.complete:
        print(f"not finished: {counted(status.total - status.count(State.DONE), 'run')}; resume with: {again}")


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
        again = f"swad sweep run --output {shlex.quote(str(directory.path))} --retry-failed"
        print(f"retry the failed runs with: {again}", flush=True)
