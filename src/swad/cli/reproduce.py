"""`swad reproduce`: a table, figure or analysis of the paper as one command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swad.cli import _options as parse
from swad.cli._options import FORMATS, Device, FigureFormats, Jobs, JobsPerGpu, Launcher, LauncherOptions, Workers
from swad.util.names import counted

if TYPE_CHECKING:
    from swad.testbed.experiments.launchers.make import LauncherConfig
    from swad.testbed.experiments.reproduce.base import Reproduction
    from swad.testbed.experiments.reproduce.config import PaperConfig

EXAMPLES = """
swad reproduce
swad reproduce table5 figure3 --scale small
swad reproduce table2 --data data --protocol defaults --dry-run
swad reproduce table6 --runs runs/ImageNet --data data
swad reproduce all --scale small --jobs 2
"""


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ITEM",
            help="table1 to table13, figure1 to figure5, cost, ranking, sensitivity, or all. "
            "Without one: list them with their cost.",
        ),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            help="full: the paper's datasets in --data. small: the embedded digits, minutes. smoke: a few steps, "
            "seconds. Default: full with --data, else small."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", "-d", help="Directory of the datasets. Missing ones are named and left out."),
    ] = None,
    dataset: Annotated[
        list[str] | None,
        typer.Option(
            metavar=parse.NAMES,
            help="Datasets to train on. Default: the paper's datasets in --data.",
            autocompletion=parse.complete_dataset,
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option("--target", "-t", metavar=parse.NAMES, help="Domains to hold out. Default: each domain in turn."),
    ] = None,
    trial: Annotated[
        list[str] | None,
        typer.Option(metavar=parse.NUMBERS, help="Train-validation splits. Default: 0,1,2; small 0,1; smoke 0."),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            help="printed: each row with the search behind the printed number. paper or domainbed: all searched rows "
            "with that search. defaults: no search. Default: printed; small and smoke defaults."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="State the cost and stop; write nothing.")] = False,
    network: Annotated[
        str | None, typer.Option(help="Name of a timm model, or small. Default: depends on the dataset.")
    ] = None,
    weights: Annotated[str | None, typer.Option(help="pretrained, random, or a safetensors file.")] = None,
    steps: Annotated[
        int | None, typer.Option(help="Number of updates of each run. Default: depends on the dataset and the scale.")
    ] = None,
    evaluate_every: Annotated[
        int | None, typer.Option(help="Updates between evaluations. Default: depends on the dataset and the scale.")
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(metavar=parse.NAMES, help="figure3: some of erm,sam,swa-cyclic,swa,swad. Default: all."),
    ] = None,
    live_weights: Annotated[str, typer.Option(help="Figures: live weights of ERM and SAM, best or last.")] = "best",
    radii: Annotated[
        list[str] | None,
        typer.Option(metavar=parse.NUMBERS, help="figure3, ranking: radii, as for `swad measure flatness`."),
    ] = None,
    directions: Annotated[
        int | None, typer.Option(help="figure3, ranking: number of random directions. Default: 100; small 20; smoke 4.")
    ] = None,
    images: Annotated[
        int | None,
        typer.Option(help="Images per domain to measure on; 0 uses all. Default: 200; small 100; smoke 10."),
    ] = None,
    grid: Annotated[int | None, typer.Option(help="Grid points per side of surfaces. Default: 21; smoke 3.")] = None,
    runs: Annotated[
        Path | None,
        typer.Option(
            help="table6: directory of runs of `swad train imagenet`. They are evaluated on imagenet, imagenet-c, "
            "imagenet-r and bg_challenge in --data."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Directory of all runs, tables and figures. Default: paper, paper-small or paper-smoke.",
        ),
    ] = None,
    figure_formats: FigureFormats = FORMATS,
    device: Device = "auto",
    launcher: Launcher = "local",
    launcher_option: LauncherOptions = None,
    jobs: Jobs = None,
    jobs_per_gpu: JobsPerGpu = 1,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Train failed runs again.")] = False,
    workers: Workers = None,
    allow_count_mismatch: Annotated[
        bool, typer.Option("--allow-count-mismatch", help="Allow image counts that differ from the published dataset.")
    ] = False,
) -> None:
    """Reproduce tables and figures of the paper: state the cost, train the missing runs, measure, and compare.

    All items share their runs: nothing is trained twice. Finished runs are reused, and interrupted work resumes.
    """
    from swad.cli._launch import parse_launcher_options
    from swad.cli._problems import Problems
    from swad.testbed.experiments.launchers.make import LauncherConfig
    from swad.testbed.experiments.reproduce.config import make_config
    from swad.testbed.experiments.reproduce.items import ITEMS, get_items
    from swad.testbed.experiments.reproduce.run import cost_lines, cost_of, estimate_line
    from swad.util.progress import progress_report

    # Every value is parsed before anything is reported, so that all problems are listed together.
    problems = Problems()

    def at_least(option: str, value: int | None, minimum: int, maximum: int | None = None) -> int | None:
        return None if value is None else problems.collect(parse.at_least, option, value, minimum, maximum)

    items = problems.collect(get_items, parse.words(names)) if names else None
    request: dict[str, Any] = {
        "scale": scale,
        "data": data,
        "datasets": parse.words(dataset),
        "output": output,
        "trials": problems.collect(parse.whole_numbers, "trial", trial) or None,
        "targets": tuple(parse.words(target)),
        "protocol": protocol,
        "network": network,
        "weights": weights,
        "steps": steps,
        "evaluate_every": evaluate_every,
        "device": device,
        "workers": workers,
        "check_counts": not allow_count_mismatch,
        "methods": tuple(parse.words(methods)),
        "live_weights": live_weights,
        "radii": problems.collect(parse.numbers, "radii", radii) or None,
        "directions": None if directions is None else problems.collect(parse.even_directions, directions),
        "images": at_least("images", images, 0),
        "grid": at_least("grid", grid, 2, parse.MOST_POINTS),
        "formats": problems.collect(parse.figure_formats, figure_formats) or (),
        "runs": runs,
    }
    config = problems.collect(lambda: make_config(**request))
    options = problems.collect(parse_launcher_options, launcher_option) or {}
    launch = LauncherConfig(launcher, jobs, jobs_per_gpu, options)
    problems += launch.problems()
    problems.require_none()
    assert config is not None
    if items is None:
        _print_items(list(ITEMS.values()), config)
        return
    cost = cost_of(items, config)
    for line in cost_lines(items, config, cost):
        print(line, flush=True)
    if dry_run or config.scale != "smoke":  # there, measuring a step takes as long as a run
        with progress_report() as progress:
            if line := estimate_line(config, cost, launch.slots(config.device), progress):
                print(line, flush=True)
    if dry_run:
        print("Nothing was written.", flush=True)
        return
    if cost.missing:
        _train(items, config, launch, cost.missing, retry_failed)
    _build(items, config)


def _print_items(items: list[Reproduction], config: PaperConfig) -> None:
    from swad.cli._console import make_console, plain_table
    from swad.testbed.experiments.reproduce.run import item_costs

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


def _train(
    items: list[Reproduction], config: PaperConfig, launch: LauncherConfig, missing: int, retry_failed: bool
) -> None:
    """Train the missing runs. Failed ones are listed: the items are built without them."""
    from swad.cli._launch import print_failures, show_runs
    from swad.testbed.experiments.reproduce.run import train_missing
    from swad.testbed.experiments.sweep.directory import SweepDir

    with show_runs(SweepDir(config.output), launch, config.device, missing, retry_failed) as (launcher, display):
        status = train_missing(items, config, launcher, retry_failed=retry_failed, display=display)
    print_failures(status)
    if status.failed:
        print(f"{len(status.failed):,} of {status.total:,} runs failed; add --retry-failed to retry")


def _build(items: list[Reproduction], config: PaperConfig) -> None:
    from swad.cli._console import measuring, print_report
    from swad.testbed.experiments.reproduce.base import Results
    from swad.testbed.experiments.reproduce.run import INDEX, build_item
    from swad.testbed.training.run_dir import RunError

    not_built = []
    with measuring() as progress:
        results = Results(config, progress)
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
