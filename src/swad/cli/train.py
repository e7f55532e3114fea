"""`swad train`: the options are generated from the settings in `swad.testbed.training.config`.

A new field of `RunConfig` is an option at once: its name with dashes, its help text, in the panel of its section.
`SPECIAL` lists the few options that are written otherwise, because one command trains several runs, because the value
is a list, or because the option switches something off.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swad.cli import _options as parse
from swad.cli._fields import Special, add_parameters, argument, field_options, switch_off
from swad.testbed.training.config import SECTIONS, SETTINGS, ConfigError, RunConfig
from swad.util.names import NO_TARGET

if TYPE_CHECKING:
    from swad.testbed.data.domains import Dataset


SPECIAL: dict[str, Special] = {
    "target": Special(
        ("--target", "-t"),
        tuple[str, ...],
        None,
        "Domains to hold out, each in a run of its own; A+B holds out both in one run; none trains on all domains. "
        "Default: each domain in turn, and none for a dataset without domains.",
    ),
    "data_dir": Special(("--data", "-d")),
    "check_counts": switch_off("--allow-count-mismatch", "Allow image counts that differ from the published dataset."),
    "freeze_bn": Special(("--freeze-bn/--no-freeze-bn",)),
    "augmentation": Special(
        metavar="NAME=NUMBER,...",
        convert=lambda texts: parse.settings("augmentation", texts, "crop=0.8,flip=0"),
    ),
    "report_live": switch_off(
        "--no-report-live",
        "Report only the averages, not the live weights (`best` and `last`). Such a run may stop early.",
    ),
    "predictions": switch_off(
        "--no-predictions",
        "Do not keep what the weights predict for every image. The report then shows no mistakes.",
    ),
    "early_stop": switch_off("--no-early-stop", "Keep training after every requested average is complete."),
    "trial": Special(
        annotation=tuple[int, ...],
        default=["0"],
        help="Train-validation splits, each in runs of its own: 0,1,2 are those of the protocol.",
    ),
    "hyperparameters": Special(
        ("--set", "-s"),
        help="Set hyperparameters: lr, batch_size (images per source domain and step), weight_decay, dropout or one of "
        "the algorithm's own.",
        metavar=parse.PAIRS,
        convert=lambda texts: parse.settings("set", texts, "lr=3e-5,batch_size=16"),
    ),
    "lr_schedule": Special(
        metavar="SCHEDULE",
        help=f"{SETTINGS['lr_schedule'].help} Without it and --averages, the imagenet recipe trains decay, constant "
        "and cyclic, for ERM, SWAD and SWA.",
    ),
    "averages": Special(
        ("--averages", "-a"),
        help="Weight averages of the trajectory, e.g. swad,swa,ema or swad:semantics=text. Default: swad; in the "
        "imagenet recipe, the one that goes with the learning rate schedule.",
        convert=lambda texts: parse.averages(texts or SETTINGS["averages"].default),
    ),
    "algorithm": Special(
        annotation=tuple[str, ...],
        default=None,
        help="Training algorithms (see `swad algorithms`), each in runs of its own. Append +sam or +sagm to combine "
        "one with SAM or SAGM. Default: erm.",
        complete=parse.complete_algorithm,
    ),
    "device": Special(default="auto"),
}

EXAMPLES = """
swad train digits --target paper --steps 100
swad train PACS --data data --target sketch --trial 0,1,2 --averages swad,swa,ema
swad train PACS --data data --algorithm erm,coral --set lr=3e-5,batch_size=16
swad train PACS --data data --target none
swad train folder --data my_images --network resnet18
swad train folder --data hub:flwrlabs/pacs
swad train imagenet --data /data/imagenet
"""

PYTHON_ONLY = ("dataset_options",)
"""Settings without an option: their values are objects."""


OPTIONS = field_options(
    [setting for name, setting in SETTINGS.items() if name not in ("dataset", *PYTHON_ONLY)],
    SPECIAL,
    lambda setting: SECTIONS[setting.section][0],
)
"""The options of all settings, which `swad sweep run` has too."""


def train(
    *,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="Directory of all runs and the report; a run is in DATASET/ALGORITHM/TARGET-TRIAL below it.",
            rich_help_panel=SECTIONS["files"][0],
        ),
    ] = Path("runs"),
    no_resume: Annotated[
        bool,
        typer.Option(
            "--no-resume",
            help="Fail if a run directory already contains a run, instead of resuming it.",
            rich_help_panel=SECTIONS["files"][0],
        ),
    ] = False,
    hyperparameters_from: Annotated[
        Path | None,
        typer.Option(
            help="Take the hyperparameters of each run from this file, which `swad select` wrote: "
            "those selected for the first of --averages. --set changes single ones.",
            metavar="FILE",
            rich_help_panel=SECTIONS["training"][0],
        ),
    ] = None,
    jobs: Annotated[
        int, typer.Option(help="Number of runs that train at the same time.", rich_help_panel=SECTIONS["machine"][0])
    ] = 1,
    processes: parse.Processes = 1,
    **options: Any,
) -> None:
    """Hold one domain out, train on the others, average the weights, and evaluate on the held-out domain.

    With --target none, train on all domains: the model to ship. A dataset without domains is trained so by default.

    Run the same command again after an interruption: finished runs are kept, unfinished runs resume.
    """
    from swad.cli.report import report_trained
    from swad.testbed.training.distributed import in_main_process
    from swad.testbed.workers.train_all import train_all

    parse.at_least("jobs", jobs, 1)
    parse.at_least("processes", processes, 1)
    configs = _configs(output, options)
    if hyperparameters_from is not None:
        from swad.testbed.results.selection_file import read_selection
        from swad.testbed.sweep.selected_settings import use_selection

        configs = use_selection(configs, read_selection(hyperparameters_from))
    if no_resume:
        _require_no_runs(configs)
    train_all(configs, jobs, processes)
    if in_main_process():
        report_trained(output)


add_parameters(
    train,
    [
        argument(SETTINGS["dataset"], "DATASET", parse.complete_dataset),
        *(option.parameter for option in OPTIONS.values()),
    ],
)


def suggest(option: str) -> str | None:
    """Point from `--lr` to `--set lr=NUMBER`, for the hyperparameters of all algorithms, and from their usual names."""
    from contextlib import suppress
    from dataclasses import fields

    from swad.testbed.algorithms import registry

    name = option.lstrip("-").replace("-", "_")
    if name in ("hyperparameters", "hparams"):  # DomainBed's name is --hparams
        return "--set NAME=VALUE"
    for algorithm in registry.list_algorithms():
        with suppress(registry.AlgorithmError):  # a broken file of the user's own
            if name in {field.name for field in fields(registry.get_algorithm(algorithm).Hyperparameters)}:
                return f"--set {name}=NUMBER"
    return None


def _configs(output: Path, options: dict[str, Any]) -> list[RunConfig]:
    """One config for each algorithm, trial and target."""
    from swad.testbed.algorithms.registry import canonical_name
    from swad.testbed.data import benchmarks
    from swad.testbed.training.recipes import get_recipe

    benchmark, data_dir = benchmarks.get(options["dataset"]), options["data_dir"]
    recipe = get_recipe(options["recipe"] or benchmark.defaults.recipe)
    trains_all = options["lr_schedule"] is None and options["averages"] is None
    if options["averages"] is None:
        options["averages"] = recipe.default_averages(options["lr_schedule"])
    options |= {name: option.convert(options[name]) for name, option in OPTIONS.items()}
    # A dataset whose file names no domains is read to know them.
    reads = not benchmark.domains and not get_recipe(benchmark.defaults.recipe).large
    dataset = benchmarks.load(benchmark.name, data_dir, check_counts=options["check_counts"]) if reads else None
    domains = benchmark.domains if dataset is None else dataset.domain_names
    folder = benchmarks.label(benchmark.name, data_dir and data_dir.resolve())
    algorithms = dict.fromkeys(map(canonical_name, options.pop("algorithm") or [SETTINGS["algorithm"].default]))
    trials = dict.fromkeys(options.pop("trial"))
    targets = options.pop("target") or (domains if len(domains) > 1 else (NO_TARGET,))
    configs = [
        RunConfig.from_options(
            output=output / folder / algorithm / f"{target}-{trial}",
            algorithm=algorithm,
            target=target if target in domains else tuple(target.split("+")),  # a name may have a + of its own
            trial=trial,
            **options,
        )
        for algorithm in algorithms
        for trial in trials
        for target in targets
    ]
    if dataset is not None:
        _check_targets(configs, dataset)
    return [run for config in configs for run in recipe.trainings(config)] if trains_all else configs


def _check_targets(configs: Sequence[RunConfig], dataset: Dataset) -> None:
    """Check that every target of a dataset without known domains can be held out, before the first run trains."""
    from swad.testbed.data.splits import hold_out
    from swad.testbed.training.checks import find_problems, source_problems

    for config in configs:
        if problems := find_problems(config):
            raise ConfigError(problems)
        sources, _ = hold_out(dataset, config.targets, trial=config.trial, three_way=config.three_way)
        if problems := source_problems(config, sources.names):
            raise ConfigError(problems)


def _require_no_runs(configs: Sequence[RunConfig]) -> None:
    from swad.testbed.training.run_dir import has_records

    for config in configs:
        if has_records(config.output):
            raise ValueError(f"--no-resume: {config.output} already contains a run; choose another --output")
