"""MLDG: step so that a step on one domain also helps another domain.

Li, Yang, Song and Hospedales, "Learning to Generalize: Meta-Learning for Domain Generalization", AAAI 2018. Every
domain i is paired with another domain j. Over the n pairs, MLDG minimizes

    1/n * sum of  L_i(w) + beta * L_j(w'),    w': the weights after an inner step on L_i,

with the first-order gradient g_i(w) + beta * g_j(w'), which uses the gradient at w' as if it were taken at w. So do
Gulrajani and Lopez-Paz (ICLR 2021). Their inner step is also used here: the first step of a fresh Adam. From zero
moments and after both bias corrections it is

    w' = w - lr * g / (|g| + eps),    with weight decay in g,

for any betas, at the current learning rate. With `--optimizer sgd` it is the first step of a fresh SGD, lr * g, as in
the MLDG paper. It is made in place, and the weights are copied back afterwards. Neither a copy of the network nor
another optimizer is needed.

The partners are drawn in every step: the domains form a ring in random order, and the partner of a domain is the next
one. No domain is paired with itself, every domain is partner once, and two domains give two pairs. With several
processes the gradient of an inner step is averaged before the step. Every image passes twice, so a step costs twice as
much as ERM's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from swad.tensors.swapping import restored
from swad.testbed.algorithms._helpers import gradients, ring_partners
from swad.testbed.algorithms.base import Batch, Noise, StepContext
from swad.testbed.algorithms.erm import ERM
from swad.testbed.algorithms.hyperparameters import Hyperparameters, Power, hyper


@dataclass(frozen=True)
class MLDGHyperparameters(Hyperparameters):
    """The common hyperparameters and the weight of the partner domain."""

    beta: float = hyper(1.0, Power(10, -1, 1), "weight of the loss after the inner step", domainbed="mldg_beta")


class MLDG(ERM):
    """Each domain's loss plus its partner's loss after a step on it; `loss` alone is the mean over the domains."""

    paper = "Li et al.: Learning to Generalize: Meta-Learning for Domain Generalization. AAAI, 2018."
    needs = ("two passes",)
    groups_by_domain = True
    Hyperparameters = MLDGHyperparameters
    hyperparameters: MLDGHyperparameters
    min_domains = 2
    dropout_masks = ("dropout_mask", "dropout_mask_after")  # before and after the inner step

    def draw_randomness(self, generator: torch.Generator, step: int) -> dict[str, Tensor]:
        """Add every domain's partner."""
        noise = super().draw_randomness(generator, step)
        return {**noise, "partner": ring_partners(generator, self.n_domains)}

    def update(self, batch: Batch, noise: Noise, ctx: StepContext) -> Tensor:
        """Sum both gradients of every pair, restoring the weights after each inner step; then make one step."""
        weights = [weight for weight in self.predictor.parameters() if weight.requires_grad]
        total = [torch.zeros_like(weight) for weight in weights]
        share, loss = 1 / self.n_domains, torch.zeros((), device=batch.labels.device)
        for i in range(self.n_domains):
            domain = torch.full((1,), i, device=batch.labels.device)
            partner = noise["partner"][i : i + 1]
            with restored(weights):
                loss += share * self._backward(batch, domain, noise.get("dropout_mask"), ctx)
                ctx.average_gradients(weights)
                inner = gradients(weights)
                torch._foreach_add_(total, inner, alpha=share)
                self._inner_step(weights, inner)
                meta_loss = self._backward(batch, partner, noise.get("dropout_mask_after"), ctx)
            loss += share * self.hyperparameters.beta * meta_loss
            torch._foreach_add_(total, gradients(weights), alpha=share * self.hyperparameters.beta)
        for weight, gradient in zip(weights, total, strict=True):
            weight.grad = gradient
        self.step(ctx, "main")
        return loss

    def _backward(self, batch: Batch, domain: Tensor, mask: Tensor | None, ctx: StepContext) -> Tensor:
        """Return the loss of the local images of one domain, and leave its gradient in `.grad`."""

        def select(rows: Tensor) -> Tensor:
            # With a tensor as index, so that a captured graph reads the partner from the noise.
            return self.by_domain(rows).index_select(0, domain).squeeze(0)

        def loss(batch: Batch, noise: Noise) -> Tensor:
            rows = None if mask is None else select(self.local_shard(mask))
            return functional.cross_entropy(self.masked_scores(select(batch.images), rows), select(batch.labels))

        return self.backward(loss, batch, {}, ctx)

    @torch.no_grad()
    def _inner_step(self, weights: Sequence[nn.Parameter], grads: Sequence[Tensor]) -> None:
        group = self.optimizers["main"].param_groups[0]
        moves = torch._foreach_add(list(grads), list(weights), alpha=group["weight_decay"])
        if self.run_info.optimizer == "adam":
            sizes = torch._foreach_abs(moves)
            torch._foreach_add_(sizes, group["eps"])
            torch._foreach_div_(moves, sizes)
        torch._foreach_mul_(moves, group["lr"])
        torch._foreach_sub_(list(weights), moves)


ALGORITHM = MLDG
