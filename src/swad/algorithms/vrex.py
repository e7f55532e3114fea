"""VREx: make the risk the same in every domain.

Krueger et al., "Out-of-Distribution Generalization via Risk Extrapolation (REx)", ICML 2021. With the risk R_e of every
domain e:

    mean over e of R_e  +  λ · variance over e of R_e       (population variance: divided by the number of domains)

As in DomainBed, λ is 1 for the first `anneal` updates, and Adam is reset when λ takes its value.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from swad.algorithms._annealed import Annealed, AnnealedHyperparameters
from swad.algorithms.base import Batch, Noise


class VREx(Annealed):
    """The mean of the domains' cross entropies plus their variance."""

    paper = "Krueger et al.: Out-of-Distribution Generalization via Risk Extrapolation (REx). ICML, 2021."
    needs = ("domain labels",)
    Hyperparameters = AnnealedHyperparameters
    min_domains = 2

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """Mean of the domains' risks plus λ times their variance."""
        losses = functional.cross_entropy(self.scores(batch, noise), self.labels(batch), reduction="none")
        risks = self.by_domain(losses).mean(1)
        return risks.mean() + noise["weight"] * risks.var(correction=0)


ALGORITHM = VREx
