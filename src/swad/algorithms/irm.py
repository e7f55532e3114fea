"""IRM: features on which one classifier is the best for every domain at once.

Arjovsky, Bottou, Gulrajani and Lopez-Paz, "Invariant Risk Minimization", arXiv 1907.02893, 2019. Of a scalar
w that multiplies the class scores z, w = 1 must be stationary for the risk R_e of every domain e:

    mean over e of  R_e + λ (dR_e/dw)²,      dR_e/dw = mean over images of Σ_k (softmax(z)_k - y_k) z_k  at w = 1

As in the paper's code and DomainBed's, the square is estimated without bias, as the product of the derivatives on two
halves of the domain's images, every other image: it can be negative, and that is intended. λ is 1 for the first
`anneal` updates. From DomainBed: the sum is not divided by λ afterwards (the paper's code does it), and Adam
begins anew.

The derivative is taken in the closed form above, so that the penalty needs no second derivative.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from swad.algorithms._annealed import Annealed, AnnealedHyperparameters
from swad.algorithms.base import Noise
from swad.algorithms.hyperparameters import Power, hyper
from swad.data.loaders import Batch


@dataclass(frozen=True)
class IRMHyperparameters(AnnealedHyperparameters):
    """With DomainBed's weight for IRM."""

    penalty: float = hyper(100.0, Power(10, -1, 5), "weight of the penalty once annealed, λ; 1 before")


class IRM(Annealed):
    """Cross entropy, and how far a factor before the scores is from being right for every domain."""

    paper = "Arjovsky, Bottou, Gulrajani and Lopez-Paz: Invariant Risk Minimization. arXiv 1907.02893, 2019."
    needs = ("domain labels",)
    Hyperparameters = IRMHyperparameters
    min_per_domain = 2
    min_domains = 2

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """Mean cross entropy, and the mean over domains of the product of two derivatives."""
        scores, labels = self.scores(batch, noise), self.labels(batch)
        slopes = self.by_domain(slope(scores, labels))
        penalty = (slopes[:, ::2].mean(1) * slopes[:, 1::2].mean(1)).mean()
        return functional.cross_entropy(scores, labels) + noise["weight"] * penalty


def slope(scores: Tensor, labels: Tensor) -> Tensor:
    """The derivative of every image's cross entropy by a factor before its scores, where that is 1."""
    return (scores.softmax(1) * scores).sum(1) - scores.gather(1, labels[:, None])[:, 0]


ALGORITHM = IRM
