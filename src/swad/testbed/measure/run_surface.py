"""Loss surfaces of a finished run's saved weights, stored point by point in the run's `surface.jsonl`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from swad.flatness import Line, Plane, Surface, captured, image_losses, line, plane
from swad.testbed.algorithms.registry import get_algorithm
from swad.testbed.measure.finished_runs import open_runs, run_progress
from swad.testbed.measure.saved_run import Images, SavedRun, find_device
from swad.testbed.results.figures.style import FORMATS, require_matplotlib, save_figures
from swad.testbed.results.figures.surfaces import line_figure, surface_figure
from swad.testbed.results.measurement_rows import SURFACE, RowFile
from swad.testbed.results.report import Report
from swad.testbed.results.runs import load_run
from swad.testbed.results.surfaces import points_table, read_surface
from swad.testbed.training.run_dir import RunError
from swad.util.jsonl import stored_path
from swad.util.names import snapshot_name
from swad.util.progress import Progress

PAPER_CORNERS = (50, 70, 90)
"""Percent of training at which the paper's Figure 4 takes its weights: after steps 2500, 3500 and 4500 of 5000."""
GRID = 21
MARGIN = 0.4
"""How far a surface extends beyond its corners, as a share of its longer side."""
BN_BATCH = 64
"""Images in a batch on which batch norms are re-estimated."""


def run_surface(
    run: SavedRun,
    corners: Sequence[str] = (),
    points: Sequence[str] | None = None,
    *,
    steps: int = GRID,
    margin: float = MARGIN,
    n_images: int | None = 200,
    device: str = "cpu",
    workers: int | None = None,
    progress: Progress | None = None,
) -> Surface:
    """Evaluate the loss on the plane through three of a run's weights, or on the line through two.

    Args:
        corners: Names of three weights, or of two for a line. By default `default_corners`.
        points: Names of extra weights to project onto the surface. By default the run's averages that are near it.
            The mean of the corners is always among the points.
        steps: Number of grid points along each side.
        margin: How far the grid extends beyond the corners, as a share of the longer side.
        n_images: Images of every domain; None: all.
        device: Device to measure on.
        workers: Processes that read images.
        progress: Called after every point.
    """
    torch_device = find_device(device)
    corners = [run.full_name(name) for name in corners] or list(default_corners(run))
    if len(corners) not in (2, 3) or len(set(corners)) < len(corners):
        raise RunError(f"a plane needs three different weights and a line two; got {', '.join(corners)}")
    models = [run.model(name) for name in corners]  # not state dicts, which name tied weights twice
    surface: Plane | Line = plane(*models) if len(models) == 3 else line(*models)
    extra = _averages_near(run, surface) if points is None else [run.full_name(name) for name in points]
    extra = [name for name in extra if name not in corners]
    settings = {
        "shape": "plane" if len(corners) == 3 else "line",
        "corners": corners,
        "points": extra,
        "steps": steps,
        "margin": margin,
        **run.image_settings(n_images),
        "device": torch_device.type,
        "seen": list(run.held_out.sources.names),
        "unseen": list(run.config.targets),
    }
    with RowFile(run.path, SURFACE) as file:
        key = file.add_settings(settings)
        run.require_same_weights(file, key, [*corners, *extra])
        done_rows = file.rows_of(key)
        n_points = steps ** (len(corners) - 1) + len(corners) + len(extra) + 1
        if sum(row["kind"] == "surface-point" for row in done_rows) == n_points:
            result = Surface.from_rows(done_rows)
        else:
            images = run.images(n_images, torch_device, workers)
            model = run.model(corners[0], torch_device)
            loss_fn = image_losses(images.by_domain, batch_size=run.batch_size(torch_device), measure="both")
            result = surface.evaluate(
                model,
                captured(loss_fn, model),
                steps,
                margin,
                points={
                    "mean": _mean_state([model.state_dict() for model in models]),
                    **{name: run.state(name) for name in extra},
                },
                update_bn=_bn_updater(run, images),
                on_row=lambda row: file.append({"key": key, **row}),
                done_rows=done_rows,
                progress=progress,
            )
        file.mark_shown(key)
    return result


def default_corners(run: SavedRun) -> tuple[str, str, str]:
    """Return three of the run's snapshots, inside the range that SWAD averaged where it has three.

    The paper's, at 50, 70 and 90 % of training, are taken if they are inside; otherwise the first, the middle and the
    last one inside. Weights after t_e have left the valley, so a plane through them shows its slope. If fewer than
    three are inside, those nearest to the range are taken. Without SWAD all snapshots count as inside.
    """
    snapshots = run.snapshots
    if len(snapshots) < 3:
        steps = run.config.steps or 5000
        suggestion = ",".join(str(steps * percent // 100) for percent in PAPER_CORNERS)
        raise RunError(
            f"{run.path} saved {len(snapshots) or 'no'} snapshots, but a plane needs three weights: train with "
            f"--snapshots {suggestion}, or name three with --corners ({', '.join(run.reported)})"
        )
    inside = [name for name in snapshots if not _steps_outside(run, name)]
    total = run.config.steps
    paper = [snapshot_name(total * percent // 100) for percent in PAPER_CORNERS] if total else []
    if paper and all(name in inside for name in paper):
        inside = paper
    elif len(inside) < 3:
        inside = sorted(sorted(snapshots, key=lambda name: _steps_outside(run, name))[:3])
    return inside[0], inside[(len(inside) - 1) // 2], inside[-1]


def corners_outside(run: SavedRun, corners: Sequence[str]) -> list[str]:
    """Return the corners that are live weights from before or after the range that SWAD averaged."""
    return [name for name in corners if name in run.snapshots and _steps_outside(run, name)]


def _steps_outside(run: SavedRun, snapshot: str) -> int:
    """Return how many steps a snapshot is before or after the range that SWAD averaged."""
    start, end = run.averaged_range or (0, sys.maxsize)
    step = run.snapshots[snapshot]
    return max(start - step, step - end, 0)


def _averages_near(run: SavedRun, surface: Plane | Line) -> list[str]:
    """Return the run's averages that are close to the corners and to the plane or line.

    The surface says nothing about weights that are further from it than the corners are from each other.
    """
    size = max(surface.x2, abs(surface.x3), surface.y3) if isinstance(surface, Plane) else surface.length
    names = []
    for name in run.averages:
        *coordinates, distance = surface.coordinates(run.state(name))
        if isinstance(surface, Line):
            coordinates = [coordinates[0] * size]
        if distance <= size and all(-size <= value <= 2 * size for value in coordinates):
            names.append(name)
    return names


def _mean_state(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    first = states[0]
    return {
        name: torch.stack([state[name].double() for state in states]).mean(0).to(tensor.dtype)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in first.items()
    }


def _bn_updater(run: SavedRun, images: Images) -> Callable[[nn.Module], object] | None:
    """Return a function that re-estimates batch-norm statistics on seen images; None if they were frozen.

    Weights between trained ones have no statistics of their own.
    """
    if run.config.freeze_bn:
        return None
    # As in training, a batch has the same number of images of every domain, one domain after another.
    domains = [domain_images for domain_images, _ in images.side("seen").values()]
    n_images = min(map(len, domains))
    share = min(n_images, max(1, BN_BATCH // len(domains)))
    starts = range(0, n_images - share + 1, share)
    batches = [torch.cat([rows[start : start + share] for rows in domains]) for start in starts]
    algorithm = get_algorithm(run.config.algorithm)
    return lambda point: algorithm.estimate_statistics(point, batches)


# --- several runs ---------------------------------------------------------------------------------------------------


def measure_surfaces(
    paths: Sequence[Path],
    corners: Sequence[str] = (),
    points: Sequence[str] | None = None,
    *,
    data: Path | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> tuple[list[Path], list[str]]:
    """Evaluate the plane through three weights of several runs, or the line through two; return runs and notes.

    `paths` are run directories or directories above them; the other arguments are those of `run_surface`.
    """
    require_matplotlib()
    runs, notes = open_runs(paths, data)
    for run in runs:  # report missing weights of any run before the first measurement
        chosen = [run.full_name(name) for name in corners or default_corners(run)]
        if outside := corners_outside(run, chosen):
            start, end = run.averaged_range or (0, 0)
            steps_outside = ", ".join(str(run.snapshots[name]) for name in outside)
            notes.append(
                f"{run.path}: the plane goes through weights outside the averaged range, steps {start} to {end} (step "
                f"{steps_outside}), and may show a slope instead of a valley"
            )
    for i, run in enumerate(runs):
        run_surface(run, corners, points, progress=run_progress(progress, run, i, len(runs)), **options)
    return [run.path for run in runs], notes


def report_surfaces(
    paths: Sequence[Path],
    shapes: Sequence[str] = ("plane", "line"),
    *,
    output: Path,
    stem: str = "surface",
    formats: Sequence[str] = FORMATS,
    notes: Sequence[str] = (),
) -> Report:
    """Draw the last surfaces that each run has stored, which needs neither weights nor images.

    Args:
        paths: Run directories.
        shapes: The shapes to draw, if they were measured: "plane", "line".
        output: Directory for the figures.
        stem: File name of a plane's figure.
        formats: Formats of the figures.
        notes: Notes of the measurement.
    """
    require_matplotlib()
    runs = [load_run(path) for path in paths]
    tables, written = [], []
    for shape in shapes:
        if surfaces := [surface for run in runs if (surface := read_surface(run, shape)) is not None]:
            figure, name = (line_figure(surfaces), "line") if shape == "line" else (surface_figure(surfaces), stem)
            written += save_figures(figure, output / name, formats)
            tables.append(points_table(surfaces))
    if not tables:
        raise RunError(f"no {SURFACE} has a complete measurement: run `swad surface` first")
    row_files = tuple(stored_path(path / SURFACE) for path in paths)
    return Report(tuple(tables), tuple(written), row_files, tuple(notes))
