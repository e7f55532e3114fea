"""`swad robustness`: classifiers on ImageNet's robustness benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from swad.cli import _options as parse
from swad.cli._options import FORMATS, DataNow, Device, DryRun, FigureFormats, Workers

EXAMPLES = """
swad robustness runs/ImageNet --imagenet DATA/imagenet --imagenet-r DATA/imagenet-r --backgrounds DATA/bg_challenge
swad robustness resnet50.tv_in1k=resnet50.safetensors --imagenet-c imagenet-c --precision bf16 --output resnet50
"""


def robustness(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL",
            help="Run directories, directories of runs, weights files of runs, timm models (resnet50.tv_in1k), or timm "
            "models with a local safetensors file (resnet50=FILE).",
        ),
    ],
    imagenet: Annotated[
        Path | None, typer.Option(help="ImageNet's validation images in class folders, or a directory with val.")
    ] = None,
    imagenet_c: Annotated[
        Path | None,
        typer.Option(help="ImageNet-C: CORRUPTION/SEVERITY, also inside noise, blur, weather, digital, extra."),
    ] = None,
    imagenet_r: Annotated[Path | None, typer.Option(help="ImageNet-R with its 200 class folders.")] = None,
    backgrounds: Annotated[Path | None, typer.Option(help="The Background Challenge: bg_challenge.")] = None,
    weights: Annotated[
        list[str] | None,
        typer.Option(
            metavar=parse.NAMES,
            help="Weights of runs to measure, e.g. best,swa,swad. The others are compared with the first. Default: all "
            "that a run reports.",
        ),
    ] = None,
    precision: Annotated[str, typer.Option(help="Precision of the network, fp32 or bf16.")] = "fp32",
    batch_size: Annotated[
        int | None, typer.Option(help="Images of a forward pass. Default: 256 on a GPU, else 32.")
    ] = None,
    dry_run: DryRun = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Directory for figures. Default: RUN/figures; robustness if no MODEL is a directory."
        ),
    ] = None,
    figure_formats: FigureFormats = FORMATS,
    data: DataNow = None,
    device: Device = "auto",
    workers: Workers = None,
) -> None:
    """Evaluate classifiers of ImageNet on ImageNet, ImageNet-C, ImageNet-R and the Background Challenge.

    Give at least one benchmark. Results are saved in robustness.jsonl, in each run or in --output. Run the same command
    again to resume after an interrupt. Errors of a run's own images under corruption: swad measure corruption.
    """
    from swad.cli._console import measuring, print_notes, print_report
    from swad.testbed.measure import engine
    from swad.testbed.measure.imagenet import Benchmarks, ImageNet, plan_models, stored_results
    from swad.testbed.measure.imagenet_models import find_models
    from swad.testbed.measure.imagenet_report import report_imagenet
    from swad.testbed.measure.saved_run import find_device
    from swad.testbed.results.figures.style import require_matplotlib

    formats, names = parse.figure_formats(figure_formats), parse.words(weights)
    directories = [Path(model) for model in models if Path(model).is_dir()]
    folder = parse.output_folder(output, directories[0], "figures") if directories else output or Path("robustness")
    benchmarks = Benchmarks(imagenet, imagenet_c, imagenet_r, backgrounds)
    if benchmarks == Benchmarks():
        raise ValueError(
            "a benchmark is needed, such as --imagenet DIR; errors of a run's own images under corruption: "
            "swad measure corruption RUN"
        )
    for name, directory in vars(benchmarks).items():
        if directory is not None and not directory.is_dir():  # before weights are downloaded
            raise ValueError(f"--{name.replace('_', '-')} must be a directory, got {directory}: check the path")
    what, found = ImageNet(precision=precision, batch_size=batch_size), find_device(device)  # type: ignore[arg-type]
    require_matplotlib()  # before measuring for hours
    classifiers, notes = find_models(models, names, folder, data)
    print_notes(notes)
    with measuring() as progress:
        jobs = plan_models(classifiers, benchmarks, what, progress)
    print(engine.cost(jobs, found), flush=True)
    if not dry_run:
        with measuring() as progress:
            engine.measure(jobs, found, workers=workers, progress=progress)
        results = stored_results(jobs)
        in_order = {model.label: results[model.label] for model in classifiers}
        print_report(report_imagenet(classifiers, benchmarks, in_order, output=folder, formats=formats))
