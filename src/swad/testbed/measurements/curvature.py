"""Curvature: the largest eigenvalues and the trace of the loss's Hessian, of the mean over the domains of a side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from swad.testbed.measure.base import MeasuredRun, Measurement, SourceSplit
from swad.testbed.measurements.flatness import changed_settings
from swad.testbed.results.measured import SIDES, Quantity
from swad.testbed.results.measurement_rows import FLATNESS, Row

if TYPE_CHECKING:
    import torch

    from swad.testbed.measure.saved_run import SavedRun


@dataclass(frozen=True)
class Curvature(Measurement):
    """Compute the largest eigenvalues and the trace of the Hessian at saved weights, on seen and unseen domains.

    Args:
        images: Images of every domain, stratified by class. None: all. A stable eigenvalue needs thousands.
        eigenvalues: Number of eigenvalues.
        trace_vectors: Random vectors that the trace is estimated with.
        include: Of these parameters alone: name patterns, e.g. 'head.*,*.bias'.
        exclude: Without these parameters: name patterns.
        source_split: Images of the source domains: training, validation or all.
    """

    name, title = "curvature", "Curvature"
    file, kind, scale, decimals = FLATNESS, "curvature", 1.0, 2
    columns: ClassVar[Mapping[str, Any]] = {"eigenvalues": list[float], "trace": float}
    of_device = True
    note = "The largest eigenvalues λ of the Hessian, and its trace."
    eigenvalues: int = 3
    trace_vectors: int = 32
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    source_split: SourceSplit = "training"

    @property
    def passes(self) -> int:
        """A Hessian-vector product, which costs about four passes, for every vector and some for every eigenvalue."""
        return 4 * (self.trace_vectors + 10 * self.eigenvalues)

    def on(self, run: SavedRun, device: torch.device) -> Self:
        """Ask for the package before anything is measured."""
        from swad.flatness import require_curvlinops

        require_curvlinops()
        return self

    def settings(self) -> dict[str, Any]:
        """The settings under the names of stored rows."""
        return {"curvature": self.eigenvalues, "trace_vectors": self.trace_vectors, **changed_settings(self)}

    def measure(self, run: MeasuredRun, case: Row, weights: Sequence[str]) -> Iterator[list[Row]]:
        """Compute one set of weights after the other, each on both sides."""
        from swad.flatness import curvature, image_losses

        sides = [side for side in SIDES if run.images.side(side)]
        for number, name in enumerate(weights):
            rows = []
            for i, side in enumerate(sides):
                result = curvature(
                    run.model(name),
                    image_losses(run.images.side(side), batch_size=run.run.batch_size(run.device)),
                    self.eigenvalues,
                    trace_vectors=self.trace_vectors,
                    domains=[None],
                    include=self.include,
                    exclude=self.exclude,
                    progress=run.part(len(sides) * number + i, len(sides) * len(weights)),
                )
                rows.append({**result.row().as_dict(), "weights": name, "domain": side, "side": side})
            yield rows

    @classmethod
    def numbers(cls, rows: Sequence[Row]) -> dict[Quantity, float]:
        """Eigenvalues from the largest, and the trace."""
        (row,) = rows
        found: dict[Quantity, float] = {f"λ{i}": value for i, value in enumerate(row["eigenvalues"], start=1)}
        return found | {"Trace": row["trace"]}


MEASUREMENT = Curvature
