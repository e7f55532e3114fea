"""`swad flatness`, `surface` and `reproduce`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from swad.cli import _options as read
from swad.cli._options import DataNow, Device, FigureFolder, FigureFormats, Images, Workers


def flatness(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders, or folders of runs.")],
    weights: Annotated[
        str,
        typer.Option(help="Which weights, e.g. best,swa,swad or the step 2500; others are compared with the first."),
    ] = "",
    radii: Annotated[
        str,
        typer.Option(
            help="Distances, as 0,5,10 or 0:60:5. Default: 0:60:5 as published; small network 0:24:2; shares 0:1:0.1."
        ),
    ] = "",
    directions: Annotated[int, typer.Option(help="Random directions, in opposite pairs; 4 or more.")] = 100,
    images: Images = 200,
    normalize: Annotated[
        str,
        typer.Option(help="Directions: sphere (as published); filter, layer: radii are shares of the weights."),
    ] = "sphere",
    seed: Annotated[int, typer.Option(help="Of the directions.")] = 0,
    include: Annotated[
        str, typer.Option(help="Move these parameters alone: name patterns, e.g. 'head.*,*.bias'.")
    ] = "",
    exclude: Annotated[str, typer.Option(help="Leave these parameters where they are: name patterns.")] = "",
    worst_case: Annotated[
        str, typer.Option(help="Also the worst loss within these radii, by ascent, e.g. 0.05,0.1.")
    ] = "",
    curvature: Annotated[bool, typer.Option("--curvature", help="Also eigenvalues and trace of the Hessian.")] = False,
    output: FigureFolder = None,
    figure_formats: FigureFormats = "svg,pdf,png",
    data: DataNow = None,
    device: Device = "auto",
    workers: Workers = None,
) -> None:
    """How the loss rises around saved weights, on domains seen and unseen (the paper's Figure 3).

    Rows are kept in each run's flatness.jsonl as they are computed: run it again after a stop and it goes on.
    """
    from swad.experiments.flatness_commands import show_flatness
    from swad.experiments.run_flatness import FlatnessConfig

    if normalize not in ("sphere", "filter", "layer"):
        raise ValueError(f"--normalize is one of sphere, filter, layer; got {normalize!r}")
    show_flatness(
        runs,
        weights=read.words(weights),
        measuring=FlatnessConfig(
            tuple(read.radii(radii)) or None,
            read.even_directions(directions),
            read.at_least("images", images, 0) or None,
            normalize,  # type: ignore[arg-type]
            seed,
            tuple(read.words(include)),
            tuple(read.words(exclude)),
        ),
        worst_radii=read.radii(worst_case),
        curvature=curvature,
        output=output,
        formats=read.figure_formats(figure_formats),
        device=read.device(device),
        workers=workers,
        data=data,
    )


def surface(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders, or folders of runs.")],
    corners: Annotated[
        str, typer.Option(help="Three weights, e.g. 2500,3500,4500 or best,swa,swad. Default: three snapshots.")
    ] = "",
    line: Annotated[
        tuple[str, str] | None, typer.Option(help="Instead: the straight line between two weights.")
    ] = None,
    points: Annotated[
        str | None, typer.Option(help="Further weights to project onto the plane. Default: averages near it.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Points along each side.")] = 21,
    margin: Annotated[float, typer.Option(help="Room around the corners, as a share of the longer side.")] = 0.4,
    images: Images = 200,
    output: FigureFolder = None,
    figure_formats: FigureFormats = "svg,pdf,png",
    data: DataNow = None,
    device: Device = "auto",
    workers: Workers = None,
) -> None:
    """The loss on the plane through three saved weights, on domains seen and unseen (the paper's Figure 4).

    Rows are kept in each run's surface.jsonl as they are computed: run it again after a stop and it goes on.
    """
    from swad.experiments.flatness_commands import show_surface

    if not 0 <= margin < math.inf:
        raise ValueError(f"--margin must be a number of 0 or more, got {margin}")
    if line is not None and corners:
        raise ValueError("--corners is for a plane and --line for a line: give one of them")
    chosen = list(line) if line is not None else read.words(corners)
    if line is None and chosen and len(chosen) != 3:
        raise ValueError(f"--corners takes three weights, got {corners!r}: e.g. 2500,3500,4500; for two use --line A B")
    show_surface(
        runs,
        corners=chosen,
        points=None if points is None else read.words(points),
        steps=read.at_least("steps", steps, 2),
        margin=margin,
        images=read.at_least("images", images, 0) or None,
        output=output,
        formats=read.figure_formats(figure_formats),
        device=read.device(device),
        workers=workers,
        data=data,
    )
