"""MMD: features with the same distribution in every domain, as a kernel sees it.

Li, Pan, Wang and Kot, "Domain Generalization with Adversarial Feature Learning", CVPR 2018, as DomainBed reduced it to
its distance. With the mean kernel K_de between the images of domains d and e:

    cross entropy + γ · mean over pairs d < e of ( K_dd + K_ee - 2 K_de )
    k(x, y) = Σ exp(-g |x - y|²)  over  g = 10⁻³, 10⁻², ..., 10³

It is the biased estimate (an image's kernel with itself counts), which is the published one and never negative. All
kernels come from one matrix of distances, taken from inner products in double precision: in single precision, the
distance of two equal rows is no longer 0 where g is 1000. Features are what the head sees, after dropout.
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

SCALES = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)


@dataclass(frozen=True)
class MMDHyperparameters(hp.Hyperparameters):
    """How much the distance of the domains weighs."""

    gamma: float = hyper(1.0, Power(10, -1, 1), "weight of the distance between domains, γ")


class MMD(Algorithm):
    """Cross entropy, and how far the distributions of the domains' features lie apart."""

    paper = "Li, Pan, Wang and Kot: Domain Generalization with Adversarial Feature Learning. CVPR, 2018."
    needs = ("domain labels",)
    Hyperparameters = MMDHyperparameters
    min_domains = 2
    hyperparameters: MMDHyperparameters

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """Mean cross entropy, and the mean distance over pairs of domains."""
        features = self.head_inputs(batch, noise)
        distance = mmd(self.by_domain(features))
        return functional.cross_entropy(self.head(features), self.labels(batch)) + self.hyperparameters.gamma * distance


def mmd(features: Tensor) -> Tensor:
    """The mean over pairs of domains of the squared MMD of their features; `[domains, images, features]`."""
    domains, images, _ = features.shape
    with torch.autocast(features.device.type, enabled=False):
        rows = features.flatten(0, 1).double()
        products = rows @ rows.mT
        squares = products.diagonal()
        distances = (squares[:, None] + squares - 2 * products).clamp_min(0).float()
        kernel = torch.stack([(-scale * distances).exp() for scale in SCALES]).sum(0)
        means = kernel.view(domains, images, domains, images).mean((1, 3))
        # Over all pairs d < e, K_dd + K_ee - 2 K_de adds up to this.
        total = domains * means.diagonal().sum() - means.sum()  # the gradient of `trace` waits for the device
        return total / (domains * (domains - 1) / 2)


ALGORITHM = MMD
