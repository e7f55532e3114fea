"""The base class of algorithms: a predictor, a loss over a batch of domains, and a way to step.

Most algorithms override `loss` and nothing else. The trainer may capture a step in a CUDA graph, compute it twice
(SAM), split it over several processes, or repeat it after a resume. These rules make that possible:

- `loss` is pure. All randomness, and everything that depends on the step number, is drawn in `draw_randomness` and
  passed in as `noise`. A loss that updates a buffer puts the new value into `self.pending_buffers`, never into the
  buffer; `step` writes it.
- A step does not wait for the device: no `.item()`, no `if` on a tensor, no shape that depends on values.
- Behavior that changes during training has a name, `phase(step)`; each phase is captured in a graph of its own.
- The network is called through `self.features`, `self.head` and `self.predict`, which may be compiled: one backward
  pass for each call, and no second derivative.
- With several processes, `batch` is this process's shard of the images, while `noise` is the same for all. `gather`
  returns the rows of the whole batch, and `local_shard` this process's part of whole-batch rows. A loss over gathered
  rows has the value and the gradients that one process would compute. `features` and `predict` return local rows;
  `scores`, `head_inputs` and `labels` return gathered rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from functools import cached_property
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from swad.tensors.batch_norms import batch_norms, update_bn
from swad.testbed.algorithms import AlgorithmError
from swad.testbed.algorithms import hyperparameters as hp
from swad.testbed.algorithms._helpers import apply_mask, dropout_mask, is_dense, match_layouts, parameters_of
from swad.testbed.algorithms._trainer import RunInfo, StepContext
from swad.testbed.algorithms.recipe import Recipe
from swad.testbed.data.loaders import Batch
from swad.testbed.models import networks
from swad.util.names import listed

__all__ = ["Algorithm", "Batch", "Noise", "Recipe", "RunInfo", "StepContext"]

Noise = Mapping[str, Tensor]
"""The random numbers of a step, and other values that depend on its number, by name."""


class Algorithm(nn.Module):
    """A loss over a batch of domains. Override `loss`; the other methods have defaults that fit most papers.

    Checkpoints contain all modules and buffers of the algorithm. Only `predictor` is evaluated, averaged and exported.
    `optimizers` have names, for checkpoints and learning-rate schedules.

    Args:
        predictor: The network, from images to class scores.
        hyperparameters: An instance of the class's `Hyperparameters`.
        run_info: The run that trains it.
    """

    paper: ClassVar[str] = ""
    """The paper to credit: "Authors: Title. Venue, year."."""
    needs: ClassVar[tuple[str, ...]] = ()
    """What readers should know that it needs: "two passes", "own optimizers", ... `all_needs` adds domain labels."""
    groups_by_domain: ClassVar[bool] = False
    """Whether a step needs equally many images of every domain: pooled batches are then an error before the run."""
    mean_over_images: ClassVar[bool] = False
    """Whether the loss is a mean over the images, so that a batch may be split and its gradients accumulated."""
    Hyperparameters: ClassVar[type[hp.Hyperparameters]] = hp.Hyperparameters
    min_per_domain: ClassVar[int] = 1
    """Fewest images of a domain for which the loss is defined."""
    min_domains: ClassVar[int] = 1
    """Fewest source domains for which the loss is defined."""
    eager_only: ClassVar[bool] = False
    """Whether a step may do anything, with optimizers of its own: eager, in one process, at constant learning rates."""
    own_files: ClassVar[tuple[str, ...]] = ()
    """Further files in which an error is the user's own."""
    views: ClassVar[int] = 1
    """Number of augmented views of every image in a batch."""
    own_recipe: ClassVar[Recipe | None] = None
    """The settings of its own paper, for `--recipe own`, where they differ from the protocol's."""
    dropout_masks: ClassVar[tuple[str, ...]] = ("dropout_mask",)
    """Names of the dropout masks that a step draws: one for each pass that has a mask of its own."""
    constant_lr: ClassVar[tuple[str, ...]] = ()
    """Names of the optimizers whose learning rate follows no schedule."""

    def __init__(self, predictor: nn.Module, hyperparameters: hp.Hyperparameters, run_info: RunInfo) -> None:
        super().__init__()
        self.hyperparameters, self.run_info = hyperparameters, run_info
        self.n_domains = len(run_info.domain_sizes)
        self.predictor = self.wrap_predictor(predictor, hyperparameters, self.n_domains)
        self.pending_buffers: dict[str, Tensor] = {}
        self._features: Callable[[nn.Module, Tensor], Tensor] = networks.features
        self._predict: Callable[[nn.Module, Tensor], Tensor] = networks.scores

    # -- override as needed ---------------------------------------------------------------------------------------

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """Return the loss of a batch. Must be pure; all randomness is in `noise`.

        Images are sorted by domain, except in the pooled batches that some algorithms support.
        """
        raise AlgorithmError(
            f"an algorithm must have a loss, but {type(self).__name__} has none: define loss(batch, noise)"
        )

    def draw_randomness(self, generator: torch.Generator, step: int) -> dict[str, Tensor]:
        """Draw the random numbers of a step on the generator's device, with rows for the images of all processes.

        Call `super()` first or last, but always at the same place: the order of draws is part of the results.
        """
        dropout = self.hyperparameters.dropout
        if not dropout:
            return {}
        n_features = networks.head(self.predictor).in_features
        return {name: dropout_mask(generator, dropout, self.n_images, n_features) for name in self.dropout_masks}

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Return the optimizers by name: one over the predictor, unless the algorithm trains more."""
        return {"main": self.optimizer(self.predictor.parameters())}

    def update(self, batch: Batch, noise: Noise, ctx: StepContext) -> Tensor:
        """Make one step and return its loss, still on the device."""
        loss = self.backward(ctx.data_parallel or self.loss, batch, noise, ctx)
        self.step(ctx, *self.optimizers)
        return loss

    def accumulate(self, parts: Iterable[Batch], n_parts: int, ctx: StepContext) -> Tensor:
        """Make one step on the mean gradient of equal parts of a batch, and return the mean loss.

        It equals `update` on the whole batch if the loss is a mean over images that takes no random numbers. Batch
        norms see one part at a time.
        """
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        losses = []
        for number, part in enumerate(parts, start=1):
            with ctx.no_sync() if number < n_parts else nullcontext():
                with ctx.autocast():
                    loss: Tensor = (ctx.data_parallel or self.loss)(part, {}) / n_parts
                loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        self.step(ctx, *self.optimizers)
        return torch.stack(losses).sum()

    @classmethod
    def accumulates(cls) -> bool:
        """Whether `accumulate` equals `update`: one step on the mean over the images, without random numbers."""
        one_loss = cls.update is Algorithm.update and cls.draw_randomness is Algorithm.draw_randomness
        return one_loss and cls.mean_over_images and not cls.groups_by_domain

    @classmethod
    def all_needs(cls) -> tuple[str, ...]:
        """Return what it needs beyond one pass over the images, in words."""
        return (*["domain labels"] * cls.groups_by_domain, *cls.needs)

    def phase(self, step: int) -> str:
        """Return the name of the behavior that update `step` has, for algorithms that change it during training."""
        return ""

    def on_phase_start(self, phase: str) -> None:
        """Run before the first update of every phase but the first; may change state in place only."""

    @classmethod
    def preparation_steps(cls, hyperparameters: hp.Hyperparameters, steps: int) -> int:
        """Return how many updates come before a training of `steps` steps, for an algorithm that must learn something
        first. A run neither evaluates nor averages them and does not count them as steps.

        The numbers that `phase`, `draw_randomness` and batches get count them: the first step after them is number
        `n_preparation + 1`. A phase must start there.
        """
        return 0

    @classmethod
    def wrap_predictor(cls, network: nn.Module, hyperparameters: hp.Hyperparameters, n_domains: int) -> nn.Module:
        """Return the predictor for a network: the network itself, unless the algorithm predicts in another way.

        Saved predictors are loaded with the same arguments, so they hold all that the predictor's shape depends on.
        """
        return network

    @classmethod
    def eval_group_size(cls, hyperparameters: hp.Hyperparameters) -> int | None:
        """Return how many images of a domain are evaluated together, or None if predictions do not depend on it."""
        return None

    @classmethod
    def estimate_statistics(cls, predictor: nn.Module, batches: Iterable[Tensor]) -> bool:
        """Estimate the statistics of a predictor's batch norms, for averaged weights, on batches of training images.

        Images are sorted by domain, except in pooled batches.

        Return False if it has no batch norms.
        """
        if not batch_norms(predictor):
            return False
        update_bn(batches, predictor)
        return True

    # -- for use in subclasses ------------------------------------------------------------------------------------

    @cached_property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """The optimizers by name, made at the first use: by then the parameters are on their device."""
        try:
            optimizers = self.make_optimizers()
        except AttributeError as error:  # torch would report that there is no attribute `optimizers`
            raise RuntimeError(str(error)).with_traceback(error.__traceback__) from None
        name = type(self).__name__
        if not isinstance(optimizers, dict):
            raise AlgorithmError(
                f"make_optimizers must return a dict of optimizers by name, got {type(optimizers).__name__} from "
                f'{name}: return {{"main": self.optimizer(parameters)}}'
            )
        trained = {id(param) for param in parameters_of(optimizers.values())}
        missing = [key for key, param in self.named_parameters() if param.requires_grad and id(param) not in trained]
        if missing:
            raise AlgorithmError(
                f"every trainable parameter must be in an optimizer, but {listed(missing)} of {name} are in none: add "
                "them in make_optimizers, or freeze them in __init__ with requires_grad_(False); a copy of a network "
                "is frozen with networks.frozen_copy"
            )
        if views := [key for key, param in self.named_parameters() if id(param) in trained and not is_dense(param)]:
            raise AlgorithmError(
                f"a trainable parameter must be dense in memory, but {listed(views)} of {name} is a view of a larger "
                "tensor: make the parameter of a copy, with .contiguous()"
            )
        for optimizer in optimizers.values():
            optimizer.register_step_pre_hook(match_layouts)
        return optimizers

    @property
    def n_images(self) -> int:
        """Number of images in a step, over all domains and processes."""
        return (1 if self.run_info.pooled else self.n_domains) * self.hyperparameters.batch_size

    @property
    def lr(self) -> float:
        """The learning rate of the run: that of the hyperparameters, times the scale of the imagenet recipe."""
        return self.hyperparameters.lr * self.run_info.lr_scale

    def gather(self, rows: Tensor) -> Tensor:
        """Return the rows of the whole batch for those of this process."""
        return self.run_info.gather(rows)

    def local_shard(self, rows: Tensor) -> Tensor:
        """Return the rows of this process for those of the whole batch."""
        return self.run_info.local_shard(rows)

    def by_domain(self, rows: Tensor) -> Tensor:
        """Reshape rows that are sorted by domain to `[domains, images of a domain, ...]`."""
        if self.run_info.pooled:
            raise AlgorithmError(
                f"{type(self).__name__} groups images by domain, which pooled batches mix: use balanced batches, and "
                "declare groups_by_domain = True"
            )
        return rows.reshape(self.n_domains, -1, *rows.shape[1:])

    def domain_labels(self, rows: Tensor) -> Tensor:
        """Return the number of the domain of every row, for rows that are sorted by domain."""
        n_domains, n_images = self.by_domain(rows).shape[:2]
        return torch.arange(n_domains, device=rows.device).repeat_interleave(n_images)

    def features(self, images: Tensor) -> Tensor:
        """Return the features before the head, for local images."""
        return self._features(self.predictor, images)

    def head(self, features: Tensor) -> Tensor:
        """Return the class scores of features, in full precision."""
        return cast(Tensor, networks.head(self.predictor)(features)).float()

    def predict(self, images: Tensor) -> Tensor:
        """Return the class scores of local images, in full precision and without dropout."""
        return self._predict(self.predictor, images).float()

    def masked_scores(self, images: Tensor, mask: Tensor | None) -> Tensor:
        """Return the class scores of local images, in full precision, with their rows of a dropout mask, if any."""
        return self.predict(images) if mask is None else self.head(self.features(images) * mask)

    def scores(self, batch: Batch, noise: Noise) -> Tensor:
        """Return the class scores of the whole batch, in full precision, with dropout before the head if it is on."""
        if "dropout_mask" not in noise:
            return self.gather(self.predict(batch.images))
        return self.head(self.head_inputs(batch, noise))

    def head_inputs(self, batch: Batch, noise: Noise) -> Tensor:
        """Return the features of the whole batch as the head receives them: after dropout, if it is on."""
        return apply_mask(self.gather(self.features(batch.images)), noise.get("dropout_mask"))

    def labels(self, batch: Batch) -> Tensor:
        """Return the labels of the whole batch."""
        return self.gather(batch.labels)

    def optimizer(
        self, parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]], name: str | None = None, **options: Any
    ) -> torch.optim.Optimizer:
        """Return an optimizer with the hyperparameters' lr and weight decay.

        Args:
            parameters: Parameters, or groups of them with options of their own, as in torch.
            name: adam or sgd. Default: that of the run. Name adam where a learning rate makes sense for Adam only.
            options: Other values for all groups: lr, weight_decay, betas (which SGD ignores).
        """
        groups: list[Any] = list(parameters)
        if not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        options = {"lr": self.lr, "weight_decay": self.hyperparameters.weight_decay, **options}
        groups = [{**options, **group, "params": list(group["params"])} for group in groups]
        capturable = groups[0]["params"][0].is_cuda
        for group in groups if capturable else ():
            # The learning rate and the step count are tensors on the device, so that a captured step reads their
            # current values and can follow a schedule.
            group["lr"] = torch.tensor(group["lr"], device=group["params"][0].device)
        if (name or self.run_info.optimizer) == "adam":
            return torch.optim.Adam(groups, fused=True, capturable=capturable)
        groups = [{key: value for key, value in group.items() if key != "betas"} for group in groups]
        momentum = self.run_info.momentum
        optimizer = torch.optim.SGD(groups, momentum=momentum, fused=True)
        for group in optimizer.param_groups if momentum else ():
            for param in group["params"]:
                # torch makes these in the first step, which a graph must not capture, and for all parameters at once.
                optimizer.state[param]["momentum_buffer"] = torch.zeros_like(param)
        return optimizer

    def backward(
        self, compute_loss: Callable[[Batch, Noise], Tensor], batch: Batch, noise: Noise, ctx: StepContext
    ) -> Tensor:
        """Replace all gradients by those of a loss, and return the loss."""
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        with ctx.autocast():
            loss = compute_loss(batch, noise)
        if not (isinstance(loss, Tensor) and loss.ndim == 0 and loss.requires_grad):
            got = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) and loss.ndim else repr(loss)
            raise AlgorithmError(
                f"a loss must be a scalar tensor with a gradient, got {got} from {type(self).__name__}: return the "
                "mean over the images, without .item() or .detach()"
            )
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def step(self, ctx: StepContext, *names: str) -> None:
        """Average the gradients over the processes, clip them, step the named optimizers, and write pending buffers."""
        params = parameters_of(self.optimizers[name] for name in names)
        ctx.average_gradients(params)
        if ctx.clip is not None:
            nn.utils.clip_grad_norm_(params, ctx.clip)
        for name in names:
            self.optimizers[name].step()
        self.apply_pending_buffers()

    def reset_optimizers(self) -> None:
        """Reset the optimizers to their start in place: a captured graph keeps reading the same tensors."""
        for optimizer in self.optimizers.values():
            for state in optimizer.state.values():
                for value in state.values():
                    if isinstance(value, Tensor):
                        value.zero_()

    @torch.no_grad()
    def apply_pending_buffers(self) -> None:
        """Copy the values that the last loss left in `pending_buffers` into the buffers of those names."""
        buffers = dict(self.named_buffers()) if self.pending_buffers else {}
        for name, value in self.pending_buffers.items():
            if name not in buffers or buffers[name].shape != value.shape:
                raise AlgorithmError(
                    f"pending_buffers must be new values of buffers, got {name!r} of shape {tuple(value.shape)} from "
                    f"{type(self).__name__}: register a buffer with this name and shape in __init__"
                )
            buffers[name].copy_(value)
        self.pending_buffers = {}

    def compile_forward(self, compile: Callable[[Any], Any]) -> None:
        """Compile the two functions through which the network is called."""
        self._features, self._predict = compile(self._features), compile(self._predict)
