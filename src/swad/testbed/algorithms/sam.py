"""SAM: step with the gradient at the worst point nearby, so that the whole neighborhood has a low loss.

Foret, Kleiner, Mobahi and Neyshabur, "Sharpness-Aware Minimization for Efficiently Improving Generalization", ICLR
2021. With the gradient g of the loss at the weights w,

    w' = w + rho * g / |g|,    then the optimizer steps from w with the gradient of the loss at w'.

- |g| is the norm of all gradients as one vector, with nothing added to it. Where it is 0 there is no direction, and
  w' = w.
- The weights are copied back before the step rather than subtracted back, so they are the same to the last bit.
- Both gradients use the same images and the same noise, but each pass has dropout masks of its own, as in public code.
  Clipping applies to the second gradient, with which the optimizer steps; the first only gives a direction.
- Several processes average the first gradient too. All of them move to the same point, that of one process. (Foret et
  al. let every device use its own share of the batch, which makes results depend on the number of devices.)
- Buffers of the algorithm take the values that the first pass, at w, computed. Batch norms that are trained
  (`--no-freeze-bn`) update their running statistics in both passes, so also at w'.

The reported loss is the one at w, so it can be compared with other algorithms.

SAM can be combined with any algorithm that steps on one loss: `coral+sam` minimizes CORAL's loss with SAM's gradient.
`sam` alone is SAM with ERM. It takes twice as many passes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from swad.tensors.swapping import restored
from swad.testbed.algorithms import AlgorithmError
from swad.testbed.algorithms._helpers import parameters_of
from swad.testbed.algorithms.base import Algorithm, Batch, Noise, StepContext
from swad.testbed.algorithms.erm import ERM
from swad.testbed.algorithms.hyperparameters import Choice, Hyperparameters, hyper

AFTER = "_after"
"""Ends the name of the noise of the second pass, where it differs from that of the first."""


def _for_both_passes(dropout_masks: tuple[str, ...]) -> tuple[str, ...]:
    return (*dropout_masks, *(name + AFTER for name in dropout_masks))


@dataclass(frozen=True)
class SAMHyperparameters(Hyperparameters):
    """The common hyperparameters and the distance of the ascent."""

    rho: float = hyper(0.05, Choice((0.01, 0.02, 0.05, 0.1)), "distance of the ascent before the gradient is taken")


class SAMUpdate(Algorithm):
    """The sharpness-aware step, for any loss."""

    hyperparameters: SAMHyperparameters
    dropout_masks = _for_both_passes(Algorithm.dropout_masks)
    adds_first_gradient: ClassVar[bool] = False
    """Whether the optimizer steps with the sum of both gradients, and not with the second alone."""

    def update(self, batch: Batch, noise: Noise, ctx: StepContext) -> Tensor:
        """Ascend, take the gradient there, restore the weights, and step with that gradient."""
        weights = parameters_of(self.optimizers.values())
        loss = self.backward(self.loss, batch, noise, ctx)
        pending = dict(self.pending_buffers)
        ctx.average_gradients(weights)
        first = {weight: weight.grad for weight in weights if weight.grad is not None}
        with restored(weights):
            self._ascend(first)
            noise_after = {name: noise.get(name + AFTER, rows) for name, rows in noise.items()}
            self.backward(self.loss, batch, noise_after, ctx)
        if self.adds_first_gradient:
            for weight, grad in first.items():
                weight.grad = grad if weight.grad is None else weight.grad.add_(grad)
        self.pending_buffers = pending
        self.step(ctx, *self.optimizers)
        return loss

    def ascent(self, norm: Tensor) -> Tensor:
        """Return the ascent as a multiple of the gradient, whose norm is above 0."""
        return self.hyperparameters.rho / norm

    @torch.no_grad()
    def _ascend(self, gradients: Mapping[nn.Parameter, Tensor]) -> None:
        """Move the weights along their gradients, which are overwritten if they are not needed any more."""
        moved: list[Tensor] = list(gradients)
        grads = list(gradients.values())
        norm = nn.utils.get_total_norm(grads)
        factor = torch.where(norm > 0, self.ascent(norm), 0)
        if self.adds_first_gradient:
            grads = list(torch._foreach_mul(grads, factor))
        else:
            torch._foreach_mul_(grads, factor)
        torch._foreach_add_(moved, grads)


class SAM(SAMUpdate, ERM):
    """Mean cross entropy, minimized with the gradient at the perturbed weights."""

    paper = "Foret et al.: Sharpness-Aware Minimization for Efficiently Improving Generalization. ICLR, 2021."
    needs = ("two passes",)
    Hyperparameters = SAMHyperparameters


def combine(algorithm: type[Algorithm], sharpness_aware: type[Algorithm]) -> type[Algorithm]:
    """Combine an algorithm with SAM or one of its kind: a subclass of both, with the hyperparameters of both.

    Args:
        algorithm: The algorithm whose loss is minimized.
        sharpness_aware: An algorithm that minimizes ERM's loss by a sharpness-aware step, such as `SAM`.
    """
    name, step = sharpness_aware.__name__, sharpness_aware.__bases__[0]  # the bases are the step and ERM
    if algorithm is ERM:
        return sharpness_aware
    if issubclass(algorithm, SAMUpdate):
        raise AlgorithmError(
            f"{name} can be applied to an algorithm without a sharpness-aware step, got {algorithm.__name__}: "
            f"remove +{name.lower()}"
        )
    if algorithm.update is not Algorithm.update:
        raise AlgorithmError(
            f"{name} needs an algorithm that steps on one loss, but {algorithm.__name__} has an update of its own: "
            f"use it without +{name.lower()}"
        )
    common = {field.name for field in dataclasses.fields(Hyperparameters)}
    # Declared again and not inherited: of the fields that both have, the algorithm's defaults count (ARM's batch size),
    # and a search of 2020 draws in this order.
    added = [
        (field.name, field.type, dataclasses.field(default=field.default, metadata=field.metadata))
        for field in dataclasses.fields(sharpness_aware.Hyperparameters)
        if field.name not in common
    ]
    own = {field.name for field in dataclasses.fields(algorithm.Hyperparameters)}
    if both := sorted(own & {key for key, *_ in added}):
        raise AlgorithmError(
            f"{name} has the hyperparameter {both[0]}, and so has {algorithm.__name__}: rename it to combine them"
        )
    attributes: dict[str, Any] = {
        "__doc__": f"{algorithm.__doc__}\n\nMinimized with the sharpness-aware step of {name}.",
        "__module__": algorithm.__module__,
        "paper": f"{algorithm.paper} With {sharpness_aware.paper}".lstrip(),
        "needs": tuple(dict.fromkeys((*algorithm.needs, *sharpness_aware.needs))),
        "dropout_masks": _for_both_passes(algorithm.dropout_masks),
        "Hyperparameters": dataclasses.make_dataclass(
            f"{algorithm.__name__}{name}Hyperparameters", added, bases=(algorithm.Hyperparameters,), frozen=True
        ),
    }
    return type(f"{algorithm.__name__}{name}", (step, algorithm), attributes)


ALGORITHM = SAM
