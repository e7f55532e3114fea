"""`swad log`: send the records of runs to a tracker."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from swad.cli import _options as parse
from swad.util.names import counted

EXAMPLES = """
swad log runs --to wandb
swad log sweep --to mlflow,tensorboard
"""


def log(
    folder: parse.Folder = Path("runs"),
    to: Annotated[
        list[str] | None, typer.Option(metavar=parse.NAMES, help="Trackers: wandb, mlflow or tensorboard.")
    ] = None,
) -> None:
    """Send the records of all runs to Weights & Biases, MLflow or TensorBoard; values sent before are skipped."""
    from swad.testbed.results.trackers.base import NAMES, name_problems
    from swad.testbed.results.trackers.tracking import replay
    from swad.util.progress import progress_report

    trackers = parse.words(to)
    if problems := name_problems(trackers):
        raise ValueError("; ".join(problems))
    if not trackers:
        raise ValueError(f"--to must name one or several of {', '.join(NAMES)}: e.g. --to tensorboard")
    runs = parse.read_runs(folder)
    with progress_report() as progress:
        problems = replay(runs, trackers, progress)
    for problem in problems:
        print(f"warning: {problem}", file=sys.stderr)
    if problems:
        raise typer.Exit(1)
    print(f"sent the records of {counted(len(runs), 'run')} to {', '.join(trackers)}")
