"""Loss surfaces: the loss on the plane through three of a run's saved weights, or on the line through two."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from swad.testbed.measure.base import MeasuredRun, Measurement, SourceSplit
from swad.testbed.results.measurement_rows import SURFACE, Row
from swad.testbed.results.run_data import RunData
from swad.testbed.results.surface_report import SurfaceReport, report_surfaces
from swad.testbed.results.surfaces import MEAN
from swad.util.names import snapshot_name
from swad.util.options import Bounds

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from swad.flatness import Line, Plane
    from swad.testbed.measure.saved_run import Images, SavedRun

PAPER_CORNERS = (50, 70, 90)
"""Percent of training at which the paper's Figure 4 takes its weights: after steps 2500, 3500 and 4500 of 5000."""
BN_BATCH = 64
"""Images in a batch on which batch norms are re-estimated."""


@dataclass(frozen=True)
class Surface(Measurement):
    """Evaluate the loss on the plane through three saved weights, on seen and unseen domains (the paper's Figure 4).

    Two weights span a line. Every point of the grid is stored as soon as it is there.

    Args:
        images: Images of every domain, stratified by class. None: all.
        corners: Three weights for a plane, e.g. 2500,3500,4500 or best,swa,swad; two for a line, e.g. best,swad.
            Default: three snapshots inside the range that SWAD averaged.
        points: Further weights to project onto the plane or line. Default: averages near it.
        steps: Number of grid points per side.
        margin: How far the grid extends beyond the corners, as a share of the longer side.
    """

    name, title, file, kind = "surface", "Loss", SURFACE, "surface-whole"
    of_device, of_saved, of_means = True, False, False
    source_split: ClassVar[SourceSplit] = "training"
    bounds: ClassVar[Mapping[str, Bounds]] = {"steps": Bounds(2, 1000), "margin": Bounds(minimum=0)}
    corners: tuple[str, ...] = ()
    points: tuple[str, ...] | None = None
    steps: int = 21
    margin: float = 0.4

    def problems(self) -> list[str]:
        """Check the number of corners, too."""
        found, n_corners = super().problems(), len(self.corners)
        if n_corners not in (0, 2, 3) or len(set(self.corners)) < n_corners:
            given = ",".join(self.corners)
            found.append(f"corners must be three different weights for a plane, or two for a line, got {given}")
        return found

    @property
    def shape(self) -> str:
        """A plane, or a line."""
        return "line" if len(self.corners) == 2 else "plane"

    @property
    def passes(self) -> int:
        """The grid, the corners, their mean, and further points."""
        n_corners = len(self.corners) or 3
        n_grid = self.steps if n_corners == 2 else self.steps**2
        return n_grid + n_corners + 1 + len(self.points or ())

    def lacking(self, run: SavedRun) -> str:
        """Without corners a plane needs snapshots."""
        if self.corners or len(run.snapshots) >= 3:
            return ""
        steps = ",".join(str((run.config.steps or 5000) * percent // 100) for percent in PAPER_CORNERS)
        return (
            f"it saved {len(run.snapshots) or 'no'} snapshots, but a plane needs three weights: train with "
            f"--snapshots {steps}, or name three with --corners ({', '.join(run.reported)})"
        )

    def on(self, run: SavedRun, device: torch.device) -> Self:
        """Fill in the corners, and the averages that are near."""
        corners = tuple(map(run.full_name, self.corners)) or default_corners(run)
        near = averages_near(run, span(run, corners)) if self.points is None else map(run.full_name, self.points)
        return replace(self, corners=corners, points=tuple(name for name in near if name not in corners))

    def settings(self) -> dict[str, Any]:
        """Every field, and the shape: the last plane and the last line are shown."""
        return {"shape": self.shape, **super().settings()}

    def weights(self, run: SavedRun, names: Sequence[str]) -> dict[str, str]:
        """Return the shape, with a mark of all weights on it."""
        marks = "".join(map(run.fingerprint, (*self.corners, *(self.points or ()))))
        return {self.shape: hashlib.blake2b(marks.encode(), digest_size=8).hexdigest()}

    def measure(self, run: MeasuredRun, case: Row, weights: Sequence[str]) -> Iterator[list[Row]]:
        """Evaluate the grid and all weights on it; a point is stored as soon as it is measured."""
        from swad.flatness import captured, image_losses

        saved, model = run.run, run.model(self.corners[0])
        loss_fn = image_losses(run.images.by_domain, batch_size=saved.batch_size(run.device), measure="both")
        span(saved, self.corners).evaluate(
            model,
            captured(loss_fn, model),
            self.steps,
            self.margin,
            points={
                MEAN: _mean_state([saved.model(name).state_dict() for name in self.corners]),
                **{name: saved.state(name) for name in self.points or ()},
            },
            update_bn=bn_updater(saved, run.images),
            on_row=lambda row: run.keep({"weights": self.shape, **row}),
            done_rows=run.kept(self.shape),
            progress=run.progress,
        )
        yield [{"weights": self.shape}]

    @classmethod
    def report(
        cls, runs: Sequence[RunData], weights: Collection[str] = (), by_target: str | None = None, log: bool = False
    ) -> SurfaceReport | None:
        """Draw the last plane and the last line of every run, or one of these shapes."""
        return report_surfaces(runs, weights)


def span(run: SavedRun, corners: Sequence[str]) -> Plane | Line:
    """Return the plane through three weights of a run, or the line through two."""
    from swad.flatness import line, plane

    models = [run.model(name) for name in corners]  # not state dicts, which name tied weights twice
    return plane(*models) if len(models) == 3 else line(*models)


def default_corners(run: SavedRun) -> tuple[str, str, str]:
    """Return three of the run's snapshots, inside the range that SWAD averaged where it has three.

    The paper's, at 50, 70 and 90 % of training, are taken if they are inside; otherwise the first, the middle and the
    last one inside. Weights after t_e have left the valley, so a plane through them shows its slope. If fewer than
    three are inside, those nearest to the range are taken. Without SWAD all snapshots count as inside.
    """
    snapshots, total = run.snapshots, run.config.steps
    inside = [name for name in snapshots if not _steps_outside(run, name)]
    paper = [snapshot_name(total * percent // 100) for percent in PAPER_CORNERS] if total else []
    if paper and all(name in inside for name in paper):
        inside = paper
    elif len(inside) < 3:
        inside = sorted(sorted(snapshots, key=lambda name: _steps_outside(run, name))[:3])
    return inside[0], inside[(len(inside) - 1) // 2], inside[-1]


def _steps_outside(run: SavedRun, snapshot: str) -> int:
    """Return how many steps a snapshot is before or after the range that SWAD averaged."""
    start, end = run.averaged_range or (0, sys.maxsize)
    step = run.snapshots[snapshot]
    return max(start - step, step - end, 0)


def averages_near(run: SavedRun, surface: Plane | Line) -> list[str]:
    """Return the run's averages that are close to the corners and to the plane or line.

    The surface says nothing about weights that are further from it than the corners are from each other.
    """
    from swad.flatness import Plane

    if isinstance(surface, Plane):
        size, unit = max(surface.x2, abs(surface.x3), surface.y3), 1.0
    else:
        size = unit = surface.length  # its coordinates are shares of its length
    names = []
    for name in run.averages:
        *coordinates, distance = surface.coordinates(run.state(name))
        if distance <= size and all(-size <= unit * value <= 2 * size for value in coordinates):
            names.append(name)
    return names


def _mean_state(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    import torch

    return {
        name: torch.stack([state[name].double() for state in states]).mean(0).to(tensor.dtype)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in states[0].items()
    }


def bn_updater(run: SavedRun, images: Images) -> Callable[[nn.Module], object] | None:
    """Return a function that re-estimates batch-norm statistics on seen images; None if they were frozen.

    Weights between trained ones have no statistics of their own.
    """
    import torch

    from swad.testbed.algorithms.registry import get_algorithm

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


MEASUREMENT = Surface
