"""Calibration error: how far the confidence of predictions is from their accuracy, on seen and unseen domains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from swad.testbed.measure.base import MeasuredRun, Measurement
from swad.testbed.results.measured import Quantity
from swad.testbed.results.measurement_rows import Row


@dataclass(frozen=True)
class Calibration(Measurement):
    """Measure the expected calibration error (ECE, Guo et al. 2017): mean |confidence - accuracy| over bins.

    Args:
        images: Images of every domain, stratified by class. None: all.
        bins: Bins of equal width.
    """

    name, title, compared = "calibration", "Calibration error, %", ("ECE",)
    note = "ECE: lower is better. Overconfidence: mean confidence minus accuracy."
    columns: ClassVar[Mapping[str, Any]] = {"sums": list[list[float]]}
    images: int | None = None
    bins: int = 15

    def measure(self, run: MeasuredRun, case: Row, weights: Sequence[str]) -> Iterator[list[Row]]:
        """Keep three sums for each bin, whatever the number of images: images, confidence, correct ones."""
        import torch

        rows = []
        for domain in run.domains:
            sums = {name: torch.zeros(3, self.bins, dtype=torch.float64, device=run.device) for name in weights}
            for images, labels in domain:
                for name in weights:
                    confidence, predicted = run.logits(name, images).softmax(1).double().max(1)
                    bins = (confidence * self.bins).long().clamp(max=self.bins - 1)
                    values = torch.stack([torch.ones_like(confidence), confidence, (predicted == labels).double()])
                    sums[name].index_add_(1, bins, values)
            rows += [run.row(name, domain, sums=sums[name].tolist()) for name in weights]
        yield rows

    @classmethod
    def numbers(cls, rows: Sequence[Row]) -> dict[Quantity, float]:
        """ECE, and by how much confidence exceeds accuracy."""
        ((n_images, confidence, correct),) = (row["sums"] for row in rows)
        gaps = [each - hits for each, hits in zip(confidence, correct, strict=True)]
        return {"ECE": sum(map(abs, gaps)) / sum(n_images), "Overconfidence": sum(gaps) / sum(n_images)}


MEASUREMENT = Calibration
