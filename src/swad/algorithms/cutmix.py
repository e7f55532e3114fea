"""CutMix: a box of one image pasted into another, and the labels weighted by area.

Yun et al., "CutMix: Regularization Strategy to Train Strong Classifiers with Localizable Features", ICCV 2019.
With probability p, a step draws λ ~ Beta(α, α) and a box of √(1 - λ) of the rows and columns, its center anywhere and
what lies outside cut off; every image gets that box from its partner by a random permutation of the batch:

    loss = (1 - a) CE(f(x), y_i) + a CE(f(x), y_j),      a: the share of pixels in the box, as cut

α = 1 and p = .5 as SWAD's paper states them; its code has p = 1, the value of CutMix's paper for ImageNet. One box and
one decision serve a whole step, as in CutMix's code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from swad.algorithms import hyperparameters as hp
from swad.algorithms._helpers import draw_beta, host_stream, to_device
from swad.algorithms.base import Algorithm, Noise
from swad.algorithms.hyperparameters import Constant, hyper
from swad.data.loaders import Batch


@dataclass(frozen=True)
class CutMixHyperparameters(hp.Hyperparameters):
    """How much is cut, and how often."""

    alpha: float = hyper(1.0, Constant(1.0), "of Beta(α, α), the share of pixels that stay; 0: nothing is cut")
    p: float = hyper(0.5, Constant(0.5), "share of the steps that cut", high=1)


class CutMix(Algorithm):
    """Cross entropy of images with a box from another, over both labels."""

    paper = (
        "Yun et al.: CutMix: Regularization Strategy to Train Strong Classifiers with Localizable Features. ICCV, 2019."
    )
    Hyperparameters = CutMixHyperparameters
    hyperparameters: CutMixHyperparameters

    def draw_randomness(self, generator: torch.Generator, step: int) -> dict[str, Tensor]:
        """Every image's partner, and the box: what share of each side it covers (0: no box), and its center."""
        random, ours = host_stream(generator, step), self.hyperparameters
        cuts = random.random_sample() < ours.p
        share = draw_beta(random, ours.alpha, 1)[0]
        side = math.sqrt(1 - share) if cuts else 0.0
        return {
            **super().draw_randomness(generator, step),
            "box": to_device([side, *random.random_sample(2)], generator.device),
            "partner": torch.rand(self.n_images, generator=generator, device=generator.device).argsort(),
        }

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """Both labels' cross entropy, by their areas."""
        partner = noise["partner"]
        images, labels = self.gather(batch.images), self.labels(batch)
        inside = box(noise["box"], images.shape[-2], images.shape[-1])
        mixed = torch.where(inside, images[partner], images)
        scores = self.scores(batch._replace(images=self.local_shard(mixed)), noise)
        first, second = (functional.cross_entropy(scores, one) for one in (labels, labels[partner]))
        area = inside.float().mean()
        return (1 - area) * first + area * second


def box(drawn: Tensor, height: int, width: int) -> Tensor:
    """Which pixels lie in a box, drawn as the share of each side it covers and the place of its center, 0 to 1."""
    inside = []
    for size, center in ((height, drawn[1]), (width, drawn[2])):
        half = ((size * drawn[0]).floor() / 2).floor()
        middle = (size * center).floor()
        places = torch.arange(size, device=drawn.device)
        inside.append((places >= middle - half) & (places < middle + half))
    return inside[0][:, None] & inside[1]


ALGORITHM = CutMix
