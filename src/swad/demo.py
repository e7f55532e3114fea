"""The demo: handwritten digits in several styles, each style held out once."""

from __future__ import annotations

from pathlib import Path

from swad import datasets
from swad.config import RunConfig


def configs(output: Path, trials: int = 2, steps: int | None = None, device: str = "cpu") -> list[RunConfig]:
    """Leave-one-style-out over all styles; ERM, EMA, SWA and SWAD come from one training each."""
    if trials < 1:
        raise ValueError(f"a demo needs at least one trial, got {trials}")
    return [
        RunConfig(
            "digits",
            target,
            output / f"{target}-{trial}",
            trial=trial,
            steps=steps,
            averages=("swad", "swa", "ema"),
            device=device,
        )
        for trial in range(trials)
        for target in datasets.get("digits").domains
    ]
