"""Mixup: train on straight lines between images, and between their labels.

Zhang, Cisse, Dauphin and Lopez-Paz, "mixup: Beyond Empirical Risk Minimization", ICLR 2018. A random permutation gives
every image x_i of the batch a partner x_j, whatever their domains. One λ ~ Beta(α, α) is drawn for the step:

    x = λ x_i + (1 - λ) x_j,      loss = λ CE(f(x), y_i) + (1 - λ) CE(f(x), y_j)

One λ per step and partners from the same batch follow the paper's code. α = .2 is the value of the SWAD paper. The
variant that mixes whole domains is `i_mixup`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from swad.testbed.algorithms._helpers import as_tensor, draw_beta, host_stream, random_order
from swad.testbed.algorithms.base import Algorithm, Batch, Noise
from swad.testbed.algorithms.hyperparameters import Hyperparameters, Power, hyper


@dataclass(frozen=True)
class MixupHyperparameters(Hyperparameters):
    """The common hyperparameters and the distribution of λ."""

    alpha: float = hyper(0.2, Power(10, -1, 1), "α of Beta(α, α), the weight of the first image; 0: no mixing")


class Mixup(Algorithm):
    """Cross entropy of mixed images with both labels."""

    paper = "Zhang, Cisse, Dauphin and Lopez-Paz: mixup: Beyond Empirical Risk Minimization. ICLR, 2018."
    Hyperparameters = MixupHyperparameters
    hyperparameters: MixupHyperparameters

    def draw_randomness(self, generator: torch.Generator, step: int) -> dict[str, Tensor]:
        """Draw every image's partner, and the weight of the first image."""
        shares = draw_beta(host_stream(generator.initial_seed(), step), self.hyperparameters.alpha, 1)
        return {
            **super().draw_randomness(generator, step),
            "share": as_tensor(shares, generator.device)[0],
            "partner": random_order(generator, self.n_images),
        }

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """Cross entropy with both labels, weighted like the images."""
        share, partner = noise["share"], noise["partner"]
        images, labels = self.gather(batch.images), self.labels(batch)
        mixed = share * images + (1 - share) * images[partner]
        scores = self.scores(batch._replace(images=self.local_shard(mixed)), noise)
        first, second = (functional.cross_entropy(scores, target) for target in (labels, labels[partner]))
        return share * first + (1 - share) * second


ALGORITHM = Mixup
