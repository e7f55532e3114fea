"""IRM: learn features on which one classifier is optimal for every domain at once.

Arjovsky, Bottou, Gulrajani and Lopez-Paz, "Invariant Risk Minimization", arXiv 1907.02893, 2019. Let a scalar w
multiply the class scores z. The value w = 1 must be stationary for the risk R_e of every domain e:

    mean over e of  R_e + λ (dR_e/dw)²,      dR_e/dw = mean over images of Σ_k (softmax(z)_k - y_k) z_k  at w = 1

As in the paper's code and in DomainBed, the square is estimated without bias as a product: the derivative on every
other image of the domain times the derivative on the rest. The product can be negative; that is intended. λ is 1 for
the first `anneal` updates. Two choices are DomainBed's: the loss is not divided by λ afterwards (the paper's code
divides), and Adam is reset when λ changes.

The derivative is computed in the closed form above, so the penalty needs no second derivative.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from swad.testbed.algorithms._annealed import Annealed, AnnealedHyperparameters, annealing_updates, penalty_weight
from swad.testbed.algorithms.base import Batch, Noise


@dataclass(frozen=True)
class IRMHyperparameters(AnnealedHyperparameters):
    """The annealed penalty with DomainBed's weight and names for IRM."""

    penalty: float = penalty_weight(100.0, domainbed="irm_lambda")
    anneal: int = annealing_updates(domainbed="irm_penalty_anneal_iters")


class IRM(Annealed):
    """Cross entropy plus a penalty on how much every domain would gain by rescaling the scores."""

    paper = "Arjovsky, Bottou, Gulrajani and Lopez-Paz: Invariant Risk Minimization. arXiv 1907.02893, 2019."
    groups_by_domain = True
    Hyperparameters = IRMHyperparameters
    min_per_domain = 2
    min_domains = 2

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """Mean cross entropy plus λ times the mean over domains of the product of two derivatives."""
        scores, labels = self.scores(batch, noise), self.labels(batch)
        slopes = self.by_domain(slope(scores, labels))
        penalty = (slopes[:, ::2].mean(1) * slopes[:, 1::2].mean(1)).mean()
        return functional.cross_entropy(scores, labels) + noise["weight"] * penalty


def slope(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the derivative of every image's cross entropy by a factor on its scores, at the factor 1."""
    return (scores.softmax(1) * scores).sum(1) - scores.gather(1, labels[:, None])[:, 0]


ALGORITHM = IRM
