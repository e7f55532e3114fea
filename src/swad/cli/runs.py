"""`swad train`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swad.cli import _options as read
from swad.cli._options import Device, Output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from swad.training.config import RunConfig

# Headings of `swad train --help`.
DATA, TRAINING, MEASURING, FILES, MACHINE = "Data", "Training", "Averages and evaluation", "Files", "Machine"


def train(
    dataset: Annotated[str, typer.Argument(help="A dataset's name; `swad datasets` lists them.")],
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            "-t",
            help="Domain to hold out; again for more runs; A+B holds two out. Default: all.",
            rich_help_panel=DATA,
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", "-d", help="Folder the dataset lies in.", rich_help_panel=DATA)
    ] = None,
    output: Output = Path("runs"),
    average: Annotated[
        list[str] | None,
        typer.Option(
            "--average",
            "-a",
            help="Averages that ride along, e.g. swad,swa,ema or swad:semantics=text.",
            rich_help_panel=MEASURING,
        ),
    ] = None,
    trial: Annotated[
        str, typer.Option(help="Train-validation split: 0; or 0,1,2 for three runs of each.", rich_help_panel=DATA)
    ] = "0",
    algorithm: Annotated[
        str,
        typer.Option(
            help="What is trained; `swad algorithms` lists them. NAME+sam puts SAM over one.", rich_help_panel=TRAINING
        ),
    ] = "erm",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", "-s", help="A hyperparameter, e.g. lr=3e-5, batch_size=32, dropout=0.1.", rich_help_panel=TRAINING
        ),
    ] = None,
    network: Annotated[
        str | None, typer.Option(help="A timm name, or small. Default: by the dataset.", rich_help_panel=TRAINING)
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="pretrained, random, or a safetensors file.", rich_help_panel=TRAINING)
    ] = None,
    no_freeze_bn: Annotated[
        bool, typer.Option("--no-freeze-bn", help="Let batch-norm statistics move.", rich_help_panel=TRAINING)
    ] = False,
    steps: Annotated[
        int | None, typer.Option(help="Updates. Default: by the dataset.", rich_help_panel=TRAINING)
    ] = None,
    evaluate_every: Annotated[
        int | None, typer.Option(help="Updates between evaluations.", rich_help_panel=MEASURING)
    ] = None,
    schedule: Annotated[
        str, typer.Option(help="default, or reference: one step late, as published.", rich_help_panel=MEASURING)
    ] = "default",
    lr_schedule: Annotated[
        str, typer.Option(help="constant, or cyclic for SWA.", rich_help_panel=TRAINING)
    ] = "constant",
    split: Annotated[str, typer.Option(help="80/20 or 60/20/20.", rich_help_panel=DATA)] = "80/20",
    seed: Annotated[
        int | None, typer.Option(help="Default: by dataset, algorithm, target and trial.", rich_help_panel=DATA)
    ] = None,
    input_pipeline: Annotated[
        str | None,
        typer.Option(
            help="torchvision (as published) or gpu: decode once, augment on the GPU. Default: gpu on a GPU.",
            rich_help_panel=DATA,
        ),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(help="Folder of decoded images. Default: $SWAD_CACHE or ~/.cache.", rich_help_panel=DATA),
    ] = None,
    cache_size: Annotated[
        int | None, typer.Option(help="Rows and columns decoded images are kept at.", rich_help_panel=DATA)
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="fp32 or bf16. Default: bf16 on a GPU.", rich_help_panel=TRAINING)
    ] = None,
    engine: Annotated[
        str,
        typer.Option(help="auto, eager, graph or compile: how a step is computed.", rich_help_panel=MACHINE),
    ] = "auto",
    device: Device = "auto",
    workers: Annotated[int | None, typer.Option(help="Processes that read images.", rich_help_panel=MACHINE)] = None,
    threads: Annotated[
        int | None, typer.Option(help="CPU threads of a run; the last bits depend on it.", rich_help_panel=MACHINE)
    ] = None,
    jobs: Annotated[int, typer.Option(help="Number of runs that train at a time.", rich_help_panel=MACHINE)] = 1,
    clip: Annotated[float | None, typer.Option(help="Largest gradient norm.", rich_help_panel=TRAINING)] = None,
    no_report_live: Annotated[
        bool,
        typer.Option("--no-report-live", help="Do not report the live weights.", rich_help_panel=MEASURING),
    ] = False,
    no_early_stop: Annotated[
        bool,
        typer.Option(
            "--no-early-stop", help="Train on when nothing that was asked for needs it.", rich_help_panel=MEASURING
        ),
    ] = False,
    target_every_evaluation: Annotated[
        bool,
        typer.Option(
            "--target-every-evaluation", help="Measure the target at every evaluation.", rich_help_panel=MEASURING
        ),
    ] = False,
    validation_subsample: Annotated[
        int | None,
        typer.Option(help="Validate on so many images of each domain while training.", rich_help_panel=MEASURING),
    ] = None,
    augment_validation: Annotated[
        bool,
        typer.Option(
            "--augment-validation", help="Augment source validation, as DomainBed does.", rich_help_panel=MEASURING
        ),
    ] = False,
    snapshots: Annotated[
        str, typer.Option(help="Updates whose weights are saved, e.g. 2500,3500,4500.", rich_help_panel=FILES)
    ] = "",
    keep_segments: Annotated[
        bool, typer.Option("--keep-segments", help="Keep the mean weights of every segment.", rich_help_panel=FILES)
    ] = False,
    allow_count_mismatch: Annotated[
        bool,
        typer.Option(
            "--allow-count-mismatch",
            help="Allow image counts that differ from the published dataset.",
            rich_help_panel=DATA,
        ),
    ] = False,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Bit-equal results on a GPU too.", rich_help_panel=TRAINING)
    ] = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write TensorBoard events too.", rich_help_panel=FILES)
    ] = False,
    checkpoint_every: Annotated[
        int | None, typer.Option(help="Least updates between checkpoints, made at evaluations.", rich_help_panel=FILES)
    ] = None,
    no_resume: Annotated[
        bool,
        typer.Option("--no-resume", help="Refuse folders that hold unfinished runs.", rich_help_panel=FILES),
    ] = False,
) -> None:
    """Hold one domain out, train on the others, average the weights, and measure on the one held out.

    Run it again after a stop and it goes on where it was: finished runs are kept, unfinished ones resume.
    """
    from swad.algorithms.registry import canonical_name
    from swad.averaging import registry
    from swad.cli.report import print_report
    from swad.data import benchmarks
    from swad.experiments.launch import train_all
    from swad.training.config import RunConfig

    benchmark = benchmarks.get(dataset)
    method = canonical_name(algorithm)
    jobs = read.at_least("jobs", jobs, 1)
    targets = dict.fromkeys(target or _domains(benchmark.name, data))  # each once
    name = benchmark.name if benchmark.domains or data is None else data.resolve().name
    chosen = tuple(one for text in average or ["swad"] for one in registry.split(text))
    where = read.device(device)
    configs = [
        RunConfig.from_options(
            dataset=dataset,
            target=_targets(one, benchmark.name, data),
            output=output / name / method / f"{one}-{number}",
            data_dir=data,
            check_counts=not allow_count_mismatch,
            trial=number,
            seed=seed,
            split=split,
            algorithm=algorithm,
            hyperparameters=_settings(settings or []),
            clip=clip,
            network=network,
            weights=weights,
            freeze_bn=not no_freeze_bn,
            steps=steps,
            evaluate_every=evaluate_every,
            schedule=schedule,
            lr_schedule=lr_schedule,
            averages=chosen,
            report_live=not no_report_live,
            early_stop=not no_early_stop,
            input_pipeline=input_pipeline,
            cache=cache,
            cache_size=cache_size,
            precision=precision,
            engine=engine,
            device=where,
            deterministic=deterministic,
            workers=workers,
            threads=threads,
            validation_subsample=validation_subsample,
            augment_validation=augment_validation,
            target_every_evaluation=target_every_evaluation,
            snapshots=tuple(read.whole_numbers(snapshots)),
            keep_segments=keep_segments,
            checkpoint_every=checkpoint_every,
            tensorboard=tensorboard,
        )
        for number in dict.fromkeys(read.whole_numbers(trial))
        for one in targets
    ]
    if data is not None and not benchmark.domains:
        _check_targets(configs)
    if no_resume:
        from swad.training.run_dir import has_records

        if held := [str(config.output) for config in configs if has_records(config.output)]:
            raise ValueError(f"--no-resume wants new folders, and {held[0]} holds a run: choose another --output")
    train_all(configs, jobs)
    if _is_first_process():
        print_report(output, output / "report.html")


def _domains(dataset: str, data: Path | None) -> Sequence[str]:
    from swad.data import benchmarks

    benchmark = benchmarks.get(dataset)
    return benchmark.domains or benchmarks.load(dataset, data).domain_names


def _targets(text: str, dataset: str, data: Path | None) -> tuple[str, ...]:
    """One domain, or with A+B two; a `+` may also be part of a domain's name."""
    return (text,) if "+" not in text or text in _domains(dataset, data) else tuple(text.split("+"))


def _check_targets(configs: Sequence[RunConfig]) -> None:
    """Hold every target of one's own folder out for a moment: what is wrong with the last shows before the first."""
    from swad.data import benchmarks
    from swad.data.splits import hold_out
    from swad.training.config import ConfigError
    from swad.training.resolve import find_problems

    for config in configs:  # settings first: they need no data to be judged
        if problems := find_problems(config):
            raise ConfigError(problems)
    dataset = benchmarks.load(configs[0].data.dataset, configs[0].data.data_dir)
    for config in configs:
        hold_out(dataset, config.data.targets, trial=config.data.trial, three_way=config.data.three_way)


def _settings(texts: Sequence[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            number = float(value)
        except ValueError:
            equals = ""
        if not equals:
            raise ValueError(f"--set takes name=number, got {text!r}: e.g. --set lr=3e-5")
        if name in found:
            raise ValueError(f"--set takes every name once, got {name} twice: another value needs another --output")
        found[name] = int(number) if number.is_integer() and "." not in value and "e" not in value else number
    return found


def _is_first_process() -> bool:
    return os.environ.get("RANK", "0") == "0"
