"""Loss surfaces: the plane through three weights, and the line between two.

The axes of the plane through theta_1, theta_2, theta_3 are u = theta_2 - theta_1 and v = (theta_3 - theta_1) minus
its projection on u, both scaled to length 1. (The paper's printed v subtracts a number from a vector and divides by a
vector, a misprint for this Gram-Schmidt step.) A point (x, y) stands for theta_1 + x u + y v, so distances on the
plane are distances in weight space. The three corners, and the two ends of a line, are evaluated with their own
weights, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

from swad.averaging.tensors import Patterns
from swad.flatness._json import Row
from swad.flatness._losses import LossFn
from swad.flatness._slice import Slice, Source, copy_state, dot, flat, length
from swad.flatness._surface_rows import Surface
from swad.flatness._walk import NamedPoints, OnRow, Walk
from swad.util.progress import Progress

COLLINEAR = 1e-6
"""Weights are collinear if the third is closer to the line through the others than this share of their distance."""
STEPS = 21
MARGIN = 0.25


class Plane(Slice):
    """The plane through three weights, w1 at (0, 0), w2 at (`x2`, 0), w3 at (`x3`, `y3`); see `plane`."""

    def __init__(self, w1: Source, w2: Source, w3: Source, include: Patterns, exclude: Patterns) -> None:
        super().__init__({"1": w1, "2": w2, "3": w3}, include, exclude)
        self.u = self._offset(self.corners["2"], "weights 2")
        self.x2 = length(self.u)
        if not self.x2:
            raise ValueError("a plane needs three different weights, but the first two are the same: choose others")
        self.u /= self.x2
        self.v = self._offset(self.corners["3"], "weights 3")
        distance = length(self.v)
        self.x3 = dot(self.v, self.u)
        self.v -= self.x3 * self.u
        # Orthogonalize a second time: the first pass leaves a rounding error in proportion to what it removed.
        correction = dot(self.v, self.u)
        self.v -= correction * self.u
        self.x3 += correction
        self.y3 = length(self.v)
        if self.y3 <= COLLINEAR * max(distance, self.x2):
            raise ValueError(
                f"a plane needs three weights that are not on one line: the third is {self.y3:.3g} from the line "
                f"through the first two, which are {self.x2:.3g} apart; choose another, or use line(w1, w2)"
            )
        self.v /= self.y3

    @property
    def corner_coordinates(self) -> dict[str, tuple[float, float]]:
        """The coordinates of the three weights."""
        return {"1": (0.0, 0.0), "2": (self.x2, 0.0), "3": (self.x3, self.y3)}

    @property
    def mean_coordinates(self) -> tuple[float, float]:
        """The coordinates of the mean of the three weights."""
        return (self.x2 + self.x3) / 3, self.y3 / 3

    def coordinates(self, weights: Source) -> tuple[float, float, float]:
        """Project weights onto the plane and return x, y and their distance from the plane."""
        offset = self._offset(weights)
        x, y = dot(offset, self.u), dot(offset, self.v)
        return x, y, length(offset - x * self.u - y * self.v)

    def weights(self, x: float, y: float) -> dict[str, Tensor]:
        """Return the parameters at a point, in the precision of the corners."""
        moved = self.split(flat(self.origin) + x * self.u + y * self.v)
        return {
            name: tensor.to(start.device, start.dtype)
            for name, start, tensor in zip(self.names, self.origin, moved, strict=True)
        }

    def grid(
        self,
        steps: int | tuple[int, int] = STEPS,
        margin: float = MARGIN,
        *,
        around: Iterable[tuple[float, float]] = (),
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the x and y values of a regular grid over the bounding box of the corners, widened on every side.

        Args:
            steps: Number of points along each side.
            margin: How far the grid extends beyond the box, as a share of the box's longer side.
            around: Further points that the box must contain.
        """
        points = [*self.corner_coordinates.values(), *around]
        sides = [(min(values), max(values)) for values in zip(*points, strict=True)]
        extra = margin * max(high - low for low, high in sides)
        counts = (steps, steps) if isinstance(steps, int) else steps
        if min(counts) < 2 or margin < 0:
            raise ValueError(f"a grid needs 2 steps or more and a margin of 0 or more, got {steps} and {margin}")
        xs, ys = (_linspace(low - extra, high + extra, n) for (low, high), n in zip(sides, counts, strict=True))
        return xs, ys

    def evaluate(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        steps: int | tuple[int, int] = STEPS,
        margin: float = MARGIN,
        *,
        points: Mapping[str, Source] | None = None,
        update_bn: Callable[[nn.Module], object] | None = None,
        on_row: OnRow | None = None,
        done_rows: Iterable[Row] = (),
        progress: Progress | None = None,
    ) -> Surface:
        """Evaluate a grid on the plane, the three corners (named "1", "2", "3"), and extra points.

        Args:
            model: A module of the network that the weights are loaded into; it is restored exactly. Buffers are those
                of the first corner.
            loss_fn: `loss_fn(model)` returns a scalar, per-image losses, or {domain: per-image losses}.
            steps: Number of grid points along each side.
            margin: How far the grid extends beyond the corners, as a share of the longer side.
            points: Extra weights by name, e.g. averages. They are evaluated with their own weights; their rows give
                the projection onto the plane and the distance from it.
            update_bn: Called at every point to re-estimate batch-norm statistics, which is needed unless they were
                frozen in training, e.g. `lambda model: swad.update_bn(loader, model)`.
            on_row: Called with every JSON row as soon as it is computed, e.g. to append it to a file.
            done_rows: Rows of an interrupted evaluation; their points are not evaluated again.
            progress: Called after every point.
        """
        extra = {name: copy_state(weights) for name, weights in (points or {}).items()}
        _require_free_names(extra, self.corners)
        coordinates = self.corner_coordinates
        named: NamedPoints = {name: (*coordinates[name], 0.0, self.corners[name]) for name in coordinates}
        named = {**named, **{name: (*self.coordinates(weights), weights) for name, weights in extra.items()}}
        xs, ys = self.grid(steps, margin, around=(named[name][:2] for name in extra))
        with torch.no_grad(), Walk(self, model, loss_fn, [self.u, self.v], update_bn) as walk:
            return walk.evaluate(xs, ys, named, on_row, done_rows, progress)


class Line(Slice):
    """The line through two weights, w1 at 0 and w2 at 1; see `line`."""

    def __init__(self, w1: Source, w2: Source, include: Patterns, exclude: Patterns) -> None:
        super().__init__({"1": w1, "2": w2}, include, exclude)
        self.step = self._offset(self.corners["2"], "weights 2")
        self.length = length(self.step)
        """Distance between the two weights."""
        if not self.length:
            raise ValueError("a line needs two different weights, but both are the same: choose others")

    def coordinates(self, weights: Source) -> tuple[float, float]:
        """Project weights onto the line and return x (0: w1, 1: w2) and their distance from the line."""
        offset = self._offset(weights)
        x = dot(offset, self.step) / self.length**2
        return x, length(offset - x * self.step)

    def evaluate(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        steps: int = STEPS,
        margin: float = 0.0,
        *,
        points: Mapping[str, Source] | None = None,
        update_bn: Callable[[nn.Module], object] | None = None,
        on_row: OnRow | None = None,
        done_rows: Iterable[Row] = (),
        progress: Progress | None = None,
    ) -> Surface:
        """Evaluate points from w1 (x = 0) to w2 (x = 1), and `margin` beyond both ends; otherwise as for a plane."""
        if steps < 2 or margin < 0:
            raise ValueError(f"a line needs 2 steps or more and a margin of 0 or more, got {steps} and {margin}")
        extra = {name: copy_state(weights) for name, weights in (points or {}).items()}
        _require_free_names(extra, self.corners)
        named: NamedPoints = {"1": (0.0, 0.0, 0.0, self.corners["1"]), "2": (1.0, 0.0, 0.0, self.corners["2"])}
        for name, weights in extra.items():
            x, distance = self.coordinates(weights)
            named = {**named, name: (x, 0.0, distance, weights)}
        with torch.no_grad(), Walk(self, model, loss_fn, [self.step], update_bn) as walk:
            return walk.evaluate(_linspace(-margin, 1 + margin, steps), (0.0,), named, on_row, done_rows, progress)


def plane(w1: Source, w2: Source, w3: Source, *, include: Patterns = None, exclude: Patterns = None) -> Plane:
    """Return the plane through three weights, each a module or a state dict.

    Args:
        w1: The weights at (0, 0).
        w2: The weights at (x2, 0).
        w3: The weights at (x3, y3).
        include: Name patterns of the parameters that span the plane; by default all floating-point parameters. A
            state dict does not tell parameters from buffers: batch-norm statistics are recognized by name, other
            floating-point buffers must be excluded.
        exclude: Name patterns of parameters that do not.

    >>> w1, w2, w3 = ({"w": torch.tensor(w)} for w in ([0.0, 0.0], [2.0, 0.0], [1.0, 3.0]))
    >>> surface = plane(w1, w2, w3)
    >>> surface.corner_coordinates["3"], surface.coordinates({"w": torch.tensor([1.0, 1.0])})
    ((1.0, 3.0), (1.0, 1.0, 0.0))
    """
    return Plane(w1, w2, w3, include, exclude)


def line(w1: Source, w2: Source, *, include: Patterns = None, exclude: Patterns = None) -> Line:
    """Return the line through two weights, each a module or a state dict; arguments are as for `plane`."""
    return Line(w1, w2, include, exclude)


def _require_free_names(extra: Mapping[str, Source], corners: Mapping[str, Source]) -> None:
    taken = [name for name in extra if name in corners]
    if taken:
        raise ValueError(f"the names {', '.join(corners)} belong to the corners: rename the point {taken[0]!r}")


def _linspace(low: float, high: float, n: int) -> tuple[float, ...]:
    """Return `n` numbers from `low` to `high`, with both ends exact."""
    return tuple(low + (high - low) * i / (n - 1) if i < n - 1 else high for i in range(n))
