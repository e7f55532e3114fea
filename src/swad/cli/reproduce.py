"""`swad reproduce`: a table, figure or analysis of the paper as one command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swad.cli import _options as parse
from swad.cli._options import Device, FigureFormats, Workers

if TYPE_CHECKING:
    from swad.experiments.reproduce.base import Reproduction
    from swad.experiments.reproduce.config import PaperConfig

EXAMPLES = """
swad reproduce
swad reproduce table5 figure3 --scale small
swad reproduce table2 --data data --protocol defaults --dry-run
swad reproduce all --scale small --jobs 2
"""


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ITEM]...",
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
        typer.Option(help="Dataset to train on; repeat for more. Default: the paper's datasets in --data."),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option("--target", "-t", help="Domain to hold out; repeat for more. Default: each domain once."),
    ] = None,
    trials: Annotated[
        int | None, typer.Option(help="Number of train-validation splits. Default: 3; small 2; smoke 1.")
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
    methods: Annotated[str, typer.Option(help="figure3: some of erm,sam,swa-cyclic,swa,swad. Default: all.")] = "",
    live_weights: Annotated[str, typer.Option(help="Figures: live weights of ERM and SAM, best or last.")] = "best",
    radii: Annotated[str, typer.Option(help="figure3, ranking: radii, as for `swad flatness`.")] = "",
    directions: Annotated[
        int | None, typer.Option(help="figure3, ranking: number of random directions. Default: 100; small 20; smoke 4.")
    ] = None,
    images: Annotated[
        int | None,
        typer.Option(help="Images per domain to measure on; 0 uses all. Default: 200; small 100; smoke 10."),
    ] = None,
    grid: Annotated[int | None, typer.Option(help="Grid points per side of surfaces. Default: 21; smoke 3.")] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Directory of all runs, tables and figures. Default: paper, paper-small or paper-smoke.",
        ),
    ] = None,
    figure_formats: FigureFormats = "svg,pdf,png",
    device: Device = "auto",
    jobs: Annotated[int, typer.Option(help="Number of runs that train at a time.")] = 1,
    workers: Workers = None,
    allow_count_mismatch: Annotated[
        bool, typer.Option("--allow-count-mismatch", help="Allow image counts that differ from the published dataset.")
    ] = False,
) -> None:
    """Reproduce tables and figures of the paper: state the cost, train the missing runs, measure, and compare.

    All items share their runs: nothing is trained twice. Finished runs are reused, and interrupted work resumes.
    """
    from swad.experiments.reproduce.config import make_config
    from swad.experiments.reproduce.items import ITEMS, get_items

    config = make_config(
        scale=scale,
        data=data,
        datasets=dataset,
        output=output,
        trials=None if trials is None else parse.at_least("trials", trials, 1),
        targets=tuple(target or ()),
        protocol=protocol,
        network=network,
        weights=weights,
        steps=steps,
        evaluate_every=evaluate_every,
        device=parse.device(device),
        workers=workers,
        check_counts=not allow_count_mismatch,
        methods=tuple(parse.words(methods)),
        live_weights=live_weights,
        radii=tuple(parse.radii(radii)) or None,
        directions=None if directions is None else parse.even_directions(directions),
        images=images,
        grid=None if grid is None else parse.at_least("grid", grid, 2),
        formats=parse.figure_formats(figure_formats),
    )
    parse.at_least("jobs", jobs, 1)
    if not names:
        _print_items(list(ITEMS.values()), config)
        return
    items = get_items(names)
    _print_cost(items, config)
    if not dry_run:
        _reproduce(items, config, jobs)


def _print_items(items: list[Reproduction], config: PaperConfig) -> None:
    from rich.table import Table

    from swad.cli._console import make_console
    from swad.experiments.reproduce.run import cost_of

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("item", "title", "runs", "finished"):
        table.add_column(column, justify="right" if column in ("runs", "finished") else "left", no_wrap=True)
    for name, title, members in (*((i.name, i.title, [i]) for i in items), ("all", "every item", items)):
        cost = cost_of(members, config)
        table.add_row(name, title, f"{cost.total:,}", f"{cost.finished:,}")
    console = make_console()
    console.print(table)
    n = len(config.trials)
    console.print(
        f"\nScale {config.scale}, protocol {config.protocol}, {n} trial{'s' if n > 1 else ''}, datasets "
        f"{', '.join(config.datasets)}, in {config.output}. Items share their runs.\n"
        "Cost of an item: swad reproduce ITEM --dry-run. Make it: swad reproduce ITEM.",
        highlight=False,
        markup=False,
    )


def _print_cost(items: list[Reproduction], config: PaperConfig) -> None:
    from swad.experiments.reproduce.run import cost_lines

    for line in cost_lines(items, config):
        print(line, flush=True)


def _reproduce(items: list[Reproduction], config: PaperConfig, jobs: int) -> None:
    from swad.cli._console import measuring, print_report
    from swad.experiments.reproduce.run import INDEX, reproduce

    with measuring() as progress:
        for _, report in reproduce(items, config, jobs=jobs, progress=progress):
            print_report(report.tables, report.written, report.row_files)
    print(f"index: {config.output / INDEX}", flush=True)
