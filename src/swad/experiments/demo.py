"""The demo: handwritten digits in several styles, each style held out once."""

from __future__ import annotations

from pathlib import Path

from swad.data import benchmarks
from swad.training.config import RunConfig


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
            snapshots=_marks(steps or benchmarks.get("digits").defaults.steps),
            device=device,
        )
        for trial in range(trials)
        for target in benchmarks.get("digits").domains
    ]


def look(config: RunConfig) -> None:
    """Measure the flatness of ERM and SWAD, and the plane through three weights, of one run: coarsely, in seconds."""
    from swad.experiments import run_flatness
    from swad.experiments.flatness_commands import following
    from swad.experiments.saved_run import open_run

    run = open_run(config.output)
    coarse = run_flatness.FlatnessConfig(radii=tuple(4.0 * k for k in range(7)), directions=16, images=80)
    with following(f"{run.name}: flatness") as progress:
        run_flatness.flatness(run, ["best", "swa", "swad"], coarse, device=config.device, progress=progress)
    if len(run.snapshots) >= 3:
        with following(f"{run.name}: loss surface") as progress:
            run_flatness.surface(run, steps=11, images=80, device=config.device, progress=progress)


def _marks(steps: int) -> tuple[int, ...]:
    """Three updates of the stretch that SWAD averages here, well before the weights of the end have settled."""
    return tuple(sorted({max(1, steps * share // 100) for share in (20, 30, 40)}))
