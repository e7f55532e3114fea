"""I-Mixup: mixup between domains.

Xu et al., "Adversarial Domain Adaptation with Domain Mixup", AAAI 2020; Yan et al., "Improve Unsupervised Domain
Adaptation with Mixup Training", arXiv 2001.00677; Wang, Li and Kot, "Heterogeneous Domain Generalization via Domain
Mixup", ICASSP 2020. As in DomainBed, the domains form a ring in random order. The k-th image of every domain d is mixed
with the k-th image of the next domain e, with one λ_d ~ Beta(α, α) per domain:

    x = λ_d x_d + (1 - λ_d) x_e,      loss = mean over d of λ_d CE(f(x), y_d) + (1 - λ_d) CE(f(x), y_e)

All mixed images pass through the network together. The images of a batch are in random order, so mixing those at the
same position is as good as any other pairing.

α is searched in 10^U(-1, 1), DomainBed's range since January 2023. In October 2020, and in the published SWAD code, the
range was written 10^U(-1, -1), which is always .1. The default, .2, is the same in all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from swad.testbed.algorithms._helpers import as_tensor, draw_beta, host_stream, ring_partners
from swad.testbed.algorithms.base import Algorithm, Batch, Noise
from swad.testbed.algorithms.hyperparameters import Hyperparameters, Power, hyper


@dataclass(frozen=True)
class IMixupHyperparameters(Hyperparameters):
    """The common hyperparameters and the distribution of λ."""

    alpha: float = hyper(
        0.2,
        Power(10, -1, 1),
        "α of Beta(α, α), the weight of the first domain; 0: no mixing",
        # Until January 2023, and in the published SWAD code, both ends of the range were -1.
        range_2020=Power(10, -1, -1),
        domainbed="mixup_alpha",
    )


class IMixup(Algorithm):
    """Cross entropy of images mixed across domains with both labels."""

    paper = "Wang, Li and Kot: Heterogeneous Domain Generalization via Domain Mixup. ICASSP, 2020."
    groups_by_domain = True
    Hyperparameters = IMixupHyperparameters
    min_domains = 2
    hyperparameters: IMixupHyperparameters

    def draw_randomness(self, generator: torch.Generator, step: int) -> dict[str, Tensor]:
        """Draw every domain's partner and its weight."""
        n, device = self.n_domains, generator.device
        shares = draw_beta(host_stream(generator.initial_seed(), step), self.hyperparameters.alpha, n)
        partner = ring_partners(generator, n)
        return {
            **super().draw_randomness(generator, step),
            "share": as_tensor(shares, device),
            "partner": partner,
        }

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """Cross entropy with both labels, weighted like the images."""
        share, partner = noise["share"], noise["partner"]
        image_share = share.view(-1, 1, 1, 1, 1)
        images, labels = self.by_domain(self.gather(batch.images)), self.by_domain(self.labels(batch))
        mixed = image_share * images + (1 - image_share) * images[partner]
        scores = self.scores(batch._replace(images=self.local_shard(mixed.flatten(0, 1))), noise)
        first, second = (
            self.by_domain(functional.cross_entropy(scores, target.flatten(), reduction="none")).mean(1)
            for target in (labels, labels[partner])
        )
        return (share * first + (1 - share) * second).mean()


ALGORITHM = IMixup
