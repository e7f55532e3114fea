"""`swad sweep run`: compare algorithms, averages, datasets and hyperparameters; `status`: watch; `work`: one worker.

The settings of the runs (`--steps`, `--network`, ...) are the options of `swad train`, generated from the same fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from swad.cli import _options as parse
from swad.cli import train
from swad.cli._command import add_command
from swad.cli._fields import FieldOption, Special, add_parameters, field_options
from swad.cli._problems import Problems
from swad.testbed.sweep.spec import SPEC_SETTINGS
from swad.testbed.training.config import SETTINGS
from swad.util.names import did_you_mean

EXAMPLES = """
swad sweep run --algorithm erm,coral --trial 0,1 --steps 200
swad sweep run --protocol paper --algorithm erm --dry-run
swad sweep run --protocol grid --grid lr=1e-4,1e-3 --grid dropout=0,0.5 --output lr
swad sweep run plan.toml --data data --launcher slurm --jobs 50
swad sweep run --output lr --retry-failed
"""

SWEPT = ("dataset", "target", "trial", "algorithm", "averages", "data_dir")
"""Settings of a run that a sweep varies or names otherwise."""


class _SweepGroup(TyperGroup):
    """Says what to do with the options or the plan file of a sweep: they follow the command `run`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *self.get_help_option_names(ctx)):
            hint = did_you_mean(args[0], self.commands) or f"swad sweep run {args[0]} ... trains a sweep"
            ctx.fail(f"There is no command {args[0]!r}: {hint}")
        return super().parse_args(ctx, args)


COMPARED = "What to compare"

app = typer.Typer(
    cls=_SweepGroup,
    help="Compare algorithms, averages, datasets and hyperparameters in many runs.",
    no_args_is_help=True,
    epilog="Example: swad sweep run --algorithm erm,coral --trial 0,1 --steps 200",
)


SPECIAL = {
    "algorithms": Special(("--algorithm",), complete=parse.complete_algorithm),
    "averages": Special(("--averages", "-a"), convert=parse.averages),
    "datasets": Special(("--dataset",), complete=parse.complete_dataset),
    "data": Special(("--data", "-d")),
    "targets": Special(("--target", "-t")),
    "trials": Special(("--trial",)),
    "grid": Special(("--grid", "-g"), metavar="NAME=NUMBER,...", convert=parse.grid),
    "select": Special(metavar="NAME"),
    "choose_by": Special(metavar="NAME"),
}
SPEC_OPTIONS = field_options(SPEC_SETTINGS.values(), SPECIAL, lambda setting: COMPARED, stated=True)
RUN_OPTIONS = {name: option for name, option in train.OPTIONS.items() if name not in SWEPT}


_control = partial(typer.Option, rich_help_panel="Sweep")


def _complete_plan(incomplete: str) -> list[str]:
    return [name for name in ("appendix-b3", *map(str, sorted(Path().glob("*.toml")))) if name.startswith(incomplete)]


def run(
    plan: Annotated[
        Path | None,
        typer.Argument(
            help="TOML file with the options below, which override it, or appendix-b3: the paper's searches.",
            show_default=False,
            autocompletion=_complete_plan,
        ),
    ] = None,
    hyperparameters_from: Annotated[
        Path | None,
        typer.Option(
            "--hyperparameters-from",
            "--import",
            metavar="FILE",
            help="Use the hyperparameters of a selection file instead of a search: `swad select` writes one.",
            rich_help_panel=COMPARED,
        ),
    ] = None,
    launcher: parse.Launcher = "local",
    jobs: parse.Jobs = None,
    jobs_per_gpu: parse.JobsPerGpu = 1,
    processes: parse.Processes = 1,
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
    **options: Any,
) -> None:
    """Train every combination of algorithms, datasets, targets, trials and hyperparameters, and print the table.

    Run the same command again after an interruption: finished runs are kept, unfinished runs resume. Other options
    extend the sweep without repeating a run. `swad sweep status DIR` shows the progress.
    """
    from swad.cli import _sweep as actions
    from swad.cli._launch import LaunchOptions, parse_launcher_options
    from swad.testbed.sweep.directory import SweepDir
    from swad.testbed.training.checks import require_processes

    # Every value is parsed before anything is reported, so that all problems are listed together.
    problems = Problems()
    if options["protocol"] is None and options["grid"] and plan is None:
        options["protocol"] = "grid"
    stated = _stated(SPEC_OPTIONS, options, problems)
    settings = _stated(RUN_OPTIONS, options, problems)
    launcher_options = problems.collect(parse_launcher_options, launcher_option) or {}
    launch = LaunchOptions(launcher, jobs, jobs_per_gpu, launcher_options, processes)
    problems += launch.problems()
    directory = SweepDir(output, allow_failed=allow_failed)
    specs = actions.find_specs(directory, plan, stated, settings, hyperparameters_from, problems)
    device = specs[-1].options.get("device", SETTINGS["device"].default)
    if not problems and processes > 1:
        planned = directory.plan([*directory.specs, *specs]).runs
        problems.collect(require_processes, [run.config for run in planned], processes)
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
    from swad.testbed.sweep.directory import SweepDir

    directory = SweepDir(output)
    directory.require()
    actions.show_status(directory, watch, interval, failures, lines)


def work(
    output: Annotated[Path, typer.Argument(help="Directory of the sweep.")] = Path("sweep"),
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs", "-j", min=1, help="Runs at a time. Default: one per GPU, divided by --processes, else one."
        ),
    ] = None,
    processes: parse.Processes = 1,
    allow_failed: Annotated[bool, _control("--allow-failed", help="As of `swad sweep run`.")] = False,
) -> None:
    """Train runs of a sweep until none is left that nobody trains: in a job of any scheduler, as often as you like.

    All workers of a sweep need one file system. Add runs with `swad sweep run`; this command only works on them.
    """
    from swad.cli._launch import torchrun_problems
    from swad.testbed.sweep.directory import SweepDir
    from swad.testbed.training.checks import require_processes
    from swad.testbed.workers.in_job import work_here

    if problems := torchrun_problems():
        raise ValueError(problems[0])
    directory = SweepDir(output, allow_failed=allow_failed)
    directory.require()
    device = str(directory.specs[-1].options.get("device", SETTINGS["device"].default))
    parse.at_least("processes", processes, 1)
    require_processes(directory.configs(), processes)
    work_here(directory.configs, directory.claims, jobs, device, processes=processes)


def _stated(known: Mapping[str, FieldOption], options: Mapping[str, Any], problems: Problems) -> dict[str, Any]:
    """Return the values that differ from the defaults of the command line."""
    stated = {}
    for name, option in known.items():
        if options[name] not in (option.parameter.default, []):
            value = problems.collect(option.convert, options[name])
            if value is not None:
                stated[name] = value
    return stated


add_parameters(
    run,
    [option.parameter for option in SPEC_OPTIONS.values()],
    [option.parameter for option in RUN_OPTIONS.values()],
)
add_command(app, run, EXAMPLES, suggest=train.suggest)
add_command(app, status, "swad sweep status sweep --watch")
add_command(app, work, "swad sweep work /shared/sweep")
