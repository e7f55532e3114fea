"""`swad flatness`: the flatness of saved weights."""

from __future__ import annotations

from typing import Annotated

import typer

from swad.cli import _options as parse
from swad.cli._options import FORMATS, DataNow, Device, FigureFolder, FigureFormats, Images, Runs, Stored, Workers
from swad.util.names import require_choice

EXAMPLES = """
swad flatness runs/PACS
swad flatness runs/PACS/erm/sketch-0 --weights best,swad --radii 0:60:5
swad flatness runs/PACS --stored
"""


def flatness(
    context: typer.Context,
    runs: Runs,
    weights: Annotated[
        list[str] | None,
        typer.Option(
            metavar=parse.NAMES,
            help="Weights to measure, e.g. best,last,swad, a step such as 2500, or window: snapshots inside the range "
            "that SWAD averaged. The others are compared with the first. Default: all that a run reports.",
        ),
    ] = None,
    radii: Annotated[
        list[str] | None,
        typer.Option(
            metavar=parse.NUMBERS,
            help="Radii, e.g. 0,5,10 or 0:60:5. Default: 0:60:5 as published, 0:24:2 for the small network, 0:1:0.1 "
            "for normalized directions.",
        ),
    ] = None,
    directions: Annotated[
        int, typer.Option(help="Number of random directions, in opposite pairs; an even number of at least 4.")
    ] = 100,
    images: Images = 200,
    normalize: Annotated[
        str,
        typer.Option(
            help="sphere (as published), or scale directions to each layer or filter; radii are then shares of the "
            "weights' norm."
        ),
    ] = "sphere",
    seed: Annotated[int, typer.Option(help="Seed of the directions.")] = 0,
    include: Annotated[
        list[str] | None,
        typer.Option(metavar=parse.NAMES, help="Perturb only these parameters: name patterns, e.g. 'head.*,*.bias'."),
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(metavar=parse.NAMES, help="Keep these parameters fixed: name patterns.")
    ] = None,
    source_split: Annotated[
        str,
        typer.Option(
            help="Images of the source domains: training, validation, or all of them as in the published script. "
            "The target always uses all of its images."
        ),
    ] = "training",
    error: Annotated[bool, typer.Option("--error", help="Also measure the rise of the 0-1 error.")] = False,
    logits: Annotated[
        str,
        typer.Option(
            help="raw, or normalized: scale the logits of all weights to the same size, because F on unseen images "
            "grows with their size."
        ),
    ] = "raw",
    precision: Annotated[
        str | None,
        typer.Option(
            help="Precision of the network: fp32 (exact, without TF32) or bf16. Losses are computed in fp32 and summed "
            "in fp64. Default: the precision of the training on a GPU, else fp32."
        ),
    ] = None,
    worst_case: Annotated[
        list[str] | None,
        typer.Option(metavar=parse.NUMBERS, help="Also search for the worst loss within these radii, e.g. 0.05,0.1."),
    ] = None,
    curvature: Annotated[
        bool, typer.Option("--curvature", help="Also compute top eigenvalues and trace of the Hessian.")
    ] = False,
    log: Annotated[
        bool, typer.Option("--log", help="Draw F on a logarithmic axis, which shows small radii next to large ones.")
    ] = False,
    stored: Stored = False,
    output: FigureFolder = None,
    figure_formats: FigureFormats = FORMATS,
    data: DataNow = None,
    device: Device = "auto",
    workers: Workers = None,
) -> None:
    """Measure how much the loss rises around saved weights, on seen and unseen domains (the paper's Figure 3).

    Results are saved in each run's flatness.jsonl. Run the same command again to resume after an interrupt.
    """
    from swad.cli._console import measuring, print_notes, print_report
    from swad.testbed.experiments.flatness_report import measure_flatness, report_flatness
    from swad.testbed.experiments.run_flatness import FlatnessConfig
    from swad.testbed.measure.finished_runs import choose_weights, open_runs
    from swad.testbed.measure.saved_run import SPLITS
    from swad.testbed.results.measurement_rows import FLATNESS

    formats, folder = parse.figure_formats(figure_formats), parse.output_folder(output, runs[0], "figures")
    if stored:
        paths = parse.stored_runs(context, runs, FLATNESS, "runs", "weights", "log", "output", "figure_formats")
        names = dict.fromkeys(paths, parse.words(weights))
        print_report(report_flatness(names, output=folder, log=log, formats=formats))
        return
    for option, value, allowed in (
        ("normalize", normalize, ("sphere", "filter", "layer")),
        ("source-split", source_split, SPLITS),
        ("logits", logits, ("raw", "normalized")),
        ("precision", precision, ("fp32", "bf16")),
    ):
        if value is not None:
            require_choice(f"--{option}", value, allowed)
    config = FlatnessConfig(
        radii=parse.numbers("radii", radii) or None,
        n_directions=parse.even_directions(directions),
        n_images=parse.at_least("images", images, 0) or None,
        normalize=normalize,  # type: ignore[arg-type]
        seed=seed,
        include=tuple(parse.words(include)),
        exclude=tuple(parse.words(exclude)),
        split=source_split,  # type: ignore[arg-type]
        error=error,
        logits=logits,  # type: ignore[arg-type]
        precision=precision,  # type: ignore[arg-type]
    )
    worst_radii = parse.numbers("worst-case", worst_case)
    saved_runs, notes = open_runs(runs, data)
    chosen, skipped = choose_weights(saved_runs, parse.words(weights))
    print_notes([*notes, *skipped])
    with measuring() as progress:
        names = measure_flatness(
            chosen,
            config,
            worst_radii=worst_radii,
            curvature=curvature,
            device=device,
            workers=workers,
            progress=progress,
        )
    print_report(report_flatness(names, output=folder, log=log, formats=formats))
