"""`swad measure NAME RUNS...`: one command for every measurement of saved weights, made from its fields."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from swad.cli import _options as parse
from swad.cli._command import add_command
from swad.cli._fields import FieldOption, Special
from swad.cli._options import FORMATS, DataNow, Device, DryRun, FigureFormats, Runs, Stored, Workers

if TYPE_CHECKING:
    from swad.testbed.measure.base import Measurement

EXAMPLES = """
swad measure corruption runs/PACS --weights best,swa,swad
swad measure flatness runs/PACS --dry-run
swad measure flatness runs/PACS --stored -o figures
"""
OF_STORED = ("runs", "weights", "by_target", "log", "output", "figure_formats")
"""The options that --stored takes."""


class Measurements(TyperGroup):
    """A group whose commands are the measurements; only the requested one is imported."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all measurements, a user's among them; a broken file must not cost the list."""
        from swad.testbed.measurements import MeasurementError, get_measurement, list_measurements

        names = []
        for name in list_measurements():
            try:
                get_measurement(name)
            except MeasurementError as error:
                print(f"note: {error}", file=sys.stderr)
            else:
                names.append(name.replace("_", "-"))
        return names

    def get_command(self, ctx: Any, name: str) -> Any:
        """Return the command of a measurement."""
        from swad.testbed.measurements import get_measurement

        what = get_measurement(name)
        commands = typer.Typer()
        example = f"swad measure {name} runs --weights best,swad"
        add_command(commands, make_command(what), example, name=name)
        return typer.main.get_command(commands)


app = typer.Typer(
    cls=Measurements,
    help="Measure saved weights of runs, and compare them. Files of your own are found in SWAD_MEASUREMENTS.",
    no_args_is_help=True,
    epilog="\n\n".join(["Examples:", *EXAMPLES.strip().splitlines()]),
)


@app.callback()
def _group() -> None:
    pass


def make_command(what: type[Measurement]) -> Callable[..., None]:
    """Return the command of a measurement: its docstring is the help, its fields are options."""
    made = _options(what)

    def command(
        context: typer.Context,
        runs: Runs,
        weights: Annotated[
            list[str] | None,
            typer.Option(
                metavar=parse.NAMES,
                help="Weights to measure, e.g. best,last,swad, or a step such as 2500. The others are compared with "
                "the first. Default: all that a run reports.",
            ),
        ] = None,
        by_target: Annotated[str | None, typer.Option(metavar="COLUMN", help="A column to show by target.")] = None,
        stored: Stored = False,
        dry_run: DryRun = False,
        log: Annotated[bool, typer.Option("--log", help="Draw values on a logarithmic axis.")] = False,
        output: Annotated[
            Path | None,
            typer.Option("--output", "-o", help="Directory to write to. Default: RUN/figures, or with several NAME."),
        ] = None,
        figure_formats: FigureFormats = FORMATS,
        data: DataNow = None,
        device: Device = "auto",
        workers: Workers = None,
        **options: Any,
    ) -> None:
        from swad.testbed.results.figures.style import require_matplotlib

        formats, names = parse.figure_formats(figure_formats), parse.words(weights)
        folder = (
            Path(what.name) if output is None and len(runs) > 1 else parse.output_folder(output, runs[0], "figures")
        )
        if stored:
            paths = parse.stored_runs(context, runs, what.file, *OF_STORED)
        else:
            chosen = what(**{name: made[name].convert(value) for name, value in options.items()})
            require_matplotlib()  # before measuring for hours
            paths, names = _measure(runs, chosen, names, data, device, workers, dry_run)
        if not dry_run:
            _show(paths, what, folder, formats, names, by_target, log)

    command.__name__ = what.name
    command.__doc__ = (inspect.getdoc(what) or "").partition("\n\nArgs:")[0] + (
        f"\n\nResults are stored in {what.file} of each run. Run the same command again to resume after an interrupt."
    )
    without = {"options", *([] if what.of_saved else ["weights"]), *([] if what.of_means else ["by_target", "log"])}
    fixed = [each for each in inspect.signature(command, eval_str=True).parameters.values() if each.name not in without]
    first = [each.name for each in fixed].index("stored" if not what.of_means else "by_target")
    generated = [each.parameter.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD) for each in made.values()]
    parameters = [*fixed[:first], *generated, *fixed[first:]]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def _measure(
    paths: Sequence[Path],
    what: Measurement,
    names: Sequence[str],
    data: Path | None,
    device: str,
    workers: int | None,
    dry_run: bool,
) -> tuple[list[Path], list[str]]:
    """State the cost, measure, and return the runs and the names of what was measured."""
    from swad.cli._console import measuring, print_notes, short_warnings
    from swad.testbed.measure.engine import choose_weights, cost, measure, plan
    from swad.testbed.measure.saved_run import find_device, open_runs

    runs, notes = open_runs(paths, data)
    chosen, skipped = choose_weights(runs, names, what)
    print_notes([*notes, *skipped])
    found = find_device(device)
    with short_warnings():
        jobs = plan(chosen, what, found)
        print(cost(jobs, found), flush=True)
    if not dry_run:
        with measuring() as progress:
            measure(jobs, found, workers=workers, progress=progress)
    return [job.run.path for job in jobs], list({name: None for job in jobs for name in job.fingerprints})


def _show(
    paths: Sequence[Path],
    what: type[Measurement],
    folder: Path,
    formats: Sequence[str],
    weights: Sequence[str],
    by_target: str | None,
    log: bool,
) -> None:
    """Print the tables of what runs have stored, and write the files."""
    from swad.cli._console import print_report
    from swad.testbed.results.report import Report
    from swad.testbed.results.runs import load_run
    from swad.util.jsonl import stored_path

    shown = what.report([load_run(path) for path in paths], weights, by_target, log)
    if shown is None:
        of_these = " of these weights" if weights else ""
        raise ValueError(f"no {what.file} has a complete measurement{of_these}: run `swad measure {what.name}` first")
    rows = tuple(stored_path(path / what.file) for path in paths)
    print_report(Report(shown.tables, tuple(shown.write(folder, formats)), rows))


def _options(what: type[Measurement]) -> dict[str, FieldOption]:
    """Return the options of the fields of a measurement; 0 stands for all images."""
    from swad.testbed.measure.base import options_of

    options = {}
    for name, option in options_of(what).items():
        special = None
        if option.optional and option.types == (int,):
            text = option.help.replace("None:", "0:")
            special = Special(
                annotation=int, default=option.default or 0, help=text, convert=lambda value: value or None
            )
        elif isinstance(option.default, tuple) and 0 < len(option.default) <= 5:
            special = Special(help=f"{option.help} Default: {','.join(map(str, option.default))}.")
        options[name] = FieldOption(option, special)
    return options
