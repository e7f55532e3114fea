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

from swad.testbed.algorithms._annealed import Annealed
from swad.testbed.algorithms.base import Batch, Noise
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
