"""Measure the worst loss within a radius at every point of the line between two weights of a run.

Each point is stored as soon as it is measured, so an interrupted measurement resumes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from swad.flatness import image_losses, line, worst_case
from swad.flatness.ascent import ASCENT
from swad.testbed.measure.saved_run import SavedRun, find_device
from swad.testbed.results.figures.robust_lines import RobustLine
from swad.testbed.results.measurement_rows import RowFile
from swad.testbed.results.runs import load_run
from swad.util.progress import Progress

FILE = "robust-line.jsonl"
MARGIN = 0.5
"""How far the line extends beyond both ends, as a share of their distance."""
STEPS = 8
"""Ascent steps for each radius. The search continues from the worst point of the next smaller radius."""


def measure_robust_line(
    run: SavedRun,
    ends: tuple[str, str],
    shares: Sequence[float],
    *,
    points: int = 21,
    n_images: int | None = 200,
    device: str = "cpu",
    workers: int | None = None,
    progress: Progress | None = None,
) -> RobustLine:
    """Measure loss and worst loss along a line.

    Args:
        ends: Names of the weights at x = 0 and x = 1.
        shares: Radii as shares of the distance between both.
        points: Number of points on the line, besides both ends.
        n_images: Training images of every source domain; None: all.
        device: Device to measure on.
        workers: Processes that read images.
        progress: Called after every point.
    """
    torch_device = find_device(device)
    states = [run.state(name) for name in ends]
    length = line(*states).length
    settings = {
        "ends": list(ends),
        "fingerprints": [run.fingerprint(name) for name in ends],
        "shares": sorted(shares),
        "points": points,
        "margin": MARGIN,
        "n_images": n_images,
        "steps": STEPS,
        "ascent": ASCENT,
        "device": torch_device.type,
    }
    # Both ends are always among the points.
    xs = sorted({0.0, 1.0, *torch.linspace(-MARGIN, 1 + MARGIN, points, dtype=torch.float64).tolist()})
    radii = [share * length for share in sorted(shares)]
    with RowFile(run.path, FILE) as file:
        key = file.add_settings(settings)
        measured = {row["x"]: row for row in file.rows_of(key, kind="point")}
        missing = [x for x in xs if x not in measured]
        if missing:
            images = run.images(n_images, torch_device, workers).side("seen")
            loss_fn = image_losses(images, batch_size=run.batch_size(torch_device))
            model = run.model(ends[0], torch_device)
            for number, x in enumerate(missing, start=1):
                model.load_state_dict(_between(states[0], states[1], x))
                rows = worst_case(model, loss_fn, radii, STEPS, restarts=0).rows
                worst = [row.lower_bound for row in rows]
                measured[x] = {"key": key, "kind": "point", "x": x, "loss": rows[0].loss, "worst": worst}
                file.append(measured[x])
                if progress is not None:
                    progress(f"worst case, {run.name}", number, len(missing))
    return RobustLine(
        load_run(run.path),
        ends,
        length,
        tuple(xs),
        tuple(measured[x]["loss"] for x in xs),
        {radius: tuple(measured[x]["worst"][index] for x in xs) for index, radius in enumerate(radii)},
    )


def _between(first: Mapping[str, Tensor], second: Mapping[str, Tensor], x: float) -> dict[str, Tensor]:
    """Return the weights at a position on the line; whole numbers, such as counters, are those of the second."""
    return {
        name: torch.lerp(first[name], tensor, x) if tensor.is_floating_point() else tensor
        for name, tensor in second.items()
    }
