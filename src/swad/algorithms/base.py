"""What every algorithm is: a predictor, a loss over a batch of domains, and a way to step.

The rules that let one file be enough, and let a step be held in a CUDA graph, computed twice, shared by several
processes and gone on with after a stop:

- `loss` is pure: all chance, and all that depends on the number of the step, comes in `noise`, drawn before it. What a
  buffer shall hold after the step goes into `self.pending_buffers`, never into the buffer.
- Nothing in a step waits for the device: no `.item()`, no `if` on a tensor, no shape that depends on values.
- Behavior that changes on the way has a name, `phase(step)`; a graph is captured for each.
- The network is called through `self.features`, `self.head` and `self.predict`, which may be compiled: one backward
  pass for each call, and never a second derivative.
- Under several processes a step's `batch` is a share of the images, while `noise` is the same for all. `gather` makes
  whole-batch rows of a share's rows, `mine` a share of whole-batch rows; a loss of gathered rows is that of one
  process, and so are its gradients. `features` and `predict` leave gathering to the caller, `scores` gathers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from swad.algorithms import hyperparameters as hp
from swad.data.loaders import Batch
from swad.models import networks

Noise = Mapping[str, Tensor]
"""A step's random numbers, and whatever else depends on its number, by name."""


def _alone(parameters: Iterable[nn.Parameter]) -> None:
    """One process: its gradients are everyone's."""


def _all(rows: Tensor) -> Tensor:
    """One process: its rows are everyone's."""
    return rows


@dataclass(frozen=True)
class StepContext:
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
    """Whom to credit: "Authors: Title. Venue, year."."""
    needs: ClassVar[tuple[str, ...]] = ()
    """What it takes beyond one pass over the images: "domain labels", "two passes", "own optimizers", ..."""
    Hyperparameters: ClassVar[type[hp.Hyperparameters]] = hp.Hyperparameters
    min_per_domain: ClassVar[int] = 1
    """Fewest images of a domain the loss makes sense for."""
    min_domains: ClassVar[int] = 1
    """Fewest source domains the loss makes sense for."""
    views: ClassVar[int] = 1
    """Augmented views of every image the loss wants."""
    uncapturable: ClassVar[str] = ""
    """Why a CUDA graph cannot hold its step, if it cannot."""

    def __init__(self, predictor: nn.Module, hyperparameters: hp.Hyperparameters, n_domains: int) -> None:
        super().__init__()
        self.predictor = self.wrap_predictor(predictor, hyperparameters)
        self.hyperparameters = hyperparameters
        self.n_domains = n_domains
        self.pending_buffers: dict[str, Tensor] = {}
        # Set by whoever trains: channels, rows and columns of the images; then how processes share them.
        self.image_shape: tuple[int, int, int] | None = None
        self.gather: Callable[[Tensor], Tensor] = _all
        self.local_shard: Callable[[Tensor], Tensor] = _all
        self._features: Callable[[nn.Module, Tensor], Tensor] = networks.features
        self._predict: Callable[[nn.Module, Tensor], Tensor] = networks.scores

    @cached_property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """The optimizers by name, made when they are first asked for: by then the parameters are on their device."""
        return self.make_optimizers()

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """One Adam over the predictor; more where an algorithm trains more."""
        return {"main": self.adam(self.predictor.parameters())}

    @classmethod
    def wrap_predictor(cls, network: nn.Module, hyperparameters: hp.Hyperparameters) -> nn.Module:
        """The predictor around a network, where an algorithm predicts in another way than by the network alone."""
        return network

    @classmethod
    def eval_group_size(cls, hyperparameters: hp.Hyperparameters) -> int | None:
        """How many images of a domain are evaluated together, where predictions depend on it; None where not."""
        return None

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """The loss of a domain-major batch: pure, so that it can be computed twice; all chance is in `noise`."""
        raise NotImplementedError

    def draw_randomness(self, generator: torch.Generator, step: int) -> dict[str, Tensor]:
        """Draw what a step needs, on the generator's device; rows are for the images of all processes."""
        drop = self.hyperparameters.dropout
        if not drop:
            return {}
        shape = (self.n_images, networks.head(self.predictor).in_features)
        kept = torch.rand(shape, generator=generator, device=generator.device) >= drop
        return {"dropout_mask": kept.float() / (1 - drop)}

    def update(self, batch: Batch, noise: Noise, ctx: StepContext) -> Tensor:
        """Make one step and return its loss, still on the device."""
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        with ctx.autocast():
            loss = self.loss(batch, noise)
        loss.backward()  # type: ignore[no-untyped-call]
        self.step(ctx, *self.optimizers)
        self.apply_pending_buffers()
        return loss.detach()

    def phase(self, step: int) -> str:
        """Which behavior update `step` has, where an algorithm changes it on the way."""
        return ""

    def on_phase_start(self, phase: str) -> None:
        """Called before the first update of a phase that is not the run's first; changes state in place only."""

    # -- for subclasses -------------------------------------------------------------------------------------------

    @property
    def n_images(self) -> int:
        """Images of a step, over all domains and processes."""
        return self.n_domains * self.hyperparameters.batch_size

    def by_domain(self, rows: Tensor) -> Tensor:
        """Whole-batch rows as `[domains, images of a domain, ...]`."""
        return rows.reshape(self.n_domains, -1, *rows.shape[1:])

    def features(self, images: Tensor) -> Tensor:
        """What the head sees of every image of this process."""
        return self._features(self.predictor, images)

    def head(self, features: Tensor) -> Tensor:
        """Class scores of features, in full precision."""
        return cast(Tensor, networks.head(self.predictor)(features)).float()

    def predict(self, images: Tensor) -> Tensor:
        """Class scores of this process's images, in full precision, without dropout."""
        return self._predict(self.predictor, images).float()

    def scores(self, batch: Batch, noise: Noise) -> Tensor:
        """Class scores of the whole batch, in full precision, with dropout before the head where it is asked for."""
        if "dropout_mask" not in noise:
            return self.gather(self.predict(batch.images))
        return self.head(self.head_inputs(batch, noise))

    def head_inputs(self, batch: Batch, noise: Noise) -> Tensor:
        """What the head sees of the whole batch: features, with dropout where it is asked for."""
        rows = self.gather(self.features(batch.images))
        return rows * noise["dropout_mask"] if "dropout_mask" in noise else rows

    def labels(self, batch: Batch) -> Tensor:
        """The labels of the whole batch."""
        return self.gather(batch.labels)

    def adam(self, parameters: Iterable[nn.Parameter], **options: Any) -> torch.optim.Adam:
        """The protocol's optimizer over some parameters; `options` (lr, weight_decay, betas) where they differ."""
        parameters = list(parameters)
        chosen = {"lr": self.hyperparameters.lr, "weight_decay": self.hyperparameters.weight_decay, **options}
        if parameters[0].is_cuda:
            # Rate and step count on the device, so that a captured step can follow a schedule.
            chosen["lr"] = torch.tensor(chosen["lr"], device=parameters[0].device)
            return torch.optim.Adam(parameters, fused=True, capturable=True, **chosen)
        return torch.optim.Adam(parameters, fused=True, **chosen)

    def step(self, ctx: StepContext, *names: str) -> None:
        """Average the gradients over processes, clip them, and let the named optimizers step."""
        held = [p for name in names for group in self.optimizers[name].param_groups for p in group["params"]]
        ctx.average_gradients(held)
        if ctx.clip is not None:
            nn.utils.clip_grad_norm_(held, ctx.clip)
        for name in names:
            self.optimizers[name].step()

    def apply_pending_buffers(self) -> None:
        """Write what the last loss left in `after` into the buffers of those names."""
        with torch.no_grad():
            for name, value in self.pending_buffers.items():
                self.get_buffer(name).copy_(value)
        self.pending_buffers = {}
