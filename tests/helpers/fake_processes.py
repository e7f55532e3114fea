"""Several ranks in one process: each is a thread with its own copy of an algorithm and its own shard of the images."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from helpers.tiny_algorithms import tell
from swad.testbed.algorithms.base import Algorithm, Noise, StepContext
from swad.testbed.data.loaders import Batch
from swad.testbed.training import distributed


@dataclass
class Exchange:
    """Lets every rank deposit a tensor and read those of all ranks."""

    world: int
    slots: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.slots = [None] * self.world
        self.barrier = threading.Barrier(self.world, timeout=20)

    def all_gather(self, rank: int, tensor: Tensor) -> list[Tensor]:
        self.slots[rank] = tensor.detach().clone()
        self.barrier.wait()
        tensors = list(self.slots)
        self.barrier.wait()
        return tensors


@dataclass(frozen=True)
class ThreadDist(distributed.Dist):
    """The rank of a thread: collectives use the exchange, everything else is inherited."""

    exchange: Any = None

    def sum(self, tensor: Tensor) -> Tensor:
        return tensor.copy_(torch.stack(self.exchange.all_gather(self.rank, tensor)).sum(0))


def run_on_ranks(
    algorithm: Algorithm,
    world: int,
    function: Callable[[Algorithm, Batch, StepContext], Any],
    batch: Batch,
    monkeypatch: Any,
) -> list[Any]:
    """Call a function on every rank with its copy and its shard, and return all results."""
    exchange, groups = Exchange(world), algorithm.n_domains
    ranks = threading.local()

    def all_gather(parts: list[Tensor], own: Tensor) -> None:
        for part, tensor in zip(parts, exchange.all_gather(ranks.rank, own), strict=True):
            part.copy_(tensor)

    monkeypatch.setattr(distributed.torch_dist, "all_gather", all_gather)

    def run(rank: int) -> Any:
        ranks.rank = rank
        dist = ThreadDist(torch.device("cpu"), rank, world, exchange)
        own = copy.deepcopy(algorithm)
        tell(own, gather=partial(dist.gather, groups), local_shard=partial(dist.local_shard, groups))
        images, labels = (dist.local_shard(groups, rows) for rows in (batch.images, batch.labels))
        return function(own, Batch(batch.step, images, labels), StepContext(average_gradients=dist.average_gradients))

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(run, range(world)))


def require_same_step(algorithm: Algorithm, batch: Batch, noise: Noise, monkeypatch: Any, world: int = 2) -> None:
    """Require that several ranks make the step of one process: same weights, buffers and mean loss."""

    def step(own: Algorithm, shard: Batch, ctx: StepContext) -> tuple[Tensor, dict[str, Tensor]]:
        for optimizer in own.optimizers.values():
            for group in optimizer.param_groups:
                group["eps"] = group["lr"] = 1.0  # otherwise Adam's first step is a sign, which rounding can flip
        return own.update(shard, noise, ctx), own.state_dict()

    alone = copy.deepcopy(algorithm)
    loss, state = step(alone, batch, StepContext())
    before = algorithm.state_dict()
    assert any(not before[name].equal(tensor) for name, tensor in state.items())
    results = run_on_ranks(algorithm, world, step, batch, monkeypatch)
    torch.testing.assert_close(torch.stack([rank_loss for rank_loss, _ in results]).mean(), loss, rtol=1e-5, atol=1e-6)
    for _, other in results:
        for name, tensor in state.items():
            torch.testing.assert_close(other[name], tensor, rtol=0, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}")
