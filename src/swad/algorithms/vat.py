"""VAT: predictions that hold still in the direction in which they would move the most.

Miyato, Maeda, Koyama and Ishii, "Virtual Adversarial Training: A Regularization Method for Supervised and
Semi-Supervised Learning", TPAMI 2019. With the prediction p(x), held fixed, and a random unit vector d for every image:

    g = ∇_r KL(p(x) ‖ p(x + r)) at r = ξ d,      r_adv = ε g / |g|       (one step of the power method)
    loss = CE + α KL(p(x) ‖ p(x + r_adv))

ε = 1 and α = 1 as SWAD's paper used them, in units of the normalized images. ξ is not given there. With the 10⁻⁶ of
VAT's paper the predictions differ by no more than single precision rounds away, and the direction is largely chance;
ξ = .1 finds it, with both predictions of the power step in full precision whatever the rest of the step is computed in.
Dropout is the same in all passes, so that r = 0 moves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from swad.algorithms import hyperparameters as hp
from swad.algorithms.base import Algorithm, Noise
from swad.algorithms.hyperparameters import Constant, Power, hyper
from swad.data.loaders import Batch


@dataclass(frozen=True)
class VATHyperparameters(hp.Hyperparameters):
    """How far images are moved, and how much it weighs."""

    eps: float = hyper(1.0, Power(10, -1, 1), "length of the adversarial direction, ε")
    alpha: float = hyper(1.0, Constant(1.0), "weight of the divergence, α")
    xi: float = hyper(0.1, Constant(0.1), "length of the step that looks for the direction, ξ", low=1e-12)


class VAT(Algorithm):
    """Cross entropy, and how far the worst small change of every image moves its prediction."""

    paper = (
        "Miyato, Maeda, Koyama and Ishii: Virtual Adversarial Training: A Regularization Method for Supervised and "
        "Semi-Supervised Learning. TPAMI, 2019."
    )
    needs = ("three passes",)
    Hyperparameters = VATHyperparameters
    hyperparameters: VATHyperparameters

    def draw_randomness(self, generator: torch.Generator, step: int) -> dict[str, Tensor]:
        """A random direction for every image."""
        assert self.image_shape is not None
        shape = (self.n_images, *self.image_shape)
        return {
            **super().draw_randomness(generator, step),
            "direction": torch.randn(shape, generator=generator, device=generator.device),
        }

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """Mean cross entropy and divergence."""
        keep = self.local_shard(noise["dropout_mask"]) if "dropout_mask" in noise else None
        clean = self._scores(batch.images, keep)
        moved = batch.images + self.hyperparameters.eps * self._adversary(batch.images, noise, keep, clean.detach())
        clean, other = self.gather(clean), self.gather(self._scores(moved, keep))
        divergence = divergences(clean.detach(), other).mean()
        return functional.cross_entropy(clean, self.labels(batch)) + self.hyperparameters.alpha * divergence

    def _adversary(self, images: Tensor, noise: Noise, keep: Tensor | None, clean: Tensor) -> Tensor:
        """The unit vector along which every image's prediction moves the most, by one step of the power method."""
        kind = images.device.type
        mixed = torch.is_autocast_enabled(kind)
        with torch.autocast(kind, enabled=False):
            if mixed:
                with torch.no_grad():
                    clean = self._scores(images, keep)
            change = (self.hyperparameters.xi * unit(self.local_shard(noise["direction"]))).requires_grad_()
            divergence = divergences(clean, self._scores(images + change, keep)).sum()
            (gradient,) = torch.autograd.grad(divergence, change)
        return unit(gradient)

    def _scores(self, images: Tensor, keep: Tensor | None) -> Tensor:
        return self.predict(images) if keep is None else self.head(self.features(images) * keep)


def divergences(scores: Tensor, others: Tensor) -> Tensor:
    """KL of every row's softmax to another's."""
    logs = scores.log_softmax(1)
    return (logs.exp() * (logs - others.log_softmax(1))).sum(1)


def unit(rows: Tensor) -> Tensor:
    """Every row at length 1, or 0 where it is 0."""
    flat = rows.flatten(1)
    # By the largest entry first: the squares of gradients that are tiny would vanish.
    flat = flat / flat.abs().amax(1, keepdim=True).clamp_min(torch.finfo(flat.dtype).tiny)
    return functional.normalize(flat).view_as(rows)


ALGORITHM = VAT
