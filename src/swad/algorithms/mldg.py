"""MLDG: step so that a step on one domain also helps another.

Li, Yang, Song and Hospedales, "Learning to Generalize: Meta-Learning for Domain Generalization", AAAI 2018. Every
domain i is paired with another, j, and over the n pairs

    1/n * sum of  L_i(w) + beta * L_j(w - inner step of L_i)

is descended by its first-order gradient, g_i(w) + beta * g_j(w'): the gradient at the moved weights is taken for that
at w, as Gulrajani and Lopez-Paz (ICLR 2021) do. So is the inner step: the first of a fresh Adam, which from zero
moments and after both bias corrections is

    w' = w - lr * g / (|g| + eps),    with weight decay in g,

whatever Adam's betas, at the learning rate of the moment. It is made in place and taken back by copying: no copy of
the network, no new optimizer.

The partners are the next ones on a ring through all domains in random order, drawn each step: nobody is paired with
itself, every domain is met once on either side, and two domains give two pairs. Under several processes the gradient
of an inner step is averaged before it is made. Every image passes twice, so a step costs twice ERM's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from swad.algorithms._helpers import gradients
from swad.algorithms.base import Noise, StepContext
from swad.algorithms.erm import ERM
from swad.algorithms.hyperparameters import Hyperparameters, Power, hyper
from swad.averaging.tensors import restored
from swad.data.loaders import Batch


@dataclass(frozen=True)
class MLDGHyperparameters(Hyperparameters):
    """The common ones, and the weight of the other domain."""

    beta: float = hyper(1.0, Power(10, -1, 1), "weight of the loss after the inner step")


class MLDG(ERM):
    """Each domain's loss, and another's after a step on it; `loss` alone is the mean over the domains."""

    paper = "Li et al.: Learning to Generalize: Meta-Learning for Domain Generalization. AAAI, 2018."
    needs = ("domain labels", "two passes")
    Hyperparameters = MLDGHyperparameters
    hyperparameters: MLDGHyperparameters
    min_domains = 2

    def draw_randomness(self, generator: torch.Generator, step: int) -> dict[str, Tensor]:
        """Every domain's partner, and dropout for the inner and the outer pass."""
        drawn = super().draw_randomness(generator, step)
        drawn |= {f"{name}_after": rows for name, rows in super().draw_randomness(generator, step).items()}
        ring = torch.rand(self.n_domains, generator=generator, device=generator.device).argsort()
        partner = torch.empty_like(ring).scatter_(0, ring, ring.roll(-1))
        return {**drawn, "partner": partner}

    def update(self, batch: Batch, noise: Noise, ctx: StepContext) -> Tensor:
        """For each domain: its gradient, the inner step, its partner's gradient there, and back; then one step."""
        weights = [weight for weight in self.predictor.parameters() if weight.requires_grad]
        total = [torch.zeros_like(weight) for weight in weights]
        share, loss = 1 / self.n_domains, torch.zeros((), device=batch.labels.device)
        for i in range(self.n_domains):
            here = torch.full((1,), i, device=batch.labels.device)
            there = noise["partner"][i : i + 1]
            with restored(weights):
                loss += share * self._backward(batch, here, noise.get("dropout_mask"), ctx)
                ctx.average_gradients(weights)
                found = gradients(weights)
                torch._foreach_add_(total, found, alpha=share)
                self._inner_step(weights, found)
                meta = self._backward(batch, there, noise.get("dropout_mask_after"), ctx)
            loss += share * self.hyperparameters.beta * meta
            torch._foreach_add_(total, gradients(weights), alpha=share * self.hyperparameters.beta)
        for weight, gradient in zip(weights, total, strict=True):
            weight.grad = gradient
        self.step(ctx, "main")
        return loss

    def _backward(self, batch: Batch, domain: Tensor, keep: Tensor | None, ctx: StepContext) -> Tensor:
        """The loss of this process's images of one domain, and in `.grad` its gradient."""
        self.optimizers["main"].zero_grad()

        def of(rows: Tensor) -> Tensor:
            # By index, so that a graph reads the domain from the noise.
            return self.by_domain(rows).index_select(0, domain).squeeze(0)

        with ctx.autocast():
            if keep is None:
                scores = self.predict(of(batch.images))
            else:
                scores = self.head(self.features(of(batch.images)) * of(self.local_shard(keep)))
            loss = functional.cross_entropy(scores, of(batch.labels))
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    @torch.no_grad()
    def _inner_step(self, weights: Sequence[nn.Parameter], found: Sequence[Tensor]) -> None:
        group = self.optimizers["main"].param_groups[0]
        moves = torch._foreach_add(list(found), list(weights), alpha=group["weight_decay"])
        sizes = torch._foreach_abs(moves)
        torch._foreach_add_(sizes, group["eps"])
        torch._foreach_div_(moves, sizes)
        torch._foreach_mul_(moves, group["lr"])
        torch._foreach_sub_(list(weights), moves)


ALGORITHM = MLDG
