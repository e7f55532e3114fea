"""I-Mixup: mixup between domains.

Xu et al., "Adversarial Domain Adaptation with Domain Mixup", AAAI 2020; Yan et al., "Improve Unsupervised Domain
Adaptation with Mixup Training", arXiv 2001.00677; Wang, Li and Kot, "Heterogeneous Domain Generalization via Domain
Mixup", ICASSP 2020. As in DomainBed, a random order of the domains is closed to a ring, and the images of every
domain d are mixed, place by place, with those of the next, e, by a λ_d ~ Beta(α, α) of its own:

    x = λ_d x_d + (1 - λ_d) x_e,      loss = mean over d of λ_d CE(f(x), y_d) + (1 - λ_d) CE(f(x), y_e)

All mixtures go through the network at once. Images are drawn at random, so place by place is as good as any pairing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from swad.algorithms import hyperparameters as hp
from swad.algorithms._helpers import draw_beta, host_stream, to_device
from swad.algorithms.base import Algorithm, Noise
from swad.algorithms.hyperparameters import Power, hyper
from swad.data.loaders import Batch


@dataclass(frozen=True)
class IMixupHyperparameters(hp.Hyperparameters):
    """How far domains are mixed."""

    alpha: float = hyper(0.2, Power(10, -1, 1), "of Beta(α, α), the share of a domain; 0: nothing is mixed")


class IMixup(Algorithm):
    """Cross entropy of images mixed across domains, over both labels."""

    paper = "Wang, Li and Kot: Heterogeneous Domain Generalization via Domain Mixup. ICASSP, 2020."
    needs = ("domain labels",)
    Hyperparameters = IMixupHyperparameters
    min_domains = 2
    hyperparameters: IMixupHyperparameters

    def draw_randomness(self, generator: torch.Generator, step: int) -> dict[str, Tensor]:
        """Every domain's partner, and its own share."""
        n, device = self.n_domains, generator.device
        shares = draw_beta(host_stream(generator, step), self.hyperparameters.alpha, n)
        order = torch.rand(n, generator=generator, device=device).argsort()
        return {
            **super().draw_randomness(generator, step),
            "share": to_device(shares, device),
            "partner": torch.empty_like(order).scatter_(0, order, order.roll(-1)),
        }

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """Both labels' cross entropy, by their shares."""
        share, partner = noise["share"], noise["partner"]
        of_image = share.view(-1, 1, 1, 1, 1)
        images, labels = self.by_domain(self.gather(batch.images)), self.by_domain(self.labels(batch))
        mixed = of_image * images + (1 - of_image) * images[partner]
        scores = self.scores(batch._replace(images=self.local_shard(mixed.flatten(0, 1))), noise)
        first, second = (
            self.by_domain(functional.cross_entropy(scores, one.flatten(), reduction="none")).mean(1)
            for one in (labels, labels[partner])
        )
        return (share * first + (1 - share) * second).mean()


ALGORITHM = IMixup
