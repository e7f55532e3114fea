"""Several processes played by threads: each with its copy of an algorithm and its share of the images."""

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

from swad.algorithms.base import Algorithm, Noise, StepContext
from swad.data.loaders import Batch
from swad.training import distributed


@dataclass
class Room:
    """Where tensors are laid down for the others, and waited for."""

    world: int
    slots: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.slots = [None] * self.world
        self.barrier = threading.Barrier(self.world, timeout=20)

    def exchange(self, rank: int, tensor: Tensor) -> list[Tensor]:
        self.slots[rank] = tensor.detach().clone()
        self.barrier.wait()
        found = list(self.slots)
        self.barrier.wait()
        return found


@dataclass(frozen=True)
class Player(distributed.Dist):
    """A process played by a thread: collectives go through a room, the rest is that of `Dist`."""

    room: Any = None

    def sum(self, tensor: Tensor) -> Tensor:
        return tensor.copy_(torch.stack(self.room.exchange(self.rank, tensor)).sum(0))


def together(
    algorithm: Algorithm,
    world: int,
    act: Callable[[Algorithm, Batch, StepContext], Any],
    batch: Batch,
    monkeypatch: Any,
) -> list[Any]:
    """Let every player do something with its copy and its share; returns what each returned."""
    room, groups = Room(world), algorithm.n_domains
    ranks = threading.local()

    def all_gather(parts: list[Tensor], own: Tensor) -> None:
        for part, found in zip(parts, room.exchange(ranks.rank, own), strict=True):
            part.copy_(found)

    monkeypatch.setattr(distributed.torch_dist, "all_gather", all_gather)

    def play(rank: int) -> Any:
        ranks.rank = rank
        dist = Player(torch.device("cpu"), rank, world, room)
        own = copy.deepcopy(algorithm)
        own.gather, own.local_shard = partial(dist.gather, groups), partial(dist.local_shard, groups)
        images, labels = (dist.local_shard(groups, rows) for rows in (batch.images, batch.labels))
        return act(own, Batch(batch.step, images, labels), StepContext(average_gradients=dist.average_gradients))

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(play, range(world)))


def require_same_step(algorithm: Algorithm, batch: Batch, noise: Noise, monkeypatch: Any, world: int = 2) -> None:
    """One step of several processes is that of one: weights, buffers, and the mean of the losses."""

    def step(own: Algorithm, share: Batch, ctx: StepContext) -> tuple[Tensor, dict[str, Tensor]]:
        for optimizer in own.optimizers.values():
            for group in optimizer.param_groups:
                group["eps"] = group["lr"] = 1.0  # else the first step of Adam is a sign, and rounding turns it
        return own.update(share, noise, ctx), own.state_dict()

    alone = copy.deepcopy(algorithm)
    loss, state = step(alone, batch, StepContext())
    before = algorithm.state_dict()
    assert any(not before[name].equal(tensor) for name, tensor in state.items())
    found = together(algorithm, world, step, batch, monkeypatch)
    torch.testing.assert_close(torch.stack([one for one, _ in found]).mean(), loss, rtol=1e-5, atol=1e-6)
    for _, other in found:
        for name, tensor in state.items():
            torch.testing.assert_close(other[name], tensor, rtol=0, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}")
