"""`swad windows`: the accuracy of every window of a training, next to the window that SWAD chose."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from swad.cli import _options as parse
from swad.cli._options import FORMATS, DataNow, Device, FigureFormats, Images, Runs, Stored, Workers
from swad.util.names import require_choice

EXAMPLES = """
swad windows runs/PACS
swad windows runs/PACS --evaluate-on target --images 0 --every 2
swad windows runs/PACS --stored
"""


def windows(
    context: typer.Context,
    runs: Runs,
    evaluate_on: Annotated[
        str, typer.Option(help="Images to evaluate on: target, validation (of the sources), or both.")
    ] = "both",
    images: Images = 500,
    every: Annotated[
        int | None,
        typer.Option(help="Merge this many segments into one. Default: as few as leave at most 25 segments."),
    ] = None,
    average: Annotated[
        str, typer.Option(help="The average of the runs that windows are compared with, e.g. swad or swad_text.")
    ] = "swad",
    stored: Stored = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Directory for results. Default: RUN/windows.")
    ] = None,
    figure_formats: FigureFormats = FORMATS,
    data: DataNow = None,
    device: Device = "auto",
    workers: Workers = None,
) -> None:
    """Evaluate the average of every window of a training, to see whether the start and the end that SWAD finds matter.

    Needs runs that were trained with --keep-segments. A window is any range of whole segments, the updates between two
    evaluations. Results are saved in each run's windows.jsonl. Run the same command again to resume after an interrupt;
    once they are complete, it needs no segments, weights or images.
    """
    from swad.cli._console import measuring, print_report
    from swad.testbed.experiments.run_windows import WindowsConfig, measure_windows, report_windows, stored_windows
    from swad.testbed.results.windows import WINDOWS

    sides = {"target": ("target",), "validation": ("validation",), "both": ("target", "validation")}
    require_choice("--evaluate-on", evaluate_on, sides)
    n_images = parse.at_least("images", images, 0) or None
    config = WindowsConfig(
        sides[evaluate_on], n_images, None if every is None else parse.at_least("every", every, 1), average
    )
    formats, folder = parse.figure_formats(figure_formats), parse.output_folder(output, runs[0], "windows")
    if stored:
        measured, notes = stored_windows(parse.stored_runs(context, runs, WINDOWS, "runs", "output", "figure_formats"))
    else:
        with measuring() as progress:
            measured, notes = measure_windows(
                runs, config, data=data, device=device, workers=workers, progress=progress
            )
    print_report(report_windows(measured, folder, formats, notes))
