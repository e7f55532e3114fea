"""Π-model: the same prediction for two views of an image.

Laine and Aila, "Temporal Ensembling for Semi-Supervised Learning", ICLR 2017. Every image is augmented twice,
independently; with the class probabilities z and z' of the two views:

    loss = CE(z, y) + w(t) · mean over images and classes of (z - z')²
    w(t) = w_max exp(-5 (1 - t / T)²)  until update T, then w_max

As in the paper, labels are seen with the first view alone, and gradients flow through both. w_max = 1 as SWAD's paper
chose it among 1, 10, 100 and 300. T is `ramp_up` = 1,333 updates: 80 of 300 epochs in the paper, and the same share of
5,000 updates. It does not follow the length of a run.

Two passes over one view would be the same with frozen batch norms and no dropout, and the second term 0: the views
must differ. Small images (digits, MNIST) are not augmented; there dropout, of which each view has its own, or
`input_noise`, the paper's Gaussian noise on the pixels (of .15), must make the difference. With neither it would be ERM
at twice the cost, and is refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from swad.algorithms import hyperparameters as hp
from swad.algorithms.base import Algorithm, Noise
from swad.algorithms.hyperparameters import Choice, Constant, hyper
from swad.data.loaders import Batch


@dataclass(frozen=True)
class PiModelHyperparameters(hp.Hyperparameters):
    """How much the difference of the views weighs, from when, and what makes it."""

    weight: float = hyper(1.0, Choice((1, 10, 100, 300)), "largest weight of the views' difference, w_max")
    ramp_up: int = hyper(1333, Constant(1333), "updates until the weight is at its largest, T")
    input_noise: float = hyper(
        0.0, Constant(0), "deviation of the noise added to every view, in normalized units", small=Constant(0.15)
    )

    def problems_on_small_images(self) -> list[str]:
        """Something must make the views differ."""
        if self.dropout or self.input_noise:
            return []
        return [
            "the two views of small images, which are not augmented, are equal with dropout 0 and input_noise 0: "
            "set one of them above 0 (input_noise=0.15)"
        ]


class PiModel(Algorithm):
    """Cross entropy, and the squared difference of the probabilities of two views."""

    paper = "Laine and Aila: Temporal Ensembling for Semi-Supervised Learning. ICLR, 2017."
    needs = ("two views",)
    Hyperparameters = PiModelHyperparameters
    views = 2
    hyperparameters: PiModelHyperparameters

    def draw_randomness(self, generator: torch.Generator, step: int) -> dict[str, Tensor]:
        """Dropout and noise of both views, and the weight at this step."""
        device, ours = generator.device, self.hyperparameters
        drawn = super().draw_randomness(generator, step)
        drawn |= {"second_" + name: rows for name, rows in super().draw_randomness(generator, step).items()}
        if ours.input_noise:
            assert self.image_shape is not None
            shape = (self.n_images, *self.image_shape)
            for view in ("pixel_noise", "second_pixel_noise"):
                drawn[view] = ours.input_noise * torch.randn(shape, generator=generator, device=device)
        drawn["weight"] = torch.full((), ours.weight * ramp(step, ours.ramp_up), device=device)
        return drawn

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """Cross entropy of the first view, and the mean squared difference."""
        images = batch.images
        if "pixel_noise" in noise:
            images = images + torch.stack(
                [self.local_shard(noise["pixel_noise"]), self.local_shard(noise["second_pixel_noise"])]
            )
        if "dropout_mask" in noise:
            features = self.features(images.flatten(0, 1)).chunk(2)
            keeps = noise["dropout_mask"], noise["second_dropout_mask"]
            first, second = (self.head(self.gather(f) * keep) for f, keep in zip(features, keeps, strict=True))
        else:
            first, second = map(self.gather, self.predict(images.flatten(0, 1)).chunk(2))
        difference = functional.mse_loss(first.softmax(1), second.softmax(1))
        return functional.cross_entropy(first, self.labels(batch)) + noise["weight"] * difference


def ramp(step: int, length: int) -> float:
    """The share of the largest weight at a step: from e⁻⁵ to 1."""
    return math.exp(-5 * (1 - min(1.0, step / length)) ** 2) if length else 1.0


ALGORITHM = PiModel
