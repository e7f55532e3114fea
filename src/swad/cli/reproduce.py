"""`swad reproduce`: a figure of the paper as one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from swad.cli import _options as parse
from swad.cli._options import Device, FigureFormats, Images, Workers

EXAMPLES = """
swad reproduce figure3
swad reproduce figure5 --dataset PACS --data data --trials 3
"""


def reproduce(
    name: Annotated[str, typer.Argument(metavar="FIGURE", help="figure3, figure4 or figure5.")],
    dataset: Annotated[str, typer.Option(help="digits (embedded), PACS, or another dataset.")] = "digits",
    data: Annotated[Path | None, typer.Option("--data", "-d", help="Directory of the dataset.")] = None,
    target: Annotated[
        list[str] | None,
        typer.Option("--target", "-t", help="Domain to hold out; repeat for more. Default: each domain once."),
    ] = None,
    methods: Annotated[str, typer.Option(help="figure3: some of erm,sam,swa-cyclic,swa,swad. Default: all.")] = "",
    live_weights: Annotated[str, typer.Option(help="Live weights of ERM and SAM: best or last.")] = "best",
    trials: Annotated[int, typer.Option(help="Number of train-validation splits.")] = 1,
    network: Annotated[
        str | None, typer.Option(help="Name of a timm model, or small. Default: depends on the dataset.")
    ] = None,
    weights: Annotated[str | None, typer.Option(help="pretrained, random, or a safetensors file.")] = None,
    steps: Annotated[
        int | None, typer.Option(help="Number of updates of each run. Default: depends on the dataset.")
    ] = None,
    radii: Annotated[str, typer.Option(help="figure3: radii, as for `swad flatness`.")] = "",
    directions: Annotated[int, typer.Option(help="figure3: number of random directions.")] = 100,
    images: Images = 200,
    grid: Annotated[int, typer.Option(help="figure4: grid points per side.")] = 21,
    output: Annotated[Path, typer.Option("--output", "-o", help="Directory for runs and figures.")] = Path("paper"),
    figure_formats: FigureFormats = "svg,pdf,png",
    device: Device = "auto",
    jobs: Annotated[int, typer.Option(help="Number of runs that train at a time.")] = 1,
    workers: Workers = None,
    allow_count_mismatch: Annotated[
        bool, typer.Option("--allow-count-mismatch", help="Allow image counts that differ from the published dataset.")
    ] = False,
) -> None:
    """Reproduce a figure of the paper: train the missing runs, measure, and draw.

    Figures share their runs. Finished runs are reused, and interrupted work resumes.
    """
    from swad.cli._console import measuring, print_report
    from swad.experiments import paper

    figure = paper.FigureConfig(
        dataset=dataset,
        output=output,
        data=data,
        targets=tuple(target or ()),
        trials=parse.at_least("trials", trials, 1),
        network=network,
        weights=weights,
        steps=steps,
        device=parse.device(device),
        workers=workers,
        check_counts=not allow_count_mismatch,
        methods=tuple(parse.words(methods)),
        live_weights=live_weights,
        radii=tuple(parse.radii(radii)) or None,
        directions=parse.even_directions(directions),
        images=parse.at_least("images", images, 0) or None,
        grid=parse.at_least("grid", grid, 2),
        formats=parse.figure_formats(figure_formats),
    )
    with measuring() as progress:
        report = paper.reproduce(name, figure, parse.at_least("jobs", jobs, 1), progress)
    print_report(report.tables, report.written, report.row_files)
