"""The worst loss within a radius at every point of the line between two weights of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from swad.flatness import image_losses, line, worst_case
from swad.flatness.ascent import ASCENT
from swad.testbed.measure.base import Job, MeasuredRun, Measurement, SourceSplit
from swad.testbed.measure.saved_run import SavedRun
from swad.testbed.results.figures.robust_lines import RobustLine
from swad.testbed.results.measurement_rows import Row
from swad.testbed.results.runs import load_run

MARGIN = 0.5
"""How far the line extends beyond both ends, as a share of their distance."""
STEPS = 8
"""Ascent steps for each radius. The search continues from the worst point of the next smaller radius."""


@dataclass(frozen=True)
class WorstOnLine(Measurement):
    """Search for the worst loss within some radii at points of a line, on training images of the sources.

    Args:
        images: Images of every domain, stratified by class. None: all.
        ends: Names of the weights at x = 0 and x = 1.
        shares: Radii as shares of the distance between both, in ascending order.
        points: Number of points on the line, besides both ends.
    """

    name, title, file, kind = "robust-line", "Worst loss on a line", "robust-line.jsonl", "point"
    of_device, of_saved = True, False
    source_split: ClassVar[SourceSplit] = "training"
    ends: tuple[str, str] = ("last", "swad")
    shares: tuple[float, ...] = (0.02, 0.05, 0.1)
    points: int = 21

    @property
    def passes(self) -> int:
        """A gradient, which costs about three passes, for every step."""
        return 3 * STEPS * len(self.shares)

    def settings(self) -> dict[str, Any]:
        """Also those of the search."""
        return {**super().settings(), "margin": MARGIN, "steps": STEPS, "ascent": ASCENT}

    def weights(self, run: SavedRun, names: Sequence[str]) -> dict[str, str]:
        """Return the line, with the marks of its ends."""
        return {"line": "-".join(map(run.fingerprint, self.ends))}

    def cases(self) -> Sequence[Row]:
        """The points; both ends are always among them."""
        xs = torch.linspace(-MARGIN, 1 + MARGIN, self.points, dtype=torch.float64).tolist()
        return [{"x": x} for x in sorted({0.0, 1.0, *xs})]

    def measure(self, run: MeasuredRun, case: Row, weights: Sequence[str]) -> Iterator[list[Row]]:
        """Search around one point."""
        first, second = (run.run.state(name) for name in self.ends)
        length, model = line(first, second).length, run.model(self.ends[0])
        model.load_state_dict(_between(first, second, case["x"]))
        loss_fn = image_losses(run.images.side("seen"), batch_size=run.run.batch_size(run.device))
        rows = worst_case(model, loss_fn, [share * length for share in self.shares], STEPS, restarts=0).rows
        worst = [row.lower_bound for row in rows]
        yield [{"weights": "line", "length": length, "loss": rows[0].loss, "worst": worst}]


def measured_line(job: Job) -> RobustLine:
    """Return the line of a run that was measured."""
    assert isinstance(job.what, WorstOnLine)
    rows = sorted(job.rows(), key=lambda row: float(row["x"]))
    length, columns = rows[0]["length"], zip(*(row["worst"] for row in rows), strict=True)
    return RobustLine(
        load_run(job.run.path),
        job.what.ends,
        length,
        tuple(row["x"] for row in rows),
        tuple(row["loss"] for row in rows),
        {share * length: column for share, column in zip(job.what.shares, columns, strict=True)},
    )


def _between(first: Mapping[str, Tensor], second: Mapping[str, Tensor], x: float) -> dict[str, Tensor]:
    """Return the weights at a position on the line; whole numbers, such as counters, are those of the second."""
    return {
        name: torch.lerp(first[name], tensor, x) if tensor.is_floating_point() else tensor
        for name, tensor in second.items()
    }
