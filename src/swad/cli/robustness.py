"""`swad robustness`: errors of saved weights under corruption."""

from __future__ import annotations

from typing import Annotated

import typer

from swad.cli import _options as parse
from swad.cli._options import DataNow, Device, FigureFolder, FigureFormats, Images, Runs, Workers

EXAMPLES = """
swad robustness runs/PACS
swad robustness runs/PACS/erm/sketch-0 --weights best,swad --corruptions fog,snow --severities 1,3,5
"""


def robustness(
    runs: Runs,
    weights: Annotated[
        str,
        typer.Option(
            help="Weights to measure, e.g. best,swa,swad. The others are compared with the first. Default: all that a "
            "run reports."
        ),
    ] = "",
    corruptions: Annotated[str, typer.Option(help="Some of the 15 corruptions of ImageNet-C. Default: all.")] = "",
    severities: Annotated[str, typer.Option(help="Severities from 1 to 5.")] = "1,2,3,4,5",
    images: Images = 200,
    seed: Annotated[int, typer.Option(help="Seed of the corruptions.")] = 0,
    output: FigureFolder = None,
    figure_formats: FigureFormats = "svg,pdf,png",
    data: DataNow = None,
    device: Device = "auto",
    workers: Workers = None,
) -> None:
    """Measure the error under noise, blur, weather and digital corruption, on seen and unseen domains.

    Images are corrupted here by the definitions of ImageNet-C; nothing is downloaded. Results are saved in each run's
    robustness.jsonl. Run the same command again to resume after an interrupt.
    """
    from swad.cli._console import measuring, print_notes, print_report
    from swad.experiments.flatness_report import choose_weights
    from swad.experiments.robustness_report import measure_robustness
    from swad.experiments.run_robustness import CorruptionConfig
    from swad.experiments.saved_run import open_runs

    default = CorruptionConfig()
    config = CorruptionConfig(
        corruptions=tuple(parse.words(corruptions)) or default.corruptions,
        severities=tuple(parse.whole_numbers(severities)),
        n_images=parse.at_least("images", images, 0) or None,
        seed=seed,
    )
    formats = parse.figure_formats(figure_formats)
    saved_runs, notes = open_runs(runs, data)
    names = choose_weights(saved_runs, parse.words(weights))
    print_notes(notes)
    with measuring() as progress:
        report = measure_robustness(
            saved_runs,
            names,
            config,
            output=output if output is not None else runs[0] / "figures",
            formats=formats,
            device=parse.device(device),
            workers=workers,
            progress=progress,
        )
    print_report(report.tables, report.written, report.row_files)
