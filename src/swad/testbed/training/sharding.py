"""Fully sharded training (FSDP2): each process holds a share of parameters, gradients, optimizer state and averages.

A block gathers its parameters when it computes, and gives them back afterwards. Checkpoints and weights files hold
whole tensors, so a run may resume with another number of processes or without sharding. Evaluations use a plain copy of
the network: processes evaluate different numbers of batches, and a gathering network would wait for the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from swad.tensors.shards import is_sharded

State = TypeVar("State")


def shard(module: nn.Module, device: torch.device, world_size: int) -> None:
    """Shard a module over all processes: every block of its networks is gathered on its own, the rest together."""
    # Imported here because it takes a while and few runs need it.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (world_size,))
    for block in _blocks(module):
        fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost modules with trained parameters that stand in a row: residual blocks, transformer blocks."""
    for child in module.children():
        in_a_row = isinstance(module, nn.Sequential | nn.ModuleList)
        if in_a_row and any(param.requires_grad for param in child.parameters()):
            yield child
        else:
            yield from _blocks(child)


def whole(state: State) -> State:
    """Return a state with whole tensors instead of shards. Every process must call it."""
    gathered: State = tree_map_only(Tensor, _whole, state)
    return gathered


def _whole(tensor: Tensor) -> Tensor:
    return cast(Any, tensor).full_tensor() if is_sharded(tensor) else tensor


def like(tensor: Tensor, values: Tensor) -> Tensor:
    """Return whole values as this process's shard, if `tensor` is sharded. Every process must call it."""
    if not is_sharded(tensor):
        return values
    from torch.distributed.tensor import distribute_tensor

    sharded = cast(Any, tensor)
    return distribute_tensor(values.to(tensor.device), sharded.device_mesh, sharded.placements)


def shard_state(module: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state of a module, saved as whole tensors, in the shards of the module."""
    current = module.state_dict()
    return {name: like(current[name], values) if name in current else values for name, values in state.items()}


def shard_optimizer_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of an optimizer, saved as whole tensors, in the shards of its parameters."""
    sharded = {}
    for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
        for param, number in zip(group["params"], saved["params"], strict=True):
            values = state["state"].get(number, {})
            # Moments have the shape of their parameter; the number of steps has none.
            sharded[number] = {
                name: like(param, value) if isinstance(value, Tensor) and value.shape == param.shape else value
                for name, value in values.items()
            }
    return {**state, "state": sharded}
