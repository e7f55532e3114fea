"""What the trainer tells an algorithm: once about the run, and in every step how the step is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def _no_reduction(parameters: Iterable[nn.Parameter]) -> None:
    """Average gradients over one process: nothing to do."""


def _identity(rows: Tensor) -> Tensor:
    return rows


@dataclass(frozen=True)
class RunInfo:
    """The run that trains an algorithm, as far as the algorithm may know it.

    Args:
        domain_sizes: Training images of every source domain.
        seed: Seed of the run.
        total_steps: Optimizer steps of the run; 0 if unknown.
        n_preparation: Updates before step 1: those of `preparation_steps`.
        image_shape: Channels, height and width of the images.
        image_mean: The mean that was subtracted from every channel.
        image_std: The standard deviation that every channel was divided by afterwards.
        pooled: Whether the images of a batch are of all domains together, and not equally many of each.
        optimizer: The optimizer of the network, adam or sgd.
        momentum: Momentum of SGD.
        lr_scale: Factor on the learning rate of the hyperparameters.
        gather: Returns the rows of the whole batch for those of this process.
        local_shard: Returns the rows of this process for those of the whole batch.
    """

    domain_sizes: tuple[int, ...]
    seed: int = 0
    total_steps: int = 0
    n_preparation: int = 0
    image_shape: tuple[int, int, int] = (3, 224, 224)
    image_mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    image_std: tuple[float, ...] = (1.0, 1.0, 1.0)
    pooled: bool = False
    optimizer: Literal["adam", "sgd"] = "adam"
    momentum: float = 0.9
    lr_scale: float = 1.0
    gather: Callable[[Tensor], Tensor] = _identity
    local_shard: Callable[[Tensor], Tensor] = _identity


@dataclass(frozen=True)
class StepContext:
    """How the trainer wants a step computed.

    Args:
        autocast: Opens the mixed-precision context of forward passes.
        average_gradients: Averages the gradients of parameters over the processes, after backward.
        clip: Largest norm of the gradients; None for no clipping.
        data_parallel: Computes the loss of an algorithm that keeps `update`, and averages its gradients during backward
            instead of after it (DDP). None with one process, and for algorithms with an update of their own.
    """

    autocast: Callable[[], AbstractContextManager[object]] = nullcontext
    average_gradients: Callable[[Iterable[nn.Parameter]], None] = _no_reduction
    clip: float | None = None
    data_parallel: DistributedDataParallel | None = None

    def no_sync(self) -> AbstractContextManager[object]:
        """Open the context of all backward passes of a step but the last: gradients need not be averaged yet."""
        return nullcontext() if self.data_parallel is None else self.data_parallel.no_sync()
