"""`swad tune`: other settings of SWAD on finished runs, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from swad.cli import _options as parse
from swad.cli._options import FORMATS, DataNow, Device, FigureFormats, Runs, Workers
from swad.util.names import require_choice

EXAMPLES = """
swad tune runs/PACS
swad tune runs --n-converge 1,2,3,5 --n-tolerance 3,6,10 --tolerance-ratio 0.1,0.2,0.3
swad tune runs --counts-from PACS --tolerance-ratio 0.2,0.3
"""

N_CONVERGE, N_TOLERANCE, TOLERANCE_RATIO, SEMANTICS = ["1,2,3,5"], ["3,6,10"], ["0.1,0.2,0.3"], ["paper"]
"""The default grid."""


def tune(
    runs: Runs,
    n_converge: Annotated[
        list[str],
        typer.Option(
            metavar=parse.NUMBERS,
            help="N_s: evaluations for which a loss must stay the lowest to start the average.",
        ),
    ] = N_CONVERGE,
    n_tolerance: Annotated[
        list[str],
        typer.Option(
            metavar=parse.NUMBERS,
            help="N_e: evaluations in a row above the threshold that end the average; inf for no end.",
        ),
    ] = N_TOLERANCE,
    tolerance_ratio: Annotated[
        list[str],
        typer.Option(metavar=parse.NUMBERS, help="r - 1: by how much the threshold exceeds the loss at the start."),
    ] = TOLERANCE_RATIO,
    semantics: Annotated[
        list[str], typer.Option(metavar=parse.NAMES, help="Definitions to try: paper, text, reference.")
    ] = SEMANTICS,
    select: Annotated[
        str,
        typer.Option(
            help="Choose a setting by the sources' validation accuracy (iid), or by the target's (oracle), which is "
            "then evaluated for every setting."
        ),
    ] = "iid",
    counts_from: Annotated[
        str | None,
        typer.Option(
            metavar="DATASET",
            help="Choose N_s and N_e on this dataset and r on each dataset by itself, as the paper did with PACS. "
            "Default: all three on each dataset.",
        ),
    ] = None,
    save_weights: Annotated[
        bool, typer.Option("--save-weights", help="Also save the averages with the chosen settings.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Directory for results. Default: RUN/tune, or with several tune."),
    ] = None,
    figure_formats: FigureFormats = FORMATS,
    data: DataNow = None,
    device: Device = "auto",
    workers: Workers = None,
) -> None:
    """Try other N_s, N_e and r on finished runs without training, and choose by accuracy on source validation.

    The losses that the runs recorded tell which steps each setting averages. Runs that were trained with
    --keep-segments also have the weights for it: one to two copies of the model on disk for every evaluation. Results
    are saved in each run's tune.jsonl. Run the same command again to resume after an interrupt.
    """
    from swad.cli._console import measuring, print_report
    from swad.testbed.experiments import tune as tuning

    counts = parse.numbers("n-tolerance", n_tolerance)
    settings = tuning.grid(
        parse.whole_numbers("n-converge", n_converge),
        [int(count) if count.is_integer() else count for count in counts],
        parse.numbers("tolerance-ratio", tolerance_ratio),
        parse.words(semantics),
    )
    require_choice("--select", select, ("iid", "oracle"))
    formats = parse.figure_formats(figure_formats)
    folder = Path("tune") if output is None and len(runs) > 1 else parse.output_folder(output, runs[0], "tune")
    with measuring() as progress:
        result = tuning.tune(
            runs,
            settings,
            select=select,  # type: ignore[arg-type]
            counts_from=counts_from,
            data=data,
            device=device,
            workers=workers,
            save=folder / "weights" if save_weights else None,
            progress=progress,
        )
    print_report(tuning.report_tuning(result, folder, select, formats))  # type: ignore[arg-type]
