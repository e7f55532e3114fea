"""Options that several commands share, and how their values are parsed."""

from __future__ import annotations

import csv
import gc
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from swad.util.files import require_no_link
from swad.util.names import require_choice

if TYPE_CHECKING:
    from swad.testbed.results.runs import RunList
    from swad.testbed.results.selection import DatasetResults

LISTS = "Several values: separate them with commas (A,B), or repeat the option. Quotes keep a comma: '\"A,B\",C'."
RANGES = " Numbers may be START:STOP:STEP, both ends included."
"""How every option takes several values. It is shown below the help of the commands that have such options."""

NAMES, NUMBERS, PAIRS = "NAME,...", "NUMBER,...", "NAME=VALUE,..."
"""Placeholders of options that take several values."""


MOST_NUMBERS = 10_000
"""Numbers of one range, or directions. More is a misprint, and would not end."""


def at_least(option: str, value: int, minimum: int, maximum: int | None = None) -> int:
    """Return `value` if it is large enough, and not absurdly large."""
    if value < minimum:
        raise ValueError(f"--{option} must be {minimum} or more, got {value}")
    if maximum is not None and value > maximum:
        raise ValueError(f"--{option} must be {maximum:,} or less, got {value:,}")
    return value


def _check_workers(workers: int | None) -> int | None:
    return None if workers is None else at_least("workers", workers, 0)


Runs = Annotated[list[Path], typer.Argument(metavar="RUN", help="Run directories, or directories of runs.")]
Folder = Annotated[Path, typer.Argument(help="Directory of runs, searched recursively.")]
Output = Annotated[Path, typer.Option("--output", "-o", help="Directory to write to.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")]
FigureFormats = Annotated[
    list[str], typer.Option("--figure-formats", metavar=NAMES, help="Formats of the figures: svg, pdf, png.")
]
FORMATS = ["svg,pdf,png"]
DataNow = Annotated[
    Path | None, typer.Option("--data", "-d", help="Dataset directory, if it moved since the run was trained.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="State the cost, and measure nothing.")]
Stored = Annotated[
    bool,
    typer.Option(
        "--stored", help="Show the last measurement that is stored in each run. Needs neither weights nor images."
    ),
]
Workers = Annotated[int | None, typer.Option(help="Number of processes that read images.", callback=_check_workers)]
Select = Annotated[str, typer.Option("--select", help="Model selection: iid, last, oracle, oracle_best_step or lodo.")]
SelectBy = Annotated[
    str | None,
    typer.Option(
        metavar="METRIC",
        help="Metric by which runs are selected: accuracy, balanced_accuracy, auc, f1, worst_domain, worst_group or "
        "accuracy:CLASS, if the runs recorded it. Default: that of their training.",
    ),
]
Metric = Annotated[str, typer.Option(metavar="METRIC", help="Metric of the tables, one of those of --select-by.")]
TargetSplit = Annotated[
    str,
    typer.Option(
        help="Split of the held-out domain that is reported: in (80 %), out (20 %), full (all of it) or test."
    ),
]

_LAUNCHING: Any = {"rich_help_panel": "Where to train"}
Launcher = Annotated[str, typer.Option(metavar="NAME", help="local, ray or slurm.", **_LAUNCHING)]
LauncherOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--launcher-option",
        "-l",
        metavar="NAME=VALUE",
        help="An option of sbatch, e.g. partition=gpu, or of a Ray task, e.g. num_gpus=0.5. Repeat it for several.",
        **_LAUNCHING,
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        "-j",
        help="Runs that train at the same time. Default: the launcher's; local: one per GPU, else one per core, "
        "divided by --processes.",
        **_LAUNCHING,
    ),
]
Processes = Annotated[
    int,
    typer.Option(
        help="Processes that train each run together, one per GPU, with the numbers of one process.", **_LAUNCHING
    ),
]
JobsPerGpu = Annotated[int, typer.Option(help="Runs that share a GPU (only the launcher local).", **_LAUNCHING)]


def read_runs(folder: Path) -> RunList:
    """Read all runs below a directory; tables name those that are skipped."""
    from swad.testbed.results.runs import find_runs
    from swad.util.progress import progress_bar

    with progress_bar() as progress:
        runs = find_runs(folder, warn=False, progress=progress)
    if "torch" not in sys.modules:  # after a training there are few runs, and Triton would call its frozen types leaked
        gc.freeze()  # they live as long as the command: the collector would search thousands of them again and again
    return runs


def selected_results(
    folder: Path, select: str, target_split: str = "in", metric: str = "accuracy", select_by: str | None = None
) -> tuple[RunList, list[DatasetResults]]:
    """Read all runs below a directory, and select the results of every method."""
    from swad.testbed.results.metrics import metric_problem
    from swad.testbed.results.selection import SELECTIONS, collect_results

    require_choice("--select", select, SELECTIONS)
    require_choice("--target-split", target_split, ("in", "out", "full", "test"))
    for option, name in (("--metric", metric), ("--select-by", select_by or metric)):
        if problem := metric_problem(option, name):
            raise ValueError(problem)
    runs = read_runs(folder)
    return runs, collect_results(runs, select, target_split, metric, select_by)


def stored_runs(context: typer.Context, directories: list[Path], file: str, *options: str) -> list[Path]:
    """Return the finished runs with a file of rows, for --stored, which measures nothing and so allows few options."""
    from swad.cli._console import print_notes
    from swad.testbed.measure.saved_run import finished_runs, skip_notes
    from swad.util.jsonl import stored_path

    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE" and parameter.name not in ("stored", *options):
            raise ValueError(f"--stored shows a measurement as it was made: leave out {parameter.opts[0]}")
    runs, notes = finished_runs(directories)
    stored = {run.path: stored_path(run.path / file).exists() for run in runs}
    print_notes([*notes, *skip_notes({f"it has no {file}": [path for path in stored if not stored[path]]})])
    return [path for path in stored if stored[path]]


def words(texts: Iterable[str] | None) -> list[str]:
    """Parse different names, separated by commas as in a line of CSV, or by repeating the option.

    >>> words(["erm, coral", "sam,erm"]), words(['"Smith, Jane",photo']), words(None)
    (['erm', 'coral', 'sam'], ['Smith, Jane', 'photo'], [])
    """
    return list(dict.fromkeys(word for text in texts or () for word in _split(text)))


def _split(text: str) -> list[str]:
    try:
        lines = list(csv.reader([text], skipinitialspace=True, strict=True))
    except csv.Error:
        raise ValueError(f"a list needs commas between values, and quotes only around whole ones; got {text}") from None
    return [word for line in lines for part in line if (word := part.strip())]


def numbers(option: str, texts: Iterable[str] | None) -> tuple[float, ...]:
    """Parse numbers; START:STOP:STEP stands for several, both ends included, and START:STOP has a step of 1.

    >>> numbers("radii", ["0.1:0.3:0.1,3", "inf"])
    (0.1, 0.2, 0.3, 3.0, inf)
    """
    return _numbers(
        option, texts, float, f"--{option} takes numbers such as 0.1,0.2, or START:STOP:STEP such as 0:60:5"
    )


def whole_numbers(option: str, texts: Iterable[str] | None) -> tuple[int, ...]:
    """Parse whole numbers; START:STOP:STEP stands for several, both ends included, and START:STOP has a step of 1.

    >>> whole_numbers("trial", ["0:2", "7"])
    (0, 1, 2, 7)
    """
    return _numbers(option, texts, int, f"--{option} takes whole numbers such as 0,1,2, or START:STOP such as 0:9")


T = TypeVar("T", int, float)


def _numbers(option: str, texts: Iterable[str] | None, number_type: Callable[[str], T], rule: str) -> tuple[T, ...]:
    values: list[T] = []
    for word in (word for text in texts or () for word in _split(text)):
        n_values = 1
        try:
            start, *rest = [number_type(part) for part in word.split(":")]
            if rest:
                stop, step = rest if len(rest) > 1 else (rest[0], number_type("1"))
                if not step > 0 or stop < start:
                    raise ValueError
                n_values = int((stop - start) / step + 1e-9) + 1
                values += [
                    round(start + step * k, 12) for k in range(min(n_values, MOST_NUMBERS))
                ]  # 0.3, not 0.30000000000000004
            else:
                values.append(start)
        except (ValueError, OverflowError):
            raise ValueError(f"{rule}; got {word!r}") from None
        if n_values > MOST_NUMBERS:
            raise ValueError(f"--{option} takes at most {MOST_NUMBERS:,} numbers, got {word!r}: use a larger step")
    return tuple(values)


def pairs(option: str, texts: Iterable[str] | None, example: str) -> dict[str, list[str]]:
    """Parse NAME=VALUE: the values of each name. One without a name belongs to the name before it.

    >>> pairs("grid", ["lr=1e-5,3e-5,dropout=0", "lr=5e-5"], "lr=1e-5,3e-5")
    {'lr': ['1e-5', '3e-5', '5e-5'], 'dropout': ['0']}
    """
    values: dict[str, list[str]] = {}
    for text in texts or ():
        name = ""
        for word in _split(text):
            before, equals, after = word.partition("=")
            name, value = (before.strip(), after.strip()) if equals else (name, word)
            if not name:
                raise ValueError(f"--{option} takes NAME=VALUE, got {word!r}: e.g. --{option} {example}")
            values.setdefault(name, []).append(value)
    return values


def grid(texts: Iterable[str]) -> dict[str, tuple[float, ...]]:
    """Parse the numbers of each hyperparameter.

    >>> grid(["lr=1e-5,3e-5"])
    {'lr': (1e-05, 3e-05)}
    """
    example = "lr=1e-5,3e-5"
    values = pairs("grid", texts, example)
    try:
        return {name: tuple(map(number, of_name)) for name, of_name in values.items()}
    except ValueError:
        raise ValueError(f"--grid takes numbers by name, got {','.join(texts)}: e.g. --grid {example}") from None


def settings(option: str, texts: Iterable[str] | None, example: str) -> dict[str, float | str]:
    """Parse NAME=VALUE with one value for each name, a number or a word."""
    parsed: dict[str, float | str] = {}
    for name, values in pairs(option, texts, example).items():
        if len(values) > 1:
            raise ValueError(
                f"--{option} takes one value for each name, got {' and '.join(values)} for {name}: another value needs "
                "another --output"
            )
        try:
            parsed[name] = number(values[0])
        except ValueError:
            parsed[name] = values[0]
    return parsed


def number(text: str) -> float:
    """Parse a number; one without point or exponent stays whole."""
    value = float(text)
    return int(value) if value.is_integer() and "." not in text and "e" not in text.lower() else value


def averages(texts: Iterable[str]) -> tuple[str, ...]:
    """Parse weight averages, whose options have commas too: swad:semantics=text,n_converge=2,ema are two."""
    from swad.testbed.averages import registry

    return tuple(average for text in texts for average in registry.split(text))


def complete_dataset(incomplete: str) -> list[str]:
    """Complete the last of several names of datasets."""
    from swad.testbed.data import benchmarks

    return _complete(incomplete, benchmarks.names())


def complete_algorithm(incomplete: str) -> list[str]:
    """Complete the last of several names of algorithms."""
    from swad.testbed.algorithms import registry

    return _complete(incomplete, registry.list_algorithms())


def _complete(incomplete: str, names: Iterable[str]) -> list[str]:
    before, comma, last = incomplete.rpartition(",")
    matches = [name for name in names if name.lower().startswith(last.lower())]
    # A shell drops what does not start with the very letters that were typed, and names are read in any case.
    return [before + comma + (name.upper() if last.isupper() else last + name[len(last) :]) for name in matches]


def even_directions(directions: int) -> int:
    """Return the number of directions if they form opposite pairs."""
    if directions < 4 or directions % 2:
        raise ValueError(
            f"--directions must be an even number of at least 4: directions come in opposite pairs, and a single pair "
            f"has no spread; got {directions}"
        )
    return at_least("directions", directions, 4, MOST_NUMBERS)


def output_folder(output: Path | None, run: Path, name: str) -> Path:
    """Return the directory to write to: `output`, or one in a run directory, in which no link is followed."""
    if output is not None:
        return output
    folder = run / name
    for path in (folder, *folder.rglob("*")):
        if path.is_dir():
            require_no_link(path)
    return folder


def figure_formats(texts: Iterable[str]) -> list[str]:
    """Parse the formats of figures."""
    formats = words(texts)
    for name in formats:
        require_choice("--figure-formats", name, ("svg", "pdf", "png"))
    return formats
