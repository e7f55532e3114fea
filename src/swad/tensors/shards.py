"""This rank's values of a tensor, which under FSDP2 are a shard, and the dtype to sum them in.

FSDP2 is tested with torch 2.7 and newer, because torch 2.6 has it on GPUs alone.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn


def is_sharded(tensor: Tensor) -> bool:
    """Whether the tensor is a DTensor, so that this rank has only a shard."""
    return hasattr(tensor, "_local_tensor")


def shard(tensor: Tensor) -> Tensor:
    """Return this rank's values, in the same memory and graph."""
    return cast(Tensor, getattr(tensor, "_local_tensor", tensor))


def local(tensor: Tensor) -> Tensor:
    """Return this rank's values, detached, in the same memory."""
    return shard(tensor).detach()


def like(tensor: Tensor, values: Tensor) -> Tensor:
    """Return this rank's `values` as the shard of a tensor that is distributed like `tensor`."""
    if not is_sharded(tensor):
        return values
    from torch.distributed.tensor import DTensor

    whole = cast(DTensor, tensor)
    return DTensor.from_local(
        values, whole.device_mesh, whole.placements, run_check=False, shape=whole.shape, stride=whole.stride()
    )


def localized(target: Tensor, source: Tensor) -> Tensor:
    """Return this rank's shard of `source`, which is a whole tensor or distributed like `target`."""
    if is_sharded(source) or not is_sharded(target):
        return local(source)
    from torch.distributed.tensor import DTensor, distribute_tensor

    whole = cast(DTensor, target)
    return local(distribute_tensor(source.to(target.device), whole.device_mesh, whole.placements))


def reshard(model: nn.Module) -> None:
    """Make FSDP2 gather the parameters again at the next forward, since their shards change."""
    for module in model.modules():
        if callable(reshard_module := getattr(module, "reshard", None)) and hasattr(module, "unshard"):
            reshard_module()


def accumulator(tensor: Tensor) -> torch.dtype:
    """Return the dtype to sum in: float32, or the tensor's own where that is wider."""
    return torch.promote_types(tensor.dtype, torch.float32)
