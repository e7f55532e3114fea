"""SAM: step with the gradient at the worst point nearby, so that the whole neighborhood has a low loss.

Foret, Kleiner, Mobahi and Neyshabur, "Sharpness-Aware Minimization for Efficiently Improving Generalization", ICLR
2021. With the gradient g of the loss at the weights w,

    w' = w + rho * g / |g|,    then the optimizer steps from w with the gradient of the loss at w'.

- |g| is the norm of all gradients as one vector, with nothing added to it. Where it is 0 there is no direction, and
  w' = w.
- The weights are copied back before the step rather than subtracted back, so they are the same to the last bit.
- Both gradients use the same images and the same noise. Clipping applies to the second gradient, with which the
  optimizer steps; the first only gives a direction.
- Several processes average the first gradient too. All of them move to the same point, that of one process. (Foret et
  al. let every device use its own share of the batch, which makes results depend on the number of devices.)
- Buffers take the values that the first pass, at w, computed.

The reported loss is the one at w, so it can be compared with other algorithms.

SAM can be combined with any algorithm that steps on one loss: `coral+sam` minimizes CORAL's loss with SAM's gradient.
`sam` alone is SAM with ERM. It takes twice as many passes.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from swad.algorithms._errors import AlgorithmError
from swad.algorithms.base import Algorithm, Batch, Noise, StepContext
from swad.algorithms.erm import ERM
from swad.algorithms.hyperparameters import Choice, Hyperparameters, hyper
from swad.averaging.tensors import restored


def _rho() -> Any:
    return hyper(0.05, Choice((0.01, 0.02, 0.05, 0.1)), "distance of the ascent before the gradient is taken")


@dataclass(frozen=True)
class SAMHyperparameters(Hyperparameters):
    """The common hyperparameters and the distance of the ascent."""

    rho: float = _rho()


class SAMUpdate(Algorithm):
    """The sharpness-aware step, for any loss."""

    hyperparameters: SAMHyperparameters

    def update(self, batch: Batch, noise: Noise, ctx: StepContext) -> Tensor:
        """Ascend, take the gradient there, restore the weights, and step with that gradient."""
        weights = [
            weight
            for optimizer in self.optimizers.values()
            for group in optimizer.param_groups
            for weight in group["params"]
        ]
        loss = self._backward(batch, noise, ctx)
        pending = dict(self.pending_buffers)
        ctx.average_gradients(weights)
        with restored(weights):
            self._ascend(weights)
            self._backward(batch, noise, ctx)
        self.pending_buffers = pending
        self.step(ctx, *self.optimizers)
        self.apply_pending_buffers()
        return loss

    def _backward(self, batch: Batch, noise: Noise, ctx: StepContext) -> Tensor:
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        with ctx.autocast():
            loss = self.loss(batch, noise)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    @torch.no_grad()
    def _ascend(self, weights: list[nn.Parameter]) -> None:
        """Move the weights by rho along their gradients, which are overwritten."""
        moved: list[Tensor] = [weight for weight in weights if weight.grad is not None]
        grads = [weight.grad for weight in moved if weight.grad is not None]
        norm = nn.utils.get_total_norm(grads)
        torch._foreach_mul_(grads, torch.where(norm > 0, self.hyperparameters.rho / norm, 0))
        torch._foreach_add_(moved, grads)


class SAM(SAMUpdate, ERM):
    """Mean cross entropy, minimized with the gradient at the perturbed weights."""

    paper = "Foret et al.: Sharpness-Aware Minimization for Efficiently Improving Generalization. ICLR, 2021."
    needs = ("two passes",)
    Hyperparameters = SAMHyperparameters


def wrap_with_sam(algorithm: type[Algorithm]) -> type[Algorithm]:
    """Combine SAM with another algorithm: a subclass of both, with `rho` added to its hyperparameters."""
    if algorithm is ERM:
        return SAM
    if issubclass(algorithm, SAMUpdate):
        raise AlgorithmError(f"SAM can be applied once, but {algorithm.__name__} already uses it: remove one +sam")
    if algorithm.update is not Algorithm.update:
        raise AlgorithmError(
            f"SAM needs an algorithm that steps on one loss, but {algorithm.__name__} has an update of its own: "
            "use it without +sam"
        )
    attributes: dict[str, Any] = {
        "__doc__": f"{algorithm.__doc__}\n\nMinimized with SAM's gradient at the perturbed weights.",
        "__module__": algorithm.__module__,
        "paper": f"{algorithm.paper} With {SAM.paper}".lstrip(),
        "needs": tuple(dict.fromkeys((*algorithm.needs, *SAM.needs))),
        "Hyperparameters": dataclasses.make_dataclass(
            f"{algorithm.__name__}SAMHyperparameters",
            [("rho", float, _rho())],
            bases=(algorithm.Hyperparameters,),
            frozen=True,
        ),
    }
    return type(f"{algorithm.__name__}SAM", (SAMUpdate, algorithm), attributes)


ALGORITHM = SAM
