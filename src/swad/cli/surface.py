"""`swad surface`: the loss on a plane or line through saved weights."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from swad.cli import _options as parse
from swad.cli._options import FORMATS, DataNow, Device, FigureFolder, FigureFormats, Images, Runs, Stored, Workers

EXAMPLES = """
swad surface runs/PACS/erm/sketch-0
swad surface runs/PACS/erm/sketch-0 --line best,swad
"""


def surface(
    context: typer.Context,
    runs: Runs,
    corners: Annotated[
        list[str] | None,
        typer.Option(
            metavar=parse.NAMES,
            help="Three weights, e.g. 2500,3500,4500 or best,swa,swad. Default: three snapshots.",
        ),
    ] = None,
    line: Annotated[
        list[str] | None,
        typer.Option(
            metavar=parse.NAMES,
            help="Evaluate the line between two weights, e.g. best,swad, instead of a plane.",
        ),
    ] = None,
    points: Annotated[
        list[str] | None,
        typer.Option(metavar=parse.NAMES, help="Further weights to project onto the plane. Default: averages near it."),
    ] = None,
    steps: Annotated[int, typer.Option(help="Number of grid points per side.")] = 21,
    margin: Annotated[
        float, typer.Option(help="How far the grid extends beyond the corners, as a share of the longer side.")
    ] = 0.4,
    images: Images = 200,
    stored: Stored = False,
    output: FigureFolder = None,
    figure_formats: FigureFormats = FORMATS,
    data: DataNow = None,
    device: Device = "auto",
    workers: Workers = None,
) -> None:
    """Evaluate the loss on the plane through three saved weights, on seen and unseen domains (the paper's Figure 4).

    Results are saved in each run's surface.jsonl. Run the same command again to resume after an interrupt.
    """
    from swad.cli._console import measuring, print_report
    from swad.testbed.measure.run_surface import measure_surfaces, report_surfaces
    from swad.testbed.results.measurement_rows import SURFACE

    formats, several = parse.figure_formats(figure_formats), len(runs) > 1
    folder = Path("surface") if output is None and several else parse.output_folder(output, runs[0], "figures")
    if stored:
        paths = parse.stored_runs(context, runs, SURFACE, "runs", "output", "figure_formats")
        print_report(report_surfaces(paths, output=folder, formats=formats))
        return
    if not 0 <= margin < math.inf:
        raise ValueError(f"--margin must be a number of 0 or more, got {margin}")
    if line and corners:
        raise ValueError("--corners is for a plane and --line for a line: give one of them")
    names = parse.words(corners or line)
    if corners and len(names) != 3:
        raise ValueError(
            f"--corners takes three weights such as 2500,3500,4500, got {','.join(names)}; for two use --line A,B"
        )
    if line and len(names) != 2:
        raise ValueError(f"--line takes two weights such as best,swad, got {','.join(names)}")
    with measuring() as progress:
        paths, notes = measure_surfaces(
            runs,
            names,
            None if points is None else parse.words(points),
            data=data,
            progress=progress,
            steps=parse.at_least("steps", steps, 2, parse.MOST_POINTS),
            margin=margin,
            n_images=parse.at_least("images", images, 0) or None,
            device=device,
            workers=workers,
        )
    shape = "line" if line else "plane"
    print_report(report_surfaces(paths, [shape], output=folder, formats=formats, notes=notes))
