"""`swad reproduce`: a table, figure or analysis of the paper as one command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from swad.cli import _options as parse
from swad.cli import train
from swad.cli._fields import Special, add_parameters, field_options
from swad.cli._options import FORMATS, Jobs, JobsPerGpu, Launcher, LauncherOptions, Processes
from swad.testbed.paper.paper_config import PAPER_SETTINGS
from swad.util.names import counted

if TYPE_CHECKING:
    from swad.cli._launch import LaunchOptions
    from swad.testbed.paper.paper_config import PaperConfig
    from swad.testbed.paper.reproduction import Reproduction

EXAMPLES = """
swad reproduce
swad reproduce table5 figure3 --scale small
swad reproduce table2 --data data --protocol defaults --dry-run
swad reproduce table6 --runs runs/ImageNet --data data
swad reproduce all --scale small --jobs 2
"""

OPTIONS = field_options(
    PAPER_SETTINGS.values(),
    {
        "data": Special(("--data", "-d")),
        "datasets": Special(("--dataset",), complete=parse.complete_dataset),
        "targets": Special(("--target", "-t")),
        "trials": Special(("--trial",)),
        "directions": Special(convert=lambda number: None if number is None else parse.even_directions(number)),
        "output": Special(("--output", "-o")),
        "formats": Special(("--figure-formats",), default=FORMATS, convert=parse.figure_formats),
        "device": Special(default="auto"),
        "check_counts": train.SPECIAL["check_counts"],
    },
    lambda setting: None,
    stated=True,
)


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ITEM",
            help="table1 to table13, figure1 to figure5, cost, ranking, sensitivity, or all. "
            "Without one: list them with their cost.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="State the cost and stop; write nothing.")] = False,
    launcher: Launcher = "local",
    launcher_option: LauncherOptions = None,
    jobs: Jobs = None,
    jobs_per_gpu: JobsPerGpu = 1,
    processes: Processes = 1,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Train failed runs again.")] = False,
    **options: Any,
) -> None:
    """Reproduce tables and figures of the paper: state the cost, train the missing runs, measure, and compare.

    All items share their runs: nothing is trained twice. Finished runs are reused, and interrupted work resumes.
    """
    from swad.cli._launch import LaunchOptions, parse_launcher_options
    from swad.cli._problems import Problems
    from swad.testbed.paper.items import ITEMS, get_items
    from swad.testbed.paper.paper_config import make_config
    from swad.testbed.paper.reproduce import cost_lines, cost_of, estimate_line
    from swad.testbed.training.checks import require_processes
    from swad.util.progress import progress_report

    # Every value is parsed before anything is reported, so that all problems are listed together.
    problems = Problems()
    items = problems.collect(get_items, parse.words(names)) if names else None
    request = {name: problems.collect(option.convert, options[name]) for name, option in OPTIONS.items()}
    config = problems.collect(lambda: make_config(**request))
    launcher_options = problems.collect(parse_launcher_options, launcher_option) or {}
    launch = LaunchOptions(launcher, jobs, jobs_per_gpu, launcher_options, processes)
    problems += launch.problems()
    problems.require_none()
    assert config is not None
    if items is None:
        _print_items(list(ITEMS.values()), config)
        return
    cost = cost_of(items, config)
    require_processes((run.config for run in cost.plan.runs), processes)
    for line in cost_lines(items, config, cost):
        print(line, flush=True)
    if dry_run or config.scale != "smoke":  # there, measuring a step takes as long as a run
        with progress_report() as progress:
            if line := estimate_line(config, cost, launch.slots(config.device), processes, progress):
                print(line, flush=True)
    if dry_run:
        print("Nothing was written.", flush=True)
        return
    if cost.missing:
        _train(items, config, launch, retry_failed)
    _build(items, config)


add_parameters(reproduce, [option.parameter for option in OPTIONS.values()])


def _print_items(items: list[Reproduction], config: PaperConfig) -> None:
    from swad.cli._console import make_console, plain_table
    from swad.testbed.paper.reproduce import item_costs

    columns = ("item", "title", "runs", "finished")
    table = plain_table(*columns, right=columns[2:], no_wrap=columns)
    titles = {**{item.name: item.title for item in items}, "all": "every item"}
    for name, cost in item_costs(items, config).items():
        table.add_row(name, titles[name], f"{cost.total:,}", f"{cost.finished:,}")
    console = make_console()
    console.print(table)
    console.print(
        f"\nScale {config.scale}, protocol {config.protocol}, {counted(len(config.trials), 'trial')}, datasets "
        f"{', '.join(config.datasets)}, in {config.output}. Items share their runs.\n"
        "Cost of an item: swad reproduce ITEM --dry-run. Make it: swad reproduce ITEM.",
        highlight=False,
        markup=False,
    )


def _train(items: list[Reproduction], config: PaperConfig, launch: LaunchOptions, retry_failed: bool) -> None:
    """Train the missing runs. Failed ones are listed: the items are built without them."""
    from swad.cli._launch import print_failures, start_workers
    from swad.testbed.paper.reproduce import train_missing
    from swad.testbed.sweep.directory import SweepDir

    start = start_workers(SweepDir(config.output), launch, config.device)
    status = train_missing(items, config, start, retry_failed=retry_failed)
    print_failures(status)
    if status.failed:
        print(f"{len(status.failed):,} of {status.total:,} runs failed; add --retry-failed to retry")


def _build(items: list[Reproduction], config: PaperConfig) -> None:
    from swad.cli._console import measuring, print_report
    from swad.testbed.paper.reproduce import INDEX, build_item
    from swad.testbed.paper.reproduction import PaperRuns
    from swad.testbed.training.run_dir import RunError

    not_built = []
    with measuring() as progress:
        results = PaperRuns(config, progress)
        for item in items:
            try:
                report = build_item(item, results)
            except RunError as error:  # its runs failed; the others may be complete
                not_built.append(f"{item.name}: {error}")
                continue
            print_report(report)
    if (index := config.output / INDEX).exists():
        print(f"index: {index}", flush=True)
    if not_built:
        raise RunError(f"not built: {'; '.join(not_built)}")
