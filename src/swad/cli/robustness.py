"""`swad robustness`: errors of saved weights under corruption, and classifiers on ImageNet's robustness benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from swad.cli import _options as parse
from swad.cli._options import FORMATS, DataNow, Device, FigureFormats, Images, Stored, Workers

EXAMPLES = """
swad robustness runs/PACS
swad robustness runs/PACS/erm/sketch-0 --weights best,swad --corruptions fog,snow --severities 1,3,5
swad robustness runs/ImageNet --imagenet DATA/imagenet --imagenet-r DATA/imagenet-r --backgrounds DATA/bg_challenge
swad robustness resnet50.tv_in1k=resnet50.safetensors --imagenet-c imagenet-c --precision bf16 --output resnet50
"""


def robustness(
    context: typer.Context,
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL",
            help="Run directories, or directories of runs. With an ImageNet benchmark, also weights files of runs, "
            "timm models (resnet50.tv_in1k), and timm models with a local safetensors file (resnet50=FILE).",
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
    corruptions: Annotated[
        list[str] | None,
        typer.Option(
            metavar=parse.NAMES, help="Without a benchmark: some of the 15 corruptions of ImageNet-C. Default: all."
        ),
    ] = None,
    severities: Annotated[
        list[str] | None,
        typer.Option(metavar=parse.NUMBERS, help="Without a benchmark: severities from 1 to 5. Default: all."),
    ] = None,
    images: Images = 200,
    seed: Annotated[int, typer.Option(help="Without a benchmark: seed of the corruptions.")] = 0,
    precision: Annotated[str, typer.Option(help="With a benchmark: precision of the network, fp32 or bf16.")] = "fp32",
    batch_size: Annotated[
        int | None, typer.Option(help="With a benchmark: images of a forward pass. Default: 256 on a GPU, else 32.")
    ] = None,
    stored: Stored = False,
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
    """Measure errors under noise, blur, weather and digital corruption, or on ImageNet-C, ImageNet-R and backgrounds.

    Without a benchmark, the images of runs are corrupted by the definitions of ImageNet-C, on seen and unseen domains;
    nothing is downloaded. With --imagenet, --imagenet-c, --imagenet-r or --backgrounds, classifiers of ImageNet are
    evaluated on the stored images. Results are saved in robustness.jsonl, in each run or in --output. Run the same
    command again to resume after an interrupt.
    """
    from swad.cli._console import measuring, print_notes, print_report
    from swad.testbed.experiments.run_imagenet import Benchmarks, EvaluationConfig
    from swad.testbed.experiments.run_robustness import CorruptionConfig, measure_robustness, report_robustness
    from swad.testbed.measure.finished_runs import choose_weights, open_runs
    from swad.testbed.results.corruption_errors import ROBUSTNESS

    formats, names = parse.figure_formats(figure_formats), parse.words(weights)
    directories = [Path(model) for model in models if Path(model).is_dir()]
    folder = parse.output_folder(output, directories[0], "figures") if directories else output or Path("robustness")
    if stored:
        paths = [Path(model) for model in models]
        paths = parse.stored_runs(context, paths, ROBUSTNESS, "models", "output", "figure_formats")
        print_report(report_robustness(paths, output=folder, formats=formats))
        return
    benchmarks = Benchmarks(imagenet, imagenet_c, imagenet_r, backgrounds)
    on_benchmarks = benchmarks != Benchmarks()
    of_corruptions = {
        "corruptions": bool(corruptions),
        "severities": bool(severities),
        "images": images != 200,
        "seed": seed != 0,
    }
    of_benchmarks = {"precision": precision != "fp32", "batch-size": batch_size is not None}
    unused = [f"--{name}" for name, given in (of_corruptions if on_benchmarks else of_benchmarks).items() if given]
    if unused and on_benchmarks:
        raise ValueError(f"benchmarks are evaluated on all of their stored images: leave out {', '.join(unused)}")
    if unused:
        raise ValueError(f"only benchmarks take {', '.join(unused)}: leave it out, or give one such as --imagenet DIR")
    for name, directory in vars(benchmarks).items():
        if directory is not None and not directory.is_dir():  # before weights are downloaded
            raise ValueError(f"--{name.replace('_', '-')} must be a directory, got {directory}: check the path")
    if on_benchmarks:
        from swad.testbed.experiments.imagenet_models import find_models
        from swad.testbed.experiments.imagenet_report import measure_imagenet

        size = None if batch_size is None else parse.at_least("batch-size", batch_size, 1)
        evaluation = EvaluationConfig(device, precision, size, workers)
        classifiers, notes = find_models(models, names, folder, data)
        print_notes(notes)
        with measuring() as progress:
            report = measure_imagenet(
                classifiers, benchmarks, evaluation, output=folder, formats=formats, progress=progress
            )
    else:
        if others := [model for model in models if Path(model) not in directories]:
            raise ValueError(
                f"{others[0]} is not a directory of runs: give one, or a benchmark (--imagenet DIR) for a timm model"
            )
        default = CorruptionConfig()
        config = CorruptionConfig(
            corruptions=tuple(parse.words(corruptions)) or default.corruptions,
            severities=parse.whole_numbers("severities", severities) or default.severities,
            n_images=parse.at_least("images", images, 0) or None,
            seed=seed,
        )
        runs, notes = open_runs(directories, data)
        chosen, skipped = choose_weights(runs, names)
        print_notes([*notes, *skipped])
        with measuring() as progress:
            paths = measure_robustness(chosen, config, device=device, workers=workers, progress=progress)
        report = report_robustness(paths, output=folder, formats=formats)
    print_report(report)
