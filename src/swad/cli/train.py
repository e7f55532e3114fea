"""`swad train`: the options are generated from the settings in `swad.testbed.training.config`.

A new field of `RunConfig` is an option at once: its name with dashes, its help text, in the panel of its section.
`SPECIAL` lists the few options that are written otherwise, because one command trains several runs, because the value
is a list, or because the option switches something off.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swad.cli import _options as parse
from swad.testbed.training.config import SECTIONS, SETTINGS, ConfigError, RunConfig
from swad.testbed.training.recipe import AVERAGES, IMAGENET
from swad.testbed.training.setting import Setting
from swad.util.names import NO_TARGET

if TYPE_CHECKING:
    from swad.testbed.data.domains import Dataset


@dataclass(frozen=True)
class Special:
    """An option that differs from the field it sets.

    Args:
        flags: Names of the option.
        annotation: Type on the command line, where it is not the field's.
        default: Default on the command line, where it is not the field's.
        help: Help text, where the field's does not fit.
        metavar: Placeholder of the value.
        convert: Turns the value from the command line into the field's.
        complete: Completes the value in the shell.
    """

    flags: tuple[str, ...] = ()
    annotation: Any = None
    default: Any = inspect.Parameter.empty
    help: str = ""
    metavar: str | None = None
    convert: Callable[[Any], Any] = lambda value: value
    complete: Callable[[str], list[str]] | None = None


def _switch_off(flag: str, help: str) -> Special:
    """Return the option that sets a field to False; without it the field is True."""
    return Special((flag,), bool, False, help, convert=lambda off: not off)


def _numbers(name: str) -> Special:
    """Return an option that takes several numbers or none."""
    return Special(
        annotation=list[str] | None,
        default=None,
        metavar=parse.NUMBERS,
        convert=lambda texts: parse.numbers(name, texts) or None,
    )


SPECIAL: dict[str, Special] = {
    "target": Special(
        ("--target", "-t"),
        list[str] | None,
        None,
        "Domains to hold out, each in a run of its own; A+B holds out both in one run; none trains on all domains. "
        "Default: each domain in turn, and none for a dataset without domains.",
        parse.NAMES,
        parse.words,
    ),
    "data_dir": Special(("--data", "-d")),
    "check_counts": _switch_off("--allow-count-mismatch", "Allow image counts that differ from the published dataset."),
    "freeze_bn": Special(("--freeze-bn/--no-freeze-bn",), bool | None),
    "augmentation": Special(
        annotation=list[str] | None,
        default=None,
        metavar="NAME=NUMBER,...",
        convert=lambda texts: parse.settings("augmentation", texts, "crop=0.8,flip=0"),
    ),
    "report_live": _switch_off(
        "--no-report-live",
        "Report only the averages, not the live weights (`best` and `last`). Such a run may stop early.",
    ),
    "early_stop": _switch_off("--no-early-stop", "Keep training after every requested average is complete."),
    "image_mean": _numbers("image-mean"),
    "image_std": _numbers("image-std"),
    "trial": Special(
        annotation=list[str],
        default=["0"],
        help="Train-validation splits, each in runs of its own: 0,1,2 are those of the protocol.",
        metavar=parse.NUMBERS,
        convert=lambda texts: parse.whole_numbers("trial", texts),
    ),
    "hyperparameters": Special(
        ("--set", "-s"),
        list[str] | None,
        None,
        "Set hyperparameters: lr, batch_size (images per source domain and step), weight_decay, dropout or one of the "
        "algorithm's own.",
        parse.PAIRS,
        lambda texts: parse.settings("set", texts, "lr=3e-5,batch_size=16"),
    ),
    "lr_schedule": Special(
        metavar="SCHEDULE",
        help=f"{SETTINGS['lr_schedule'].help} Without it and --averages, the imagenet recipe trains decay, constant "
        "and cyclic, for ERM, SWAD and SWA.",
    ),
    "averages": Special(
        ("--averages", "-a"),
        list[str] | None,
        None,
        "Weight averages of the trajectory, e.g. swad,swa,ema or swad:semantics=text. Default: swad; in the imagenet "
        "recipe, the one that goes with the learning rate schedule.",
        parse.NAMES,
        lambda texts: parse.averages(texts or SETTINGS["averages"].default),
    ),
    "algorithm": Special(
        annotation=list[str] | None,
        default=None,
        help="Training algorithms (see `swad algorithms`), each in runs of its own. Append +sam or +sagm to combine "
        "one with SAM or SAGM. Default: erm.",
        metavar=parse.NAMES,
        convert=parse.words,
        complete=parse.complete_algorithm,
    ),
    "snapshots": Special(
        annotation=list[str] | None,
        default=None,
        metavar=parse.NUMBERS,
        convert=lambda texts: parse.whole_numbers("snapshots", texts),
    ),
    "log": Special(
        annotation=list[str] | None,
        default=None,
        metavar=parse.NAMES,
        convert=lambda texts: tuple(parse.words(texts)),
    ),
    "device": Special(default="auto"),
}

EXAMPLES = """
swad train digits --target paper --steps 100
swad train PACS --data data --target sketch --trial 0,1,2 --averages swad,swa,ema
swad train PACS --data data --algorithm erm,coral --set lr=3e-5,batch_size=16
swad train PACS --data data --target none
swad train folder --data my_images --network resnet18
swad train imagenet --data /data/imagenet
"""

PYTHON_ONLY = ("dataset_options",)
"""Settings without an option: their values are objects."""


def make_parameter(setting: Setting) -> inspect.Parameter:
    """Return the option of one setting."""
    if setting.name == "dataset":
        argument = typer.Argument(
            help=setting.help, metavar="DATASET", show_default=False, autocompletion=parse.complete_dataset
        )
        return inspect.Parameter("dataset", inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[str, argument])
    special = SPECIAL.get(setting.name, Special())
    flag = "--" + setting.name.replace("_", "-")
    # Choices are checked with the other settings, so that all problems are reported together.
    annotation = special.annotation or (str if setting.choices else setting.annotation)
    if setting.choices and setting.optional:
        annotation = str | None
    default = setting.default if special.default is inspect.Parameter.empty else special.default
    option = typer.Option(
        *(special.flags or (flag,)),
        help=special.help or setting.help,
        metavar=special.metavar or ("|".join(setting.choices) or None),
        rich_help_panel=SECTIONS[setting.section][0],
        show_default=default not in (None, "") and setting.types != (bool,),
        autocompletion=special.complete,
    )
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(setting.name, kind, default=default, annotation=Annotated[annotation, option])


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
    **options: Any,
) -> None:
    """Hold one domain out, train on the others, average the weights, and evaluate on the held-out domain.

    With --target none, train on all domains: the model to ship. A dataset without domains is trained so by default.

    Run the same command again after an interruption: finished runs are kept, unfinished runs resume.
    """
    from swad.cli.report import report_trained
    from swad.testbed.experiments.launchers.train_all import train_all
    from swad.testbed.training.distributed import in_main_process

    parse.at_least("jobs", jobs, 1)
    configs = _configs(output, options)
    if hyperparameters_from is not None:
        from swad.testbed.experiments.selected_settings import use_selection
        from swad.testbed.results.selection_file import read_selection

        configs = use_selection(configs, read_selection(hyperparameters_from))
    if no_resume:
        _require_no_runs(configs)
    train_all(configs, jobs)
    if in_main_process():
        report_trained(output)


_parameters = [make_parameter(setting) for name, setting in SETTINGS.items() if name not in PYTHON_ONLY]
_parameters += list(inspect.signature(train, eval_str=True).parameters.values())[:-1]  # all but **options
train.__signature__ = inspect.Signature(_parameters)  # type: ignore[attr-defined]
train.__annotations__ = {parameter.name: parameter.annotation for parameter in _parameters}


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
    from swad.testbed.experiments.recipe_runs import recipe_runs
    from swad.testbed.experiments.sweep.plan import dataset_label

    benchmark, data_dir = benchmarks.get(options["dataset"]), options["data_dir"]
    has_recipe = (options["recipe"] or benchmark.defaults.recipe) == IMAGENET
    trains_all = has_recipe and options["lr_schedule"] is None and options["averages"] is None
    if has_recipe and options["averages"] is None:
        options["averages"] = AVERAGES.get(options["lr_schedule"] or "constant")
    for name, special in SPECIAL.items():
        options[name] = special.convert(options[name])
    # A dataset whose file names no domains is read; but not one large domain, which takes long to list.
    reads = not benchmark.domains and benchmark.defaults.recipe != IMAGENET
    dataset = benchmarks.load(benchmark.name, data_dir, check_counts=options["check_counts"]) if reads else None
    domains = benchmark.domains if dataset is None else dataset.domain_names
    folder = dataset_label(benchmark.name, data_dir and data_dir.resolve())
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
    return [run for config in configs for run in recipe_runs(config)] if trains_all else configs


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
