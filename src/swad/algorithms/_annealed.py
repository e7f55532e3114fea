"""A penalty that takes its weight late: 1 at first, so that the network learns something, then its own.

Where the weight jumps, Adam's moments belong to gradients of another size: they are forgotten, in place.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from swad.algorithms import hyperparameters as hp
from swad.algorithms.base import Algorithm
from swad.algorithms.hyperparameters import Power, hyper


@dataclass(frozen=True)
class AnnealedHyperparameters(hp.Hyperparameters):
    """The penalty's weight, and when it takes it."""

    penalty: float = hyper(10.0, Power(10, -1, 5), "weight of the penalty once annealed, λ; 1 before")
    anneal: int = hyper(500, Power(10, 0, 4, whole=True), "updates before the penalty takes its weight")


class Annealed(Algorithm):
    """Loss + noise["weight"] × a penalty, which the subclass computes."""

    hyperparameters: AnnealedHyperparameters

    def draw_randomness(self, generator: torch.Generator, step: int) -> dict[str, Tensor]:
        """The penalty's weight at this step comes along."""
        weight = self.hyperparameters.penalty if self.phase(step) == "full" else 1.0
        return {**super().draw_randomness(generator, step), "weight": torch.full((), weight, device=generator.device)}

    def phase(self, step: int) -> str:
        """Which weight the penalty has."""
        return "full" if step > self.hyperparameters.anneal else "light"

    def on_phase_start(self, phase: str) -> None:
        """Begin Adam anew: step count and moments are 0, in the tensors they were in."""
        for optimizer in self.optimizers.values():
            for state in optimizer.state.values():
                for value in state.values():
                    value.zero_()
