"""`swad sweep`: run a comparison of algorithms, averages, datasets and hyperparameters; `swad sweep status`: watch it.

The settings of the runs (`--steps`, `--network`, ...) are the options of `swad train`, generated from the same fields.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from swad.cli import _options as parse
from swad.cli import train
from swad.cli._command import add_command
from swad.testbed.training.config import SETTINGS
from swad.util.names import did_you_mean

EXAMPLES = """
swad sweep --algorithm erm,coral --trial 0,1 --steps 200
swad sweep --protocol paper --algorithm erm --dry-run
swad sweep --protocol grid --grid lr=1e-4,1e-3 --grid dropout=0,0.5 --output lr
swad sweep plan.toml --data data --launcher slurm --jobs 50
swad sweep --output lr --retry-failed
swad sweep status lr
"""

RUN = "run"
"""Name of the command behind `swad sweep` without a subcommand."""

SWEPT = ("dataset", "target", "trial", "algorithm", "averages", "data_dir")
"""Settings of a run that a sweep varies or names otherwise."""


class _SweepGroup(TyperGroup):
    """`swad sweep status` is a subcommand; everything else is the sweep itself."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            is_word = args and not args[0].startswith("-") and not Path(args[0]).exists()
            if is_word and (hint := did_you_mean(args[0], ["status"])):
                ctx.fail(f"There is no plan file or command {args[0]!r}: {hint}")
            args = [RUN, *args]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return (None if name == RUN else name), command, rest  # the usage line is that of `swad sweep`


app = typer.Typer(cls=_SweepGroup, help="Compare algorithms, averages, datasets and hyperparameters in many runs.")


def _compare(flag: str, metavar: str | None, help: str, short: str = "", complete: Any = None) -> Any:
    flags = [flag, short] if short else [flag]
    return typer.Option(*flags, metavar=metavar, help=help, autocompletion=complete, rich_help_panel="What to compare")


def _control(*flags: str, help: str) -> Any:
    return typer.Option(*flags, help=help, rich_help_panel="Sweep")


def _complete_plan(incomplete: str) -> list[str]:
    """Complete a plan file, or the command `status`, which stands in the same place."""
    return [name for name in ("status", *map(str, sorted(Path().glob("*.toml")))) if name.startswith(incomplete)]


def sweep(
    plan: Annotated[
        Path | None,
        typer.Argument(
            help="TOML file with the options below, which override it, or appendix-b3: the paper's searches.",
            show_default=False,
            autocompletion=_complete_plan,
        ),
    ] = None,
    algorithm: Annotated[
        list[str] | None,
        _compare(
            "--algorithm",
            parse.NAMES,
            "Training algorithms, e.g. erm,coral+sam. Default: erm.",
            complete=parse.complete_algorithm,
        ),
    ] = None,
    averages: Annotated[
        list[str] | None,
        _compare(
            "--averages",
            parse.NAMES,
            "Weight averages. All come from the same trainings. Default: swad,swa,ema.",
            "-a",
        ),
    ] = None,
    dataset: Annotated[
        list[str] | None,
        _compare(
            "--dataset",
            parse.NAMES,
            "Datasets. Default: those of the protocol, else digits.",
            complete=parse.complete_dataset,
        ),
    ] = None,
    data: Annotated[Path | None, _compare("--data", None, "Directory that contains the datasets.", "-d")] = None,
    target: Annotated[
        list[str] | None,
        _compare(
            "--target",
            parse.NAMES,
            "Domains to hold out; none trains on all domains. Default: each domain in turn.",
            "-t",
        ),
    ] = None,
    trial: Annotated[
        list[str] | None, _compare("--trial", parse.NUMBERS, "Train-validation splits. Default: 0,1,2.")
    ] = None,
    protocol: Annotated[
        str | None,
        _compare(
            "--protocol",
            "defaults|grid|random|paper|domainbed",
            "Search of hyperparameters: defaults (none), grid, random, paper (grid of 18 on trial 0, the best "
            "repeated in the other trials) or domainbed (20 random draws in each trial). Default: defaults, or grid if "
            "there is a --grid.",
        ),
    ] = None,
    grid: Annotated[
        list[str] | None,
        _compare("--grid", "NAME=NUMBER,...", "Values of hyperparameters, e.g. lr=1e-5,3e-5,dropout=0,0.5.", "-g"),
    ] = None,
    draws: Annotated[
        int | None, _compare("--draws", None, "Random draws of domainbed and random. Default: 20.")
    ] = None,
    seeding: Annotated[
        str | None,
        _compare("--seeding", "2020|present", "The version of DomainBed whose draws are repeated. Default: present."),
    ] = None,
    select: Annotated[
        str | None,
        _compare(
            "--select",
            "NAME",
            "Model selection of the table: iid, last, lodo, oracle or oracle_best_step. lodo adds the runs with "
            "two targets that it needs; domainbed has them without --select too. Default: iid.",
        ),
    ] = None,
    choose_by: Annotated[
        str | None,
        _compare(
            "--choose-by",
            "NAME",
            "Weights whose source-validation accuracy chooses the hyperparameters in the protocol paper: best, "
            "last or an average. Default: best.",
        ),
    ] = None,
    hyperparameters_from: Annotated[
        Path | None,
        _compare(
            "--hyperparameters-from",
            "FILE",
            "Use the hyperparameters of a selection file instead of a search: `swad select` writes one.",
            "--import",
        ),
    ] = None,
    launcher: parse.Launcher = "local",
    jobs: parse.Jobs = None,
    jobs_per_gpu: parse.JobsPerGpu = 1,
    launcher_option: parse.LauncherOptions = None,
    output: Annotated[
        Path,
        _control(
            "--output",
            "-o",
            help="Directory of the sweep. A sweep that it contains is resumed, or extended if the options differ.",
        ),
    ] = Path("sweep"),
    dry_run: Annotated[
        bool, _control("--dry-run", help="Print the number of runs, and their time and disk space; write nothing.")
    ] = False,
    retry_failed: Annotated[bool, _control("--retry-failed", help="Train failed runs again.")] = False,
    allow_failed: Annotated[
        bool,
        _control(
            "--allow-failed", help="Choose hyperparameters among the finished runs of a search where others failed."
        ),
    ] = False,
    **run_options: Any,
) -> None:
    """Train every combination of algorithms, datasets, targets, trials and hyperparameters, and print the table.

    Run the same command again after an interruption: finished runs are kept, unfinished runs resume. Other options
    extend the sweep without repeating a run. `swad sweep status DIR` shows the progress.
    """
    from swad.cli import _sweep as actions
    from swad.cli._launch import parse_launcher_options
    from swad.cli._problems import Problems
    from swad.testbed.experiments.launchers.make import LauncherConfig
    from swad.testbed.experiments.sweep.directory import SweepDir

    # Every value is parsed before anything is reported, so that all problems are listed together.
    problems = Problems()
    stated: dict[str, Any] = {
        "algorithms": algorithm and parse.words(algorithm),
        "averages": averages and parse.averages(averages),
        "datasets": dataset and parse.words(dataset),
        "data": data,
        "targets": target and parse.words(target),
        "trials": trial and problems.collect(parse.whole_numbers, "trial", trial),
        "protocol": protocol or ("grid" if grid and plan is None else None),
        "grid": grid and problems.collect(actions.parse_grid, grid),
        "draws": draws,
        "seeding": seeding,
        "select": select,
        "choose_by": choose_by,
    }
    stated = {name: value for name, value in stated.items() if value is not None}
    settings = problems.collect(_changed, run_options) or {}
    launcher_options = problems.collect(parse_launcher_options, launcher_option) or {}
    launch = LauncherConfig(launcher, jobs, jobs_per_gpu, launcher_options)
    problems += launch.problems()
    directory = SweepDir(output, allow_failed=allow_failed)
    specs = actions.find_specs(directory, plan, stated, settings, hyperparameters_from, problems)
    device = specs[-1].options.get("device", SETTINGS["device"].default)
    if dry_run:
        from swad.cli._estimate import print_estimate

        print_estimate(directory, specs, launch, device, problems)
        return
    actions.require_data(specs, problems)
    actions.add(directory, specs)
    if not actions.run(directory, launch, device, retry_failed, specs[-1].selector):
        raise typer.Exit(1)


def status(
    output: Annotated[Path, typer.Argument(help="Directory of the sweep.")] = Path("sweep"),
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Update the table until the sweep is complete.")] = False,
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds between two updates.")] = 2.0,
    failures: Annotated[int, typer.Option(min=0, help="Failed runs to list.")] = 20,
    lines: Annotated[int, typer.Option(min=0, help="Last lines of each failure.")] = 3,
) -> None:
    """Show how many runs of a sweep are done, running, failed and pending, and when it will be complete."""
    from swad.cli import _sweep as actions
    from swad.testbed.experiments.sweep.directory import SweepDir

    directory = SweepDir(output)
    directory.require()
    actions.show_status(directory, watch, interval, failures, lines)


# -- the parameters of `sweep`: those above, and the settings of the runs ---------------------------------------

_run_parameters = [
    train.make_parameter(setting)
    for name, setting in SETTINGS.items()
    if name not in SWEPT and name not in train.PYTHON_ONLY
]
_parameters = list(inspect.signature(sweep, eval_str=True).parameters.values())[:-1]  # all but **run_options
_parameters += _run_parameters
sweep.__signature__ = inspect.Signature(_parameters)  # type: ignore[attr-defined]
sweep.__annotations__ = {parameter.name: parameter.annotation for parameter in _parameters}

add_command(app, sweep, EXAMPLES, RUN, suggest=train.suggest)
add_command(app, status, "swad sweep status sweep --watch")


def _changed(run_options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the runs that differ from the defaults of the command line."""
    defaults = {parameter.name: parameter.default for parameter in _run_parameters}
    changed = {}
    for name, value in run_options.items():
        if value != defaults[name]:
            changed[name] = train.SPECIAL[name].convert(value) if name in train.SPECIAL else value
    return changed
