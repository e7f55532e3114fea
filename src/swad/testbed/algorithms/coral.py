"""CORAL: give the features the same mean and covariance in every domain.

Sun and Saenko, "Deep CORAL: Correlation Alignment for Deep Domain Adaptation", ECCV Workshops 2016, in DomainBed's form
for several source domains. With the mean m_e and the covariance C_e (divided by n - 1) of the features of domain e:

    cross entropy + γ · mean over pairs d < e of ( ‖m_d - m_e‖² + ‖C_d - C_e‖² )      ‖·‖²: mean over the entries

Sun and Saenko align only the covariances, divided by 4 F² for F features. Aligning the means too, and taking the mean
over entries, are DomainBed's choices. The features are those that the head receives, after dropout.

The mean over pairs of a squared difference is twice the variance over the D domains (divided by D - 1). The code
computes that variance, so it never forms a pair. Statistics are in full precision. A covariance takes two images.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from swad.testbed.algorithms.base import Algorithm, Batch, Noise
from swad.testbed.algorithms.hyperparameters import Hyperparameters, Power, hyper


@dataclass(frozen=True)
class CORALHyperparameters(Hyperparameters):
    """The common hyperparameters and the weight of the distance."""

    gamma: float = hyper(1.0, Power(10, -1, 1), "weight of the distance between domains, γ", domainbed="mmd_gamma")


class CORAL(Algorithm):
    """Cross entropy plus the distance between the domains' feature means and covariances."""

    paper = "Sun and Saenko: Deep CORAL: Correlation Alignment for Deep Domain Adaptation. ECCV Workshops, 2016."
    groups_by_domain = True
    Hyperparameters = CORALHyperparameters
    min_per_domain = 2
    min_domains = 2
    hyperparameters: CORALHyperparameters

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """Mean cross entropy plus γ times the mean distance over pairs of domains."""
        features = self.head_inputs(batch, noise)
        distance = self.distance(self.by_domain(features))
        return functional.cross_entropy(self.head(features), self.labels(batch)) + self.hyperparameters.gamma * distance

    def distance(self, features: Tensor) -> Tensor:
        """Return the mean distance over pairs of domains, for features `[domains, images, features]`."""
        return coral(features)


def coral(features: Tensor) -> Tensor:
    """Return the mean distance over pairs of domains, for features of shape `[domains, images, features]`."""
    with torch.autocast(features.device.type, enabled=False):
        features = features.float()
        means = features.mean(1, keepdim=True)
        centered = features - means
        covariances = centered.mT @ centered / (features.shape[1] - 1)
        return 2 * (means.var(0).mean() + covariances.var(0).mean())


ALGORITHM = CORAL
