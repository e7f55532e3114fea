"""`swad demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from swad.cli import _options as parse
from swad.cli._options import Device, Output

EXAMPLES = """
swad demo
swad demo --trial 0 --steps 200 --output quick
"""

TRIALS = ["0,1"]


def demo(
    output: Output = Path("demo"),
    trial: Annotated[
        list[str], typer.Option(metavar=parse.NUMBERS, help="Train-validation splits, for the standard error.")
    ] = TRIALS,
    steps: Annotated[int | None, typer.Option(help="Number of updates of each run.")] = None,
    device: Device = "cpu",
) -> None:
    """Train on handwritten digits in four styles, holding each out once: ERM, EMA, SWA and SWAD from one training."""
    from swad.cli._console import measuring
    from swad.cli.report import report_trained
    from swad.testbed.paper.demo import make_configs, measure_flatness
    from swad.testbed.workers.train_all import train_all
    from swad.util.processes import available_cores

    configs = make_configs(output, parse.whole_numbers("trial", trial), steps, device)
    train_all(configs, jobs=available_cores())
    with measuring() as progress:
        measure_flatness(configs[0], progress)
    report_trained(output)
