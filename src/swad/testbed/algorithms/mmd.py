"""MMD: give the features the same distribution in every domain, as measured by a kernel.

Li, Pan, Wang and Kot, "Domain Generalization with Adversarial Feature Learning", CVPR 2018, reduced to its distance as
in DomainBed. With the mean kernel K_de between the images of domains d and e:

    cross entropy + γ · mean over pairs d < e of ( K_dd + K_ee - 2 K_de )
    k(x, y) = Σ exp(-g |x - y|²)  over  g = 10⁻³, 10⁻², ..., 10³

This is the biased estimate, in which the kernel of an image with itself counts. It is the published one and never
negative. The features are those that the head receives, after dropout.

All kernels come from one matrix of distances, computed from inner products in double precision: in single precision the
distance of two equal rows is no longer 0, which shows where g is 1000.
"""

from __future__ import annotations

import torch
from torch import Tensor

from swad.testbed.algorithms.coral import CORAL

SCALES = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)


class MMD(CORAL):
    """Cross entropy plus the distance between the distributions of the domains' features."""

    paper = "Li, Pan, Wang and Kot: Domain Generalization with Adversarial Feature Learning. CVPR, 2018."
    min_per_domain = 1

    def distance(self, features: Tensor) -> Tensor:
        """Return the mean squared MMD over pairs of domains, for features `[domains, images, features]`."""
        return mmd(features)


def mmd(features: Tensor) -> Tensor:
    """Return the mean squared MMD over pairs of domains, for features of shape `[domains, images, features]`."""
    domains, images, _ = features.shape
    with torch.autocast(features.device.type, enabled=False):
        rows = features.flatten(0, 1).double()
        products = rows @ rows.mT
        squares = products.diagonal()
        distances = (squares[:, None] + squares - 2 * products).clamp_min(0).float()
        kernel = torch.stack([(-scale * distances).exp() for scale in SCALES]).sum(0)
        means = kernel.view(domains, images, domains, images).mean((1, 3))
        # The sum of K_dd + K_ee - 2 K_de over all pairs d < e. Not with `trace`, whose gradient waits for the device.
        total = domains * means.diagonal().sum() - means.sum()
        return total / (domains * (domains - 1) / 2)


ALGORITHM = MMD
