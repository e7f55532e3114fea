"""What every algorithm is: a predictor, a loss over a batch of domains, and a way to step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from swad import networks
from swad.algorithms import _hyper
from swad.batches import Batch

Noise = Mapping[str, Tensor]
"""A step's random numbers by name, one row per image, drawn before the step."""


def _alone(parameters: Iterable[nn.Parameter]) -> None:
    """One process: its gradients are everyone's."""


@dataclass(frozen=True)
class Stepping:
    """How a loss becomes a step on this machine: in which precision, averaged over which processes, clipped where."""

    autocast: Callable[[], AbstractContextManager[object]] = nullcontext
    average_gradients: Callable[[Iterable[nn.Parameter]], None] = _alone
    clip: float | None = None


class Algorithm(nn.Module):
    """A loss over a batch of domains. Write `loss`; the rest has defaults that fit most papers.

    What the class holds as module or buffer is saved in checkpoints; only `predictor` is evaluated, averaged and
    saved as a model. `optimizers` are kept by name, for checkpoints and learning-rate schedules.
    """

    paper: ClassVar[str]
    """Whom to credit."""
    Hyperparameters: ClassVar[type[_hyper.Hyperparameters]] = _hyper.Hyperparameters
    min_per_domain: ClassVar[int] = 1
    """Fewest images of a domain the loss makes sense for."""
    views: ClassVar[int] = 1
    """Augmented views of every image the loss wants."""

    def __init__(self, predictor: nn.Module, hyperparameters: _hyper.Hyperparameters, n_domains: int) -> None:
        super().__init__()
        self.predictor = predictor
        self.hyperparameters = hyperparameters
        self.n_domains = n_domains
        self.optimizers: dict[str, torch.optim.Optimizer] = {"main": self.adam(predictor.parameters())}

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """The loss of a domain-major batch: pure, so that it can be computed twice; all chance is in `noise`."""
        raise NotImplementedError

    def noise(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw a step's noise for the images of all processes, as `[domains, images of a domain, ...]`."""
        drop = self.hyperparameters.dropout
        if not drop:
            return {}
        shape = (self.n_domains, self.hyperparameters.batch_size, networks.head(self.predictor).in_features)
        kept = torch.rand(shape, generator=generator) >= drop
        return {"keep": kept.float() / (1 - drop)}

    def update(self, batch: Batch, noise: Noise, how: Stepping) -> Tensor:
        """Make one step and return its loss, still on the device."""
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        with how.autocast():
            loss = self.loss(batch, noise)
        loss.backward()  # type: ignore[no-untyped-call]
        how.average_gradients(self.parameters())
        if how.clip is not None:
            nn.utils.clip_grad_norm_(self.parameters(), how.clip)
        for optimizer in self.optimizers.values():
            optimizer.step()
        return loss.detach()

    def phase(self, step: int) -> str:
        """Which behaviour update `step` has, where an algorithm changes it on the way."""
        return ""

    # -- for subclasses -------------------------------------------------------------------------------------------

    def scores(self, batch: Batch, noise: Noise) -> Tensor:
        """The predictor's class scores, in full precision, with dropout before the head where it is asked for."""
        return networks.scores(self.predictor, batch.images, noise.get("keep")).float()

    def adam(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Adam:
        """The protocol's optimiser over some parameters."""
        return torch.optim.Adam(
            parameters, lr=self.hyperparameters.lr, weight_decay=self.hyperparameters.weight_decay, fused=True
        )
