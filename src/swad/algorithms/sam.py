"""SAM: step by the gradient at the worst point nearby, so that the whole neighborhood has a low loss.

Foret, Kleiner, Mobahi and Neyshabur, "Sharpness-Aware Minimization for Efficiently Improving Generalization", ICLR
2021. With the gradient g of the loss at the weights w,

    w' = w + rho * g / |g|,    then the optimizer steps from w with the gradient of the loss at w'.

- |g| is the norm of all gradients as one vector, to which nothing is added; where it is 0 there is no direction, and
  w' = w.
- w is copied back before the step, not subtracted back, so it is what it was to the last bit.
- Both gradients see the same images with the same noise. Clipping cuts the second, which is the one that steps; the
  first counts by its direction alone.
- Several processes average the first gradient too, so that all climb to the same point, that of one process. (Foret
  et al. let every device climb by its own share of the batch, which makes results depend on their number.)
- What a loss leaves for its buffers is what the first pass, at w, left.

The loss that is reported is that at w, so that it can be read beside other methods'.

SAM goes over any method that steps on one loss: `coral+sam` is CORAL's loss, climbed. `sam` alone is over ERM. It takes
twice the passes.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from swad.algorithms._errors import AlgorithmError
from swad.algorithms.base import Algorithm, Noise, StepContext
from swad.algorithms.erm import ERM
from swad.algorithms.hyperparameters import Choice, Hyperparameters, hyper
from swad.averaging.tensors import restored
from swad.data.loaders import Batch


def _rho() -> Any:
    return hyper(0.05, Choice((0.01, 0.02, 0.05, 0.1)), "how far it climbs before it takes the gradient")


@dataclass(frozen=True)
class SAMHyperparameters(Hyperparameters):
    """The common ones, and how far to climb."""

    rho: float = _rho()


class SAMUpdate(Algorithm):
    """The update of SAM, for any loss."""

    hyperparameters: SAMHyperparameters

    def update(self, batch: Batch, noise: Noise, ctx: StepContext) -> Tensor:
        """SAMUpdate, take the gradient there, come back, and step with it."""
        weights = [p for one in self.optimizers.values() for group in one.param_groups for p in group["params"]]
        loss = self._backward(batch, noise, ctx)
        after = dict(self.pending_buffers)
        ctx.average_gradients(weights)
        with restored(weights):
            self._climb(weights)
            self._backward(batch, noise, ctx)
        self.pending_buffers = after
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
    def _climb(self, weights: list[nn.Parameter]) -> None:
        """Move the weights by rho along their gradients, which are used up."""
        moved: list[Tensor] = [weight for weight in weights if weight.grad is not None]
        grads = [weight.grad for weight in moved if weight.grad is not None]
        norm = nn.utils.get_total_norm(grads)
        torch._foreach_mul_(grads, torch.where(norm > 0, self.hyperparameters.rho / norm, 0))
        torch._foreach_add_(moved, grads)


class SAM(SAMUpdate, ERM):
    """Mean cross entropy, by the gradient at the climbed point."""

    paper = "Foret et al.: Sharpness-Aware Minimization for Efficiently Improving Generalization. ICLR, 2021."
    needs = ("two passes",)
    Hyperparameters = SAMHyperparameters


def wrap_with_sam(kind: type[Algorithm]) -> type[Algorithm]:
    """SAM over another method's loss: a subclass of both, with `rho` beside that method's hyperparameters."""
    if kind is ERM:
        return SAM
    if issubclass(kind, SAMUpdate):
        raise AlgorithmError(f"SAM climbs once, and {kind.__name__} does already: leave one +sam away")
    if kind.update is not Algorithm.update:
        raise AlgorithmError(
            f"SAM climbs the one loss that a method steps on, and {kind.__name__} steps in a way of its own: "
            "use it without +sam"
        )
    own = kind.Hyperparameters
    fields: dict[str, Any] = {
        "__doc__": f"{kind.__doc__}\n\nBy the gradient at SAM's climbed point.",
        "__module__": kind.__module__,
        "paper": f"{kind.paper} With {SAM.paper}",
        "needs": tuple(dict.fromkeys((*kind.needs, *SAM.needs))),
        "Hyperparameters": dataclasses.make_dataclass(
            f"{kind.__name__}SAMHyperparameters", [("rho", float, _rho())], bases=(own,), frozen=True
        ),
    }
    return type(f"{kind.__name__}SAM", (SAMUpdate, kind), fields)


ALGORITHM = SAM
