"""One run on one process or several: who we are, and sums over everyone.

Started by ``torchrun``, a run splits every batch and every evaluation over its processes and averages gradients, so
that its numbers are those of one process with the same images. The first process alone writes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class Dist:
    """The processes of a run, seen from one of them."""

    device: torch.device
    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over the processes, in place; every process gets the same."""
        if self.world > 1:
            dist.all_reduce(tensor)
        return tensor

    def any(self, flag: bool) -> bool:
        """Whether any process says so; all get the same answer."""
        if self.world == 1:
            return flag
        return bool(self.sum(torch.tensor(float(flag), device=self.device)).item())

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Make every gradient the mean over the processes."""
        self.average([p.grad for p in parameters if p.grad is not None])

    def average(self, tensors: list[Tensor]) -> None:
        """Make every tensor its mean over the processes, with one message for all of a kind."""
        if self.world == 1:
            return
        with torch.no_grad():
            for kind in {tensor.dtype for tensor in tensors}:
                same = [tensor for tensor in tensors if tensor.dtype is kind]
                flat = torch.cat([tensor.reshape(-1) for tensor in same])
                self.sum(flat).div_(self.world)
                parts = torch.split(flat, [tensor.numel() for tensor in same])
                for tensor, part in zip(same, parts, strict=True):
                    tensor.copy_(part.view_as(tensor))

    def gather(self, groups: int, rows: Tensor) -> Tensor:
        """The rows of all processes, each group's together as in one process; only this process's carry gradients.

        Those are multiplied by the number of processes, so that the mean over the processes of the gradients of a loss
        that all of them compute is the gradient in one process.
        """
        if self.world == 1:
            return rows
        own = rows.detach().contiguous()
        parts = [torch.empty_like(own) for _ in range(self.world)]
        dist.all_gather(parts, own)
        parts[self.rank] = _times(rows, self.world)
        grouped = torch.stack([part.reshape(groups, -1, *rows.shape[1:]) for part in parts], dim=1)
        return grouped.flatten(0, 2)

    def mine(self, groups: int, rows: Tensor) -> Tensor:
        """This process's share of rows that are the same in all: of every group the same part."""
        if self.world == 1:
            return rows
        return rows.reshape(groups, self.world, -1, *rows.shape[1:])[:, self.rank].flatten(0, 1)

    def tell(self, value: str | None) -> str | None:
        """Give the first process's text to all."""
        if self.world == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]


class _Times(torch.autograd.Function):
    """The same value, and a gradient so many times as large."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, factor: int) -> Tensor:
        ctx.factor = factor
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.factor, None


def _times(value: Tensor, factor: int) -> Tensor:
    return _Times.apply(value, factor) if value.requires_grad else value


@contextmanager
def team(device: str) -> Iterator[Dist]:
    """The processes this one was started with by ``torchrun``, or this one alone."""
    world = dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE", "1"))
    place = torch.device(device)
    if world == 1:
        # Streams, graphs and kernels are made on the current device, whatever their tensors say.
        with torch.cuda.device(place) if place.type == "cuda" else nullcontext():
            yield Dist(place)
        return
    if place.type == "cuda":
        place = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(place)
    ours = not dist.is_initialized()
    if ours:
        dist.init_process_group("nccl" if place.type == "cuda" else "gloo")
    try:
        yield Dist(place, dist.get_rank(), dist.get_world_size())
    finally:
        if ours:
            dist.destroy_process_group()
