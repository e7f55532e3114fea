"""A penalty that takes its weight after some updates, for VREx and IRM.

As in DomainBed, λ is 1 for the first `anneal` updates: the small weight lets the network learn something first. When it
jumps, the moments of Adam belong to gradients of another size, so Adam is reset.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from swad.testbed.algorithms.base import Algorithm


class Annealed(Algorithm):
    """A loss plus `noise["weight"]` times a penalty; the subclass computes both, and has `penalty` and `anneal`."""

    hyperparameters: Any

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
