"""Options that several commands share, and how their values are parsed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def at_least(option: str, value: int, minimum: int) -> int:
    """Return `value` if it is large enough."""
    if value < minimum:
        raise ValueError(f"--{option} must be {minimum} or more, got {value}")
    return value


def _check_workers(workers: int | None) -> int | None:
    return None if workers is None else at_least("workers", workers, 0)


Runs = Annotated[list[Path], typer.Argument(metavar="RUN", help="Run directories, or directories of runs.")]
Output = Annotated[Path, typer.Option("--output", "-o", help="Directory to write to.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")]
FigureFolder = Annotated[
    Path | None, typer.Option("--output", "-o", help="Directory for figures. Default: RUN/figures.")
]
FigureFormats = Annotated[str, typer.Option("--figure-formats", help="One or several of svg, pdf, png.")]
DataNow = Annotated[
    Path | None, typer.Option("--data", "-d", help="Dataset directory, if it moved since the run was trained.")
]
Images = Annotated[int, typer.Option(help="Images per domain, stratified by class. 0 uses all images.")]
Stored = Annotated[
    bool,
    typer.Option(
        "--stored", help="Show the last measurement that is stored in each run. Needs neither weights nor images."
    ),
]
Workers = Annotated[int | None, typer.Option(help="Number of processes that read images.", callback=_check_workers)]
Select = Annotated[str, typer.Option("--select", help="Model selection: iid, last, oracle, oracle_best_step or lodo.")]


def stored_runs(context: typer.Context, directories: list[Path], file: str, *options: str) -> list[Path]:
    """Return the finished runs with a file of rows, for --stored, which measures nothing and so allows few options."""
    from swad.cli._console import print_notes
    from swad.experiments.segment_runs import finished_runs, skip_notes
    from swad.util.jsonl import stored_path

    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE" and parameter.name not in ("stored", *options):
            raise ValueError(f"--stored shows a measurement as it was made: leave out {parameter.opts[0]}")
    runs, notes = finished_runs(directories, several_targets=True)
    stored = {run.path: stored_path(run.path / file).exists() for run in runs}
    print_notes([*notes, *skip_notes({f"it has no {file}": [path for path in stored if not stored[path]]})])
    return [path for path in stored if stored[path]]


def words(text: str) -> list[str]:
    """Parse a comma-separated list."""
    return [part.strip() for part in text.split(",") if part.strip()]


def whole_numbers(text: str) -> list[int]:
    """Parse comma-separated whole numbers."""
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ValueError(f"expected comma-separated whole numbers such as 0,1,2; got {text!r}") from None


def number(text: str) -> float:
    """Parse a number; one without point or exponent stays whole."""
    value = float(text)
    return int(value) if value.is_integer() and "." not in text and "e" not in text.lower() else value


def numbers(text: str | None) -> tuple[float, ...] | None:
    """Parse comma-separated numbers."""
    try:
        return None if text is None else tuple(float(part) for part in words(text))
    except ValueError:
        raise ValueError(f"expected comma-separated numbers such as 0.5,0.5,0.5; got {text!r}") from None


def even_directions(directions: int) -> int:
    """Return the number of directions if they form opposite pairs."""
    if directions < 4 or directions % 2:
        raise ValueError(
            f"--directions must be an even number of at least 4: directions come in opposite pairs, and a single pair "
            f"has no spread; got {directions}"
        )
    return directions


def radii(text: str) -> list[float]:
    """Parse comma-separated numbers, or START:STOP:STEP with both ends included."""
    try:
        if ":" in text:
            start, stop, step = (float(part) for part in text.split(":"))
            if not step > 0 or stop < start:
                raise ValueError
            return [start + step * k for k in range(int((stop - start) / step + 1e-9) + 1)]
        return [float(part) for part in words(text)]
    except (ValueError, OverflowError):
        raise ValueError(
            f"radii must be comma-separated numbers or START:STOP:STEP such as 0:60:5; got {text!r}"
        ) from None


def figure_formats(text: str) -> list[str]:
    """Parse the formats of figures."""
    formats = words(text)
    if not formats or any(name not in ("svg", "pdf", "png") for name in formats):
        raise ValueError(f"--figure-formats must be one or several of svg, pdf, png; got {text!r}")
    return formats


def device(name: str) -> str:
    """Resolve `auto` to a GPU where there is one."""
    if name != "auto":
        return name
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
