"""VAT: keep predictions stable in the direction in which they would change the most.

Miyato, Maeda, Koyama and Ishii, "Virtual Adversarial Training: A Regularization Method for Supervised and
Semi-Supervised Learning", TPAMI 2019. With the prediction p(x), treated as constant, and a random unit vector d for
every image:

    g = ∇_r KL(p(x) ‖ p(x + r)) at r = ξ d,      r_adv = ε g / |g|       (one step of the power method)
    loss = CE + α KL(p(x) ‖ p(x + r_adv))

ε = 1 and α = 1 are the values of the SWAD paper, in units of the normalized images. It does not give ξ. With VAT's own
10⁻⁶, single precision rounds the difference of the two predictions away, and the direction is largely noise. ξ = .1
finds the direction, provided that both predictions of the power step are in full precision, whatever the precision of
the rest of the step. All passes use the same dropout mask, so that r = 0 changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from swad.testbed.algorithms.base import Algorithm, Batch, Noise
from swad.testbed.algorithms.hyperparameters import Constant, Hyperparameters, Power, hyper


@dataclass(frozen=True)
class VATHyperparameters(Hyperparameters):
    """The common hyperparameters, the length of the perturbation and the weight of the divergence."""

    eps: float = hyper(1.0, Power(10, -1, 1), "length of the adversarial perturbation, ε")
    alpha: float = hyper(1.0, Constant(1.0), "weight of the divergence, α")
    xi: float = hyper(0.1, Constant(0.1), "length of the step that finds the direction, ξ", low=1e-12)


class VAT(Algorithm):
    """Cross entropy plus the divergence under the worst small perturbation of every image."""

    paper = (
        "Miyato, Maeda, Koyama and Ishii: Virtual Adversarial Training: A Regularization Method for Supervised and "
        "Semi-Supervised Learning. TPAMI, 2019."
    )
    needs = ("three passes",)
    Hyperparameters = VATHyperparameters
    hyperparameters: VATHyperparameters

    def draw_randomness(self, generator: torch.Generator, step: int) -> dict[str, Tensor]:
        """Add a random direction for every image."""
        shape = (self.n_images, *self.run_info.image_shape)
        return {
            **super().draw_randomness(generator, step),
            "direction": torch.randn(shape, generator=generator, device=generator.device),
        }

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """Mean cross entropy plus α times the mean divergence."""
        mask = self.local_shard(noise["dropout_mask"]) if "dropout_mask" in noise else None
        clean = self.masked_scores(batch.images, mask)
        perturbed = batch.images + self.hyperparameters.eps * self._adversary(batch.images, noise, mask, clean.detach())
        clean, adversarial = self.gather(clean), self.gather(self.masked_scores(perturbed, mask))
        divergence = divergences(clean.detach(), adversarial).mean()
        return functional.cross_entropy(clean, self.labels(batch)) + self.hyperparameters.alpha * divergence

    def _adversary(self, images: Tensor, noise: Noise, mask: Tensor | None, clean: Tensor) -> Tensor:
        """Return the unit vector along which every image's prediction changes the most, by one power step."""
        device_type = images.device.type
        mixed_precision = torch.is_autocast_enabled(device_type)
        with torch.autocast(device_type, enabled=False):
            if mixed_precision:
                with torch.no_grad():
                    clean = self.masked_scores(images, mask)
            change = (self.hyperparameters.xi * unit(self.local_shard(noise["direction"]))).requires_grad_()
            divergence = divergences(clean, self.masked_scores(images + change, mask)).sum()
            (gradient,) = torch.autograd.grad(divergence, change)
        return unit(gradient)


def divergences(scores: Tensor, others: Tensor) -> Tensor:
    """Return the KL divergence from the softmax of every row of `scores` to that of `others`."""
    logs = scores.log_softmax(1)
    return (logs.exp() * (logs - others.log_softmax(1))).sum(1)


def unit(rows: Tensor) -> Tensor:
    """Scale every row to length 1; rows of zeros stay 0."""
    flat = rows.flatten(1)
    # Divide by the largest entry first: the squares of tiny gradients would underflow.
    flat = flat / flat.abs().amax(1, keepdim=True).clamp_min(torch.finfo(flat.dtype).tiny)
    return functional.normalize(flat).view_as(rows)


ALGORITHM = VAT
