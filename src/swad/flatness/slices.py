"""Loss surfaces: the plane through three weights, and the line between two.

The axes of the plane through theta_1, theta_2, theta_3 are u = theta_2 - theta_1 and v = (theta_3 - theta_1) minus
its projection on u, both scaled to length 1. (The paper's printed v subtracts a number from a vector and divides by a
vector, a misprint for this Gram-Schmidt step.) A point (x, y) stands for theta_1 + x u + y v, so distances on the
plane are distances in weight space. The three corners, and the two ends of a line, are evaluated with their own
weights, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from swad.flatness._slice import STEPS, Slice, dot, flat, length
from swad.flatness.weights import Source
from swad.tensors.names import Patterns

COLLINEAR = 1e-6
"""Weights are collinear if the third is closer to the line through the others than this share of their distance."""
MARGIN = 0.25


class Plane(Slice):
    """The plane through three weights, each a module or a state dict.

    Args:
        w1: The weights at (0, 0).
        w2: The weights at (x2, 0).
        w3: The weights at (x3, y3).
        include: Name patterns of the parameters that span the plane; by default all floating-point parameters. A
            state dict does not tell parameters from buffers: batch-norm statistics are recognized by name, other
            floating-point buffers must be excluded.
        exclude: Name patterns of parameters that do not.

    >>> import torch
    >>> w1, w2, w3 = ({"w": torch.tensor(w)} for w in ([0.0, 0.0], [2.0, 0.0], [1.0, 3.0]))
    >>> surface = plane(w1, w2, w3)
    >>> surface.corner_coordinates["3"], surface.coordinates({"w": torch.tensor([1.0, 1.0])})
    ((1.0, 3.0), (1.0, 1.0, 0.0))
    """

    def __init__(
        self, w1: Source, w2: Source, w3: Source, *, include: Patterns = None, exclude: Patterns = None
    ) -> None:
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
        self.axes = [self.u, self.v]
        self.corner_coordinates = {"1": (0.0, 0.0), "2": (self.x2, 0.0), "3": (self.x3, self.y3)}

    def coordinates(self, weights: Source) -> tuple[float, float, float]:
        """Project weights onto the plane and return x, y and their distance from the plane."""
        offset = self._offset(weights)
        x, y = dot(offset, self.u), dot(offset, self.v)
        return x, y, length(offset - x * self.u - y * self.v)

    locate = coordinates

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


class Line(Slice):
    """The line through two weights, w1 at 0 and w2 at 1; arguments are as for `plane`."""

    def __init__(self, w1: Source, w2: Source, *, include: Patterns = None, exclude: Patterns = None) -> None:
        super().__init__({"1": w1, "2": w2}, include, exclude)
        self.step = self._offset(self.corners["2"], "weights 2")
        self.length = length(self.step)
        """Distance between the two weights."""
        if not self.length:
            raise ValueError("a line needs two different weights, but both are the same: choose others")
        self.axes = [self.step]
        self.corner_coordinates = {"1": (0.0, 0.0), "2": (1.0, 0.0)}

    def coordinates(self, weights: Source) -> tuple[float, float]:
        """Project weights onto the line and return x (0: w1, 1: w2) and their distance from the line."""
        offset = self._offset(weights)
        x = dot(offset, self.step) / self.length**2
        return x, length(offset - x * self.step)

    def locate(self, weights: Source) -> tuple[float, float, float]:
        """Project weights onto the line and return x, 0 and their distance from it."""
        x, distance = self.coordinates(weights)
        return x, 0.0, distance

    def grid(
        self, steps: int | tuple[int, int] = STEPS, margin: float = 0.0, *, around: Iterable[tuple[float, float]] = ()
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return points from w1 (x = 0) to w2 (x = 1), and `margin` beyond both ends, whatever points are around."""
        if not isinstance(steps, int) or steps < 2 or margin < 0:
            raise ValueError(f"a line needs 2 steps or more and a margin of 0 or more, got {steps} and {margin}")
        return _linspace(-margin, 1 + margin, steps), (0.0,)


plane, line = Plane, Line


def _linspace(low: float, high: float, n: int) -> tuple[float, ...]:
    """Return `n` numbers from `low` to `high`, with both ends exact."""
    return tuple(low + (high - low) * i / (n - 1) if i < n - 1 else high for i in range(n))
