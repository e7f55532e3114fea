"""VREx: make the risk the same in every domain.

Krueger et al., "Out-of-Distribution Generalization via Risk Extrapolation (REx)", ICML 2021. With the risk R_e of every
domain e:

    mean over e of R_e  +  λ · variance over e of R_e       (population variance: divided by the number of domains)

As in DomainBed, λ is 1 for the first `anneal` updates: the small weight lets the network learn something first. When it
jumps, the moments of Adam belong to gradients of another size, so Adam is reset.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from swad.testbed.algorithms._annealed import Annealed, AnnealedHyperparameters, annealing_updates, penalty_weight
from swad.testbed.algorithms.base import Batch, Noise


@dataclass(frozen=True)
class VRExHyperparameters(AnnealedHyperparameters):
    """The annealed penalty with DomainBed's weight and names for VREx."""

    penalty: float = penalty_weight(10.0, domainbed="vrex_lambda")
    anneal: int = annealing_updates(domainbed="vrex_penalty_anneal_iters")


class VREx(Annealed):
    """The mean of the domains' cross entropies plus their variance."""

    paper = "Krueger et al.: Out-of-Distribution Generalization via Risk Extrapolation (REx). ICML, 2021."
    groups_by_domain = True
    Hyperparameters = VRExHyperparameters
    min_domains = 2

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """Mean of the domains' risks plus λ times their variance."""
        losses = functional.cross_entropy(self.scores(batch, noise), self.labels(batch), reduction="none")
        risks = self.by_domain(losses).mean(1)
        return risks.mean() + noise["weight"] * risks.var(correction=0)


ALGORITHM = VREx
