"""Π-model: make the same prediction for two views of an image.

Laine and Aila, "Temporal Ensembling for Semi-Supervised Learning", ICLR 2017. Every image is augmented twice,
independently. With the class probabilities z and z' of the two views:

    loss = CE(z, y) + w(t) · mean over images and classes of (z - z')²
    w(t) = w_max exp(-5 (1 - t / T)²)  until update T, then w_max

As in the paper, only the first view has a label, and gradients flow through both views. w_max = 1 is the value that the
SWAD paper chose among 1, 10, 100 and 300. T is `ramp_up` = 1,333 updates: the paper ramps up over 80 of 300 epochs, and
this is the same fraction of 5,000 updates. It does not change with the length of a run.

With frozen batch norms and no dropout, two passes over the same image are identical and the second term is 0, so the
views must differ. Low-resolution images (digits, MNIST) are not augmented. There the difference must come from dropout,
which has a mask for each view, or from `input_noise`, the paper's Gaussian noise on the pixels, whose deviation is .15
there by default. With neither, the Π-model would be ERM at twice the cost, so that setting is an error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from swad.testbed.algorithms.base import Algorithm, Batch, Noise
from swad.testbed.algorithms.hyperparameters import Choice, Constant, Hyperparameters, hyper


@dataclass(frozen=True)
class PiModelHyperparameters(Hyperparameters):
    """The common hyperparameters, the weight of the consistency term, its ramp-up, and noise on the images."""

    weight: float = hyper(1.0, Choice((1, 10, 100, 300)), "largest weight of the difference between views, w_max")
    ramp_up: int = hyper(1333, Constant(1333), "updates until the weight is at its largest, T")
    input_noise: float = hyper(
        0.0, Constant(0), "deviation of the noise added to every view, in normalized units", low_res=Constant(0.15)
    )

    def problems_on_low_res(self) -> list[str]:
        """Require a difference between the views."""
        if self.dropout or self.input_noise:
            return []
        return [
            "pi_model needs two different views, but low-resolution images are not augmented, and dropout and "
            "input_noise are both 0: set one of them above 0 (input_noise=0.15)"
        ]


class PiModel(Algorithm):
    """Cross entropy plus the squared difference of the probabilities of two views."""

    paper = "Laine and Aila: Temporal Ensembling for Semi-Supervised Learning. ICLR, 2017."
    needs = ("two views",)
    Hyperparameters = PiModelHyperparameters
    views = 2
    dropout_masks = ("dropout_mask", "second_dropout_mask")
    hyperparameters: PiModelHyperparameters

    def draw_randomness(self, generator: torch.Generator, step: int) -> dict[str, Tensor]:
        """Add pixel noise for both views, and the weight at this step."""
        device, hparams = generator.device, self.hyperparameters
        noise = super().draw_randomness(generator, step)
        if hparams.input_noise:
            shape = (self.n_images, *self.run_info.image_shape)
            for name in ("pixel_noise", "second_pixel_noise"):
                noise[name] = hparams.input_noise * torch.randn(shape, generator=generator, device=device)
        noise["weight"] = torch.full((), hparams.weight * ramp(step, hparams.ramp_up), device=device)
        return noise

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """Cross entropy of the first view plus the weighted mean squared difference."""
        images = batch.images
        if "pixel_noise" in noise:
            pixel_noise = [self.local_shard(noise[name]) for name in ("pixel_noise", "second_pixel_noise")]
            images = images + torch.stack(pixel_noise)
        if "dropout_mask" in noise:
            features = self.features(images.flatten(0, 1)).chunk(2)
            masks = noise["dropout_mask"], noise["second_dropout_mask"]
            first, second = (self.head(self.gather(f) * mask) for f, mask in zip(features, masks, strict=True))
        else:
            first, second = map(self.gather, self.predict(images.flatten(0, 1)).chunk(2))
        difference = functional.mse_loss(first.softmax(1), second.softmax(1))
        return functional.cross_entropy(first, self.labels(batch)) + noise["weight"] * difference


def ramp(step: int, length: int) -> float:
    """Return the fraction of the largest weight at a step: from e⁻⁵ to 1."""
    return math.exp(-5 * (1 - min(1.0, step / length)) ** 2) if length else 1.0


ALGORITHM = PiModel
