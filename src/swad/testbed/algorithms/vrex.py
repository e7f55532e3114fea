"""VREx: make the risk the same in every domain.

Krueger et al., "Out-of-Distribution Generalization via Risk Extrapolation (REx)", ICML 2021. With the risk R_e of every
domain e:

    mean over e of R_e  +  λ · variance over e of R_e       (population variance: divided by the number of domains)

As in DomainBed, λ is 1 for the first `anneal` updates: the small weight lets the network learn something first. When it
jumps, the moments of Adam belong to gradients of another size, so Adam is reset.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from swad.testbed.algorithms.base import Algorithm, Batch, Noise
from swad.testbed.algorithms.hyperparameters import Hyperparameters, Power, hyper


@dataclass(frozen=True)
class VRExHyperparameters(Hyperparameters):
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
    """A loss plus `noise["weight"]` times a penalty, for VREx and IRM; the subclass computes both."""

    hyperparameters: VRExHyperparameters

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


class VREx(Annealed):
    """The mean of the domains' cross entropies plus their variance."""

    paper = "Krueger et al.: Out-of-Distribution Generalization via Risk Extrapolation (REx). ICML, 2021."
    needs = ("domain labels",)
    Hyperparameters = VRExHyperparameters
    min_domains = 2

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """Mean of the domains' risks plus λ times their variance."""
        losses = functional.cross_entropy(self.scores(batch, noise), self.labels(batch), reduction="none")
        risks = self.by_domain(losses).mean(1)
        return risks.mean() + noise["weight"] * risks.var(correction=0)


ALGORITHM = VREx
