"""The demo: handwritten digits in four styles, each style held out once."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from swad.testbed.data import benchmarks
from swad.testbed.training.config import RunConfig
from swad.util.progress import Progress


def make_configs(
    output: Path, trials: Iterable[int] = (0, 1), steps: int | None = None, device: str = "cpu"
) -> list[RunConfig]:
    """Return one run per held-out style and trial; ERM, EMA, SWA and SWAD come from the same training."""
    return [
        RunConfig.from_options(
            dataset="digits",
            target=target,
            output=output / f"{target}-{trial}",
            trial=trial,
            steps=steps,
            averages=("swad", "swa", "ema"),
            snapshots=_snapshot_steps(steps or benchmarks.get("digits").defaults.steps),
            device=device,
        )
        for trial in dict.fromkeys(trials)
        for target in benchmarks.get("digits").domains
    ]


def measure_flatness(config: RunConfig, progress: Progress | None = None) -> None:
    """Measure the flatness of one run's ERM, SWA and SWAD and the plane through three of its weights, in seconds."""
    from swad.testbed.measure import engine
    from swad.testbed.measure.saved_run import find_device, open_run
    from swad.testbed.measurements.flatness import Flatness
    from swad.testbed.measurements.surface import Surface

    run, device = open_run(config.output), find_device(config.device)
    coarse = Flatness(images=80, radii=tuple(4.0 * k for k in range(7)), directions=16)
    engine.measure(engine.plan([(run, ["best", "swa", "swad"])], coarse, device), device, progress=progress)
    if len(run.snapshots) >= 3:
        plane = Surface(images=80, steps=11)
        engine.measure(engine.plan([(run, ())], plane, device), device, progress=progress)


def _snapshot_steps(steps: int) -> tuple[int, ...]:
    """Return three updates of the range that SWAD averages here, well before the end of training."""
    return tuple(sorted({max(1, steps * percent // 100) for percent in (20, 30, 40)}))
