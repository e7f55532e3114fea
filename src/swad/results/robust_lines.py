"""The empirical loss and the worst loss within a radius, along the line between two weights of a run: Figure 1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from swad.results.runs import RunData


@dataclass(frozen=True)
class RobustLine:
    """The line from one set of weights (x = 0) to another (x = 1), and beyond both.

    The worst losses are lower bounds of the true maxima, because they were searched for.
    """

    run: RunData
    ends: tuple[str, str]
    """Names of the weights at x = 0 and x = 1."""
    length: float
    """Their distance."""
    xs: tuple[float, ...]
    losses: tuple[float, ...]
    """The loss on the sources' training images."""
    worst: Mapping[float, tuple[float, ...]]
    """The worst loss within a radius, by radius."""

    @property
    def curves(self) -> dict[float, tuple[float, ...]]:
        """All curves by radius; radius 0 is the loss itself."""
        return {0.0: self.losses, **self.worst}

    def minimum(self, radius: float) -> tuple[float, float]:
        """Return the position and the value of the lowest point of a curve.

        >>> from pathlib import Path
        >>> run = RunData(Path(), {}, (), True)
        >>> line = RobustLine(run, ("last", "swad"), 2.0, (0.0, 1.0), (0.1, 0.2), {0.5: (2.0, 1.0)})
        >>> line.minimum(0.0), line.minimum(0.5)
        ((0.0, 0.1), (1.0, 1.0))
        """
        values = self.curves[radius]
        return min(zip(self.xs, values, strict=True), key=lambda point: point[1])
