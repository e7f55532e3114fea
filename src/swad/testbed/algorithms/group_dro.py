"""GroupDRO: minimize the risk of the worst domain, with domain weights that grow where the loss is large.

Sagawa, Koh, Hashimoto and Liang, "Distributionally Robust Neural Networks", ICLR 2020, Algorithm 1. In every step, with
the risk R_e of every domain e:

    q_e <- q_e exp(η R_e) / Σ_d q_d exp(η R_d),      loss = Σ_e q_e R_e

The weights q start equal and sum to 1, so the loss has the scale of ERM's. DomainBed divides it once more by the number
of domains, which shrinks the gradient relative to weight decay and so changes the result. The buffer of the weights has
its final shape from the start, so that checkpoints load strictly.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from swad.testbed.algorithms import hyperparameters as hp
from swad.testbed.algorithms.base import Algorithm, Batch, Noise, RunInfo
from swad.testbed.algorithms.hyperparameters import Hyperparameters, Power, hyper


@dataclass(frozen=True)
class GroupDROHyperparameters(Hyperparameters):
    """The common hyperparameters and the step size of the domain weights."""

    eta: float = hyper(0.01, Power(10, -3, -1), "step size of the domain weights, η", domainbed="groupdro_eta")


class GroupDRO(Algorithm):
    """The domains' cross entropies, weighted by how large they have been so far."""

    paper = "Sagawa, Koh, Hashimoto and Liang: Distributionally Robust Neural Networks. ICLR, 2020."
    groups_by_domain = True
    Hyperparameters = GroupDROHyperparameters
    min_domains = 2
    hyperparameters: GroupDROHyperparameters
    q: Tensor

    def __init__(self, predictor: nn.Module, hyperparameters: hp.Hyperparameters, run_info: RunInfo) -> None:
        super().__init__(predictor, hyperparameters, run_info)
        self.register_buffer("q", torch.full((self.n_domains,), 1 / self.n_domains))

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """The domains' risks, weighted by the updated weights."""
        losses = functional.cross_entropy(self.scores(batch, noise), self.labels(batch), reduction="none")
        risks = self.by_domain(losses).mean(1)
        # As a softmax, which does not overflow for large losses.
        q = (self.q.log() + self.hyperparameters.eta * risks.detach()).softmax(0)
        self.pending_buffers["q"] = q
        return (q * risks).sum()  # not a dot product, which autocast would round


ALGORITHM = GroupDRO
