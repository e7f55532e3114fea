"""A penalty whose weight is 1 at first and takes its value after some updates, shared by IRM and VREx.

The small weight lets the network learn something first. When the weight jumps, the moments of Adam belong to gradients
of another size, so Adam is reset.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from swad.algorithms.base import Algorithm
from swad.algorithms.hyperparameters import Hyperparameters, Power, hyper


@dataclass(frozen=True)
class AnnealedHyperparameters(Hyperparameters):
    """The common hyperparameters, the weight of the penalty, and when it applies."""

    penalty: float = hyper(
        10.0, Power(10, -1, 5), "weight of the penalty after annealing, λ; 1 before", domainbed="vrex_lambda"
    )
    anneal: int = hyper(
        500,
        Power(10, 0, 4, integer=True),
        "updates before the penalty takes its weight",
        domainbed="vrex_penalty_anneal_iters",
    )


class Annealed(Algorithm):
    """A loss plus `noise["weight"]` times a penalty; the subclass computes both."""

    hyperparameters: AnnealedHyperparameters

    def draw_randomness(self, generator: torch.Generator, step: int) -> dict[str, Tensor]:
        """Add the weight of the penalty at this step."""
        weight = self.hyperparameters.penalty if self.phase(step) == "full" else 1.0
        return {**super().draw_randomness(generator, step), "weight": torch.full((), weight, device=generator.device)}

    def phase(self, step: int) -> str:
        """Return "light" while the weight is 1, and "full" afterwards."""
        return "full" if step > self.hyperparameters.anneal else "light"

    def on_phase_start(self, phase: str) -> None:
        """Reset Adam."""
        self.reset_optimizers()
