"""CutMix: paste a box of one image into another, and weight the labels by area.

Yun et al., "CutMix: Regularization Strategy to Train Strong Classifiers with Localizable Features", ICCV 2019. With
probability p, a step draws λ ~ Beta(α, α) and a box whose height and width are √(1 - λ) of the image's. The center of
the box is anywhere, and the part outside the image is cut off. A random permutation of the batch gives every image a
partner, from which it receives that box:

    loss = (1 - a) CE(f(x), y_i) + a CE(f(x), y_j),      a: the fraction of pixels inside the box

α = 1 and p = .5 are the values that the SWAD paper states. Its code has p = 1, which the CutMix paper uses for
ImageNet. As in CutMix's code, one box and one decision serve the whole step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from swad.testbed.algorithms._helpers import as_tensor, draw_beta, host_stream, random_order
from swad.testbed.algorithms.base import Algorithm, Batch, Noise
from swad.testbed.algorithms.hyperparameters import Constant, Hyperparameters, hyper


@dataclass(frozen=True)
class CutMixHyperparameters(Hyperparameters):
    """The common hyperparameters, the size of the box, and how often there is one."""

    alpha: float = hyper(1.0, Constant(1.0), "α of Beta(α, α), the fraction of pixels outside the box; 0: no box")
    p: float = hyper(0.5, Constant(0.5), "probability that a step cuts", high=1)


class CutMix(Algorithm):
    """Cross entropy of images with a box from another image, with both labels."""

    paper = (
        "Yun et al.: CutMix: Regularization Strategy to Train Strong Classifiers with Localizable Features. ICCV, 2019."
    )
    Hyperparameters = CutMixHyperparameters
    hyperparameters: CutMixHyperparameters

    def draw_randomness(self, generator: torch.Generator, step: int) -> dict[str, Tensor]:
        """Draw every image's partner, and the box: its relative side length (0: no box) and its center."""
        stream, hparams = host_stream(generator.initial_seed(), step), self.hyperparameters
        cuts = stream.random_sample() < hparams.p
        share = draw_beta(stream, hparams.alpha, 1)[0]
        side = math.sqrt(1 - share) if cuts else 0.0
        return {
            **super().draw_randomness(generator, step),
            "box": as_tensor([side, *stream.random_sample(2)], generator.device),
            "partner": random_order(generator, self.n_images),
        }

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """Cross entropy with both labels, weighted by area."""
        partner = noise["partner"]
        images, labels = self.gather(batch.images), self.labels(batch)
        inside = box(noise["box"], images.shape[-2], images.shape[-1])
        mixed = torch.where(inside, images[partner], images)
        scores = self.scores(batch._replace(images=self.local_shard(mixed)), noise)
        first, second = (functional.cross_entropy(scores, target) for target in (labels, labels[partner]))
        area = inside.float().mean()
        return (1 - area) * first + area * second


def box(parameters: Tensor, height: int, width: int) -> Tensor:
    """Return which pixels are inside a box, given its side length and its center, all relative to the image."""
    inside = []
    for size, center in ((height, parameters[1]), (width, parameters[2])):
        half = ((size * parameters[0]).floor() / 2).floor()
        middle = (size * center).floor()
        pixels = torch.arange(size, device=parameters.device)
        inside.append((pixels >= middle - half) & (pixels < middle + half))
    return inside[0][:, None] & inside[1]


ALGORITHM = CutMix
