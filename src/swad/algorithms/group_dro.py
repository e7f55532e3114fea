"""GroupDRO: the risk of the worst domain, followed by weights that grow where the loss is large.

Sagawa, Koh, Hashimoto and Liang, "Distributionally Robust Neural Networks", ICLR 2020, Algorithm 1. Every
step, with the risk R_e of every domain e:

    q_e <- q_e exp(η R_e) / Σ_d q_d exp(η R_d),      loss = Σ_e q_e R_e

The weights begin equal, and sum to 1, so the loss is one of risks as ERM's is: DomainBed divides it by the number of
domains once more, which shrinks the gradient and, beside weight decay, changes the result. They are there from the
start with their final shape, so that a checkpoint loads strictly.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from swad.algorithms import hyperparameters as hp
from swad.algorithms.base import Algorithm, Noise
from swad.algorithms.hyperparameters import Power, hyper
from swad.data.loaders import Batch


@dataclass(frozen=True)
class GroupDROHyperparameters(hp.Hyperparameters):
    """How fast the weights follow."""

    eta: float = hyper(0.01, Power(10, -3, -1), "step of the domains' weights, η")


class GroupDRO(Algorithm):
    """The domains' cross entropies, weighted by how badly they have done so far."""

    paper = "Sagawa, Koh, Hashimoto and Liang: Distributionally Robust Neural Networks. ICLR, 2020."
    needs = ("domain labels",)
    Hyperparameters = GroupDROHyperparameters
    min_domains = 2
    hyperparameters: GroupDROHyperparameters
    q: Tensor

    def __init__(self, predictor: nn.Module, hyperparameters: hp.Hyperparameters, n_domains: int) -> None:
        super().__init__(predictor, hyperparameters, n_domains)
        self.register_buffer("q", torch.full((n_domains,), 1 / n_domains))

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """The risks, weighted by this step's weights."""
        losses = functional.cross_entropy(self.scores(batch, noise), self.labels(batch), reduction="none")
        risks = self.by_domain(losses).mean(1)
        # As a softmax, which no large loss overflows.
        q = (self.q.log() + self.hyperparameters.eta * risks.detach()).softmax(0)
        self.pending_buffers["q"] = q
        return (q * risks).sum()  # not as a product of vectors, which autocast would round


ALGORITHM = GroupDRO
