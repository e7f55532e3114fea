"""Train in one process or in several: rank, world size, and the collectives that a run needs.

Started by ``torchrun`` or by a worker (`--processes`), the processes of a run share every batch and every evaluation
and average their gradients, so that the numbers equal those of one process with the same images. Only the main process
(rank 0) writes files.

Algorithms that step on one loss average their gradients in `DistributedDataParallel`, bucket by bucket while backward
still computes the others. An algorithm with an update of its own (SAM, MLDG, SagNet, DANN) has several backward passes
in a step, or gradients that belong to other weights than the present ones; it averages them itself, where its formula
needs them.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as torch_dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from swad.testbed.algorithms._helpers import scale_gradient
from swad.testbed.algorithms.base import Algorithm, Batch, Noise, StepContext
from swad.testbed.training.run_dir import RunError
from swad.util.names import one_line

_PARAMETERS = inspect.signature(DistributedDataParallel).parameters
_SYNC_BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in _PARAMETERS else "broadcast_buffers"  # torch < 2.13

WAIT_SECONDS = 10.0
"""Time after which a process reports that it is still waiting for the others."""

T = TypeVar("T")


@dataclass(frozen=True)
class Dist:
    """One process of a run. With a world size of 1 every collective is a no-op."""

    device: torch.device
    rank: int = 0
    world_size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes files."""
        return self.rank == 0

    @property
    def local_world_size(self) -> int:
        """Number of processes on this machine."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", self.world_size))

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all processes, in place."""
        if self.world_size > 1:
            torch_dist.all_reduce(tensor)
        return tensor

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        if self.world_size == 1:
            return flag
        return bool(self.sum(torch.tensor(float(flag), device=self.device)).item())

    def barrier(self) -> None:
        """Wait until every process has come this far."""
        self.any(False)  # torch's own barrier guesses the GPU from the rank

    def broadcast(self, value: T) -> T:
        """Return the main process's value in every process."""
        if self.world_size == 1:
            return value
        values = [value]
        torch_dist.broadcast_object_list(values, src=0, device=self.device)
        return values[0]

    def call_in_main(self, function: Callable[[], T], error_class: type[Exception]) -> T | None:
        """Call a function in the main process and return its result there; if it fails, the others raise as well.

        If it is interrupted, so are the others: they wait in the broadcast, where no signal reaches Python.
        """
        result, error = None, None
        if self.is_main:
            try:
                result = function()
            except (Exception, KeyboardInterrupt) as caught:  # of any kind: the others wait for the broadcast
                error = caught
        problem = self.broadcast(None if error is None else str(error) or type(error).__name__)
        if error is not None:
            raise error
        if problem == KeyboardInterrupt.__name__:
            raise KeyboardInterrupt
        if problem is not None:
            raise error_class(problem)
        return result

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace every gradient by its mean over the processes."""
        self.average([param.grad for param in parameters if param.grad is not None])

    def step_context(
        self,
        algorithm: Algorithm,
        autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
        clip: float | None = None,
        n_parts: int = 1,
    ) -> StepContext:
        """Return how the steps of an algorithm are computed, and how its gradients are averaged.

        Args:
            algorithm: The algorithm, on its device.
            autocast: Opens the mixed-precision context of forward passes.
            clip: Largest norm of the gradients; None for no clipping.
            n_parts: Parts of a batch over which gradients are accumulated.
        """
        kind = type(algorithm)
        if self.world_size == 1 or kind.update is not Algorithm.update:
            return StepContext(autocast, self.average_gradients, clip)
        # Within a phase every step does the same, as for a CUDA graph, but phases may use different parameters. A graph
        # that is declared static allows unused parameters at no cost, but its first step allows no accumulation.
        has_phases = kind.phase is not Algorithm.phase
        options: dict[str, Any] = {
            "static_graph": n_parts == 1 and not has_phases,
            "find_unused_parameters": has_phases,
        }
        options[_SYNC_BUFFERS] = False  # the trainer averages the statistics of batch norms
        data_parallel = DistributedDataParallel(_Loss(algorithm), gradient_as_bucket_view=True, **options)
        return StepContext(autocast, clip=clip, data_parallel=data_parallel)

    def average(self, tensors: list[Tensor]) -> None:
        """Replace every tensor by its mean over the processes, with one message per dtype."""
        if self.world_size == 1:
            return
        with torch.no_grad():
            for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):  # in the same order in every process
                same_dtype = [tensor for tensor in tensors if tensor.dtype is dtype]
                flat = torch.cat([tensor.reshape(-1) for tensor in same_dtype])
                self.sum(flat).div_(self.world_size)
                means = torch.split(flat, [tensor.numel() for tensor in same_dtype])
                for tensor, mean in zip(same_dtype, means, strict=True):
                    tensor.copy_(mean.view_as(tensor))

    def gather(self, n_groups: int, rows: Tensor) -> Tensor:
        """Return the rows of all processes in the order that one process would have: group by group.

        Only this process's rows carry gradients, multiplied by the world size. If every process computes the same loss
        from the gathered rows, the mean of the gradients over the processes is then the gradient in one process.
        """
        if self.world_size == 1:
            return rows
        local = rows.detach().contiguous()
        shards = [torch.empty_like(local) for _ in range(self.world_size)]
        torch_dist.all_gather(shards, local)
        shards[self.rank] = scale_gradient(rows, self.world_size)
        grouped = torch.stack([shard.reshape(n_groups, -1, *rows.shape[1:]) for shard in shards], dim=1)
        return grouped.flatten(0, 2)

    def local_shard(self, n_groups: int, rows: Tensor) -> Tensor:
        """Return this process's shard of rows that all processes hold; the inverse of `gather`."""
        if self.world_size == 1:
            return rows
        return rows.reshape(n_groups, self.world_size, -1, *rows.shape[1:])[:, self.rank].flatten(0, 1)


class _Loss(nn.Module):
    """The loss of an algorithm as a forward pass."""

    def __init__(self, algorithm: Algorithm) -> None:
        super().__init__()
        self.algorithm = algorithm

    def forward(self, batch: Batch, noise: Noise) -> Tensor:
        return self.algorithm.loss(batch, noise)


def launched() -> tuple[int, int]:
    """Return the rank and the world size that ``torchrun`` set; 0 and 1 for a process that it did not start."""
    rank, world_size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "1")
    if world_size == "1":
        return 0, 1
    if not (rank.isdecimal() and world_size.isdecimal() and int(rank) < int(world_size)):
        raise RunError(
            f"RANK must be from 0 to WORLD_SIZE - 1, got RANK={rank} and WORLD_SIZE={world_size}: start the processes "
            "with torchrun or --processes, or unset both to train in one process"
        )
    return int(rank), int(world_size)


def in_main_process() -> bool:
    """Whether this process writes files and reports, also before it has joined the others."""
    return (torch_dist.get_rank() if torch_dist.is_initialized() else launched()[0]) == 0


@contextmanager
def process_group(device: str) -> Iterator[Dist]:
    """Join the processes that ``torchrun`` started, or run alone, for the duration of the block.

    Args:
        device: Device of a single process. Under ``torchrun``, "cuda" becomes the GPU of the local rank.
    """
    already_joined = torch_dist.is_initialized()
    world_size = torch_dist.get_world_size() if already_joined else launched()[1]
    torch_device = torch.device(device)
    on_gpu = torch_device.type == "cuda"
    if world_size == 1:
        # Streams, graphs and kernels are created on the current device, not on that of their tensors.
        with torch.cuda.device(torch_device) if on_gpu else nullcontext():
            yield Dist(torch_device)
        return
    if on_gpu:
        torch_device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(torch_device)
    if not already_joined:
        _join("nccl" if on_gpu else "gloo")
    try:
        yield Dist(torch_device, torch_dist.get_rank(), torch_dist.get_world_size())
    finally:
        if not already_joined:
            torch_dist.destroy_process_group()


def _join(backend: str) -> None:
    """Wait for all processes; after some seconds, say so."""
    rank, world_size = launched()
    address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    waiting = f"rank {rank} is waiting for all {world_size} processes at {address}"
    timer = threading.Timer(WAIT_SECONDS, print, [waiting], {"file": sys.stderr, "flush": True})
    timer.daemon = True
    timer.start()
    try:
        torch_dist.init_process_group(backend)
    except (ValueError, RuntimeError) as error:  # a variable is missing, or a process did not come in time
        raise RunError(
            f"rank {rank} cannot join the {world_size} processes at {address}: {one_line(error, 200)}; all of "
            "them must start at about the same time and reach that address"
        ) from None
    finally:
        timer.cancel()
