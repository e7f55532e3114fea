"""Mixup: straight lines between images, and between their labels.

Zhang, Cisse, Dauphin and Lopez-Paz, "mixup: Beyond Empirical Risk Minimization", ICLR 2018. Every image x_i of
the batch, whatever its domain, has a partner x_j by a random permutation, and one λ ~ Beta(α, α) serves the step:

    x = λ x_i + (1 - λ) x_j,      loss = λ CE(f(x), y_i) + (1 - λ) CE(f(x), y_j)

One λ a step and partners from the batch itself are what the paper's code does. α = .2 as SWAD's paper used it. The
variant that mixes whole domains is `i_mixup`.
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
class MixupHyperparameters(hp.Hyperparameters):
    """How far images are mixed."""

    alpha: float = hyper(0.2, Power(10, -1, 1), "of Beta(α, α), the share of an image; 0: nothing is mixed")


class Mixup(Algorithm):
    """Cross entropy of mixed images, over both labels."""

    paper = "Zhang, Cisse, Dauphin and Lopez-Paz: mixup: Beyond Empirical Risk Minimization. ICLR, 2018."
    Hyperparameters = MixupHyperparameters
    hyperparameters: MixupHyperparameters

    def draw_randomness(self, generator: torch.Generator, step: int) -> dict[str, Tensor]:
        """Every image's partner, and the share of the first."""
        shares = draw_beta(host_stream(generator, step), self.hyperparameters.alpha, 1)
        return {
            **super().draw_randomness(generator, step),
            "share": to_device(shares, generator.device)[0],
            "partner": torch.rand(self.n_images, generator=generator, device=generator.device).argsort(),
        }

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """Both labels' cross entropy, by their shares."""
        share, partner = noise["share"], noise["partner"]
        images, labels = self.gather(batch.images), self.labels(batch)
        mixed = share * images + (1 - share) * images[partner]
        scores = self.scores(batch._replace(images=self.local_shard(mixed)), noise)
        first, second = (functional.cross_entropy(scores, one) for one in (labels, labels[partner]))
        return share * first + (1 - share) * second


ALGORITHM = Mixup
