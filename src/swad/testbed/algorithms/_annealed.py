"""A penalty that takes its weight after some updates, for VREx and IRM.

As in DomainBed, λ is 1 for the first `anneal` updates: the small weight lets the network learn something first. When it
jumps, the moments of Adam belong to gradients of another size, so Adam is reset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from swad.testbed.algorithms.base import Algorithm
from swad.testbed.algorithms.hyperparameters import Hyperparameters, Power, hyper


def penalty_weight(default: float, domainbed: str = "") -> Any:
    """Declare the weight of the penalty, with its name in DomainBed."""
    return hyper(default, Power(10, -1, 5), "weight of the penalty after annealing, λ; 1 before", domainbed=domainbed)


def annealing_updates(domainbed: str = "") -> Any:
    """Declare the number of updates with the weight 1, with its name in DomainBed."""
    search = Power(10, 0, 4, integer=True)
    return hyper(500, search, "updates before the penalty takes its weight", domainbed=domainbed)


@dataclass(frozen=True)
class AnnealedHyperparameters(Hyperparameters):
    """The common hyperparameters, the weight of the penalty, and when it applies."""

    penalty: float = penalty_weight(1.0)
    anneal: int = annealing_updates()


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
