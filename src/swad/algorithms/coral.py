"""CORAL: features with the same mean and covariance in every domain.

Sun and Saenko, "Deep CORAL: Correlation Alignment for Deep Domain Adaptation", ECCV Workshops 2016, as DomainBed made
it a method for several sources. With the mean m_e and the covariance C_e (divided by n - 1) of domain e's features:

    cross entropy + γ · mean over pairs d < e of ( ‖m_d - m_e‖² + ‖C_d - C_e‖² )      ‖·‖²: mean over the entries

Sun and Saenko align the covariances alone, divided by 4 F² for F features; the means of the features, and the mean over
entries, are DomainBed's. The mean over pairs of a squared difference is twice the variance over the D domains (divided
by D - 1), and is computed so: no pair is ever written down. Features are what the head sees, after dropout, and their
statistics are in full precision. One image of a domain has no covariance: it takes two.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from swad.algorithms import hyperparameters as hp
from swad.algorithms.base import Algorithm, Noise
from swad.algorithms.hyperparameters import Power, hyper
from swad.data.loaders import Batch


@dataclass(frozen=True)
class CORALHyperparameters(hp.Hyperparameters):
    """How much the distance of the domains weighs."""

    gamma: float = hyper(1.0, Power(10, -1, 1), "weight of the distance between domains, γ")


class CORAL(Algorithm):
    """Cross entropy, and how far means and covariances of the domains' features lie apart."""

    paper = "Sun and Saenko: Deep CORAL: Correlation Alignment for Deep Domain Adaptation. ECCV Workshops, 2016."
    needs = ("domain labels",)
    Hyperparameters = CORALHyperparameters
    min_per_domain = 2
    min_domains = 2
    hyperparameters: CORALHyperparameters

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """Mean cross entropy, and the mean distance over pairs of domains."""
        features = self.head_inputs(batch, noise)
        distance = coral(self.by_domain(features))
        return functional.cross_entropy(self.head(features), self.labels(batch)) + self.hyperparameters.gamma * distance


def coral(features: Tensor) -> Tensor:
    """The mean over pairs of domains of the distances of means and covariances; `[domains, images, features]`."""
    with torch.autocast(features.device.type, enabled=False):
        features = features.float()
        means = features.mean(1, keepdim=True)
        centerd = features - means
        covariances = centerd.mT @ centerd / (features.shape[1] - 1)
        return 2 * (means.var(0).mean() + covariances.var(0).mean())


ALGORITHM = CORAL
