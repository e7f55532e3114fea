"""What `swad sweep run --dry-run` prints: how many runs there are, and what they will cost."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from swad.cli._console import make_console, plain_table
from swad.cli._launch import LaunchOptions
from swad.cli._problems import Problems
from swad.testbed.data import benchmarks
from swad.testbed.sweep import checks
from swad.testbed.sweep.directory import SweepDir
from swad.testbed.sweep.estimate import GroupEstimate, describe_costs, estimate
from swad.testbed.sweep.plan import SweepPlan
from swad.testbed.sweep.spec import SweepSpec
from swad.util.names import counted
from swad.util.progress import duration, progress_report

if TYPE_CHECKING:
    from rich.table import Table


def print_estimate(
    directory: SweepDir, specs: Sequence[SweepSpec], launch: LaunchOptions, device: str, problems: Problems
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
    repeats = sum(count for (*_, stage), count in plan.counts.items() if stage == "repeat")
    parts = f" ({plan.total - repeats:,} to search + {repeats:,} to repeat the choice)" if repeats else ""
    at_most = "at most " if plan.pending and any(spec.plans_pairs for spec in specs) else ""
    console = make_console()
    console.print(f"[bold]{at_most}{counted(plan.total, 'run')}[/]{parts}{f', {done:,} of them done' if done else ''}")
    console.print(_counts_table(plan))
    if not unfinished.total:
        print("Nothing is left to train. Nothing was written.", flush=True)
        return
    slots = launch.slots(device)
    at_hand = {name for name, _, _ in plan.counts} - missing.keys()
    with progress_report() as progress:
        estimates = estimate(unfinished, at_hand, device, slots and slots * launch.processes, progress)
    which = "the other runs" if done else "all runs"
    _print_costs(estimates, missing, which, describe_costs(estimates, slots, launch.processes))


def _counts_table(plan: SweepPlan) -> Table:
    datasets = list(dict.fromkeys(name for name, _, _ in plan.counts))
    algorithms = list(dict.fromkeys(name for _, name, _ in plan.counts))
    sums: Counter[tuple[str | None, str | None, str]] = Counter()  # None stands for all
    for (dataset, algorithm, stage), count in plan.counts.items():
        for key in itertools.product((dataset, None), (algorithm, None), (stage,)):
            sums[key] += count

    def cell(row: str | None, column: str | None) -> str:
        repeats = sums[row, column, "repeat"]
        return f"{sums[row, column, 'search']:,}" + (f" + {repeats:,}" if repeats else "")

    rows = [*datasets, *([None] if len(datasets) > 1 else [])]
    columns = [*algorithms, *([None] if len(algorithms) > 1 else [])]
    names = [column or "all" for column in columns]
    table = plain_table("runs", *names, right=names)
    for row in rows:
        cells = [cell(row, column) for column in columns]
        table.add_row(row or "all", *cells, style="bold" if row is None else "")
    return table


def _print_costs(estimates: Sequence[GroupEstimate], missing: Mapping[str, str], which: str, costs: str) -> None:
    from rich.filesize import decimal

    console = make_console()
    table = plain_table("dataset", "algorithm", "a run", which, "disk", right=("a run", which, "disk"))
    for group in estimates:
        per_run = "?" if group.seconds is None else duration(group.seconds / group.runs)
        total = "?" if group.seconds is None else duration(group.seconds)
        size = "?" if group.bytes is None else decimal(group.bytes)
        table.add_row(group.dataset, group.algorithm, per_run, total, size)
    console.print(table)
    if any(group.seconds is not None for group in estimates):
        console.print(f"{which.capitalize()}: {costs}.")
    if missing:
        print(f"not found: {', '.join(missing)}; give the directory above them with --data", flush=True)
    print("Nothing was written.", flush=True)
