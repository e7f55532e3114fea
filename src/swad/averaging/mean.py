"""The mean of several sums, written into a model or a state dict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from swad.averaging import tensors
from swad.averaging.sums import WeightSum
from swad.averaging.tensors import TrackedTensors

EXTRA = "_extra_state"
"""The key under which a state dict has what a module's `get_extra_state` returns."""


class Mean:
    """All sums added up and divided by their total weight, tensor by tensor, so that no second model is in memory."""

    def __init__(self, sums: Sequence[WeightSum], tracked: TrackedTensors) -> None:
        self._sums, self._tracked = sums, tracked
        self._total = sum(part.weight for part in sums)

    @torch.no_grad()
    def copy_to(self, target: TrackedTensors) -> None:
        """Copy the mean, the newest buffers and the excluded tensors into the target's model."""
        tensors.reshard(target.model)
        buffers = dict(zip(target.buffers, self._newest_buffers(), strict=True))
        held = dict(zip(target.buffers, target.held_buffers(), strict=True))
        tensors.require_match("the buffers of the average must have the shapes of the model's", held, buffers)
        for index, tensor in enumerate(target.live()):
            tensor.copy_(self._value(index, tensor.device))
        for name, tensor in held.items():
            tensor.copy_(buffers[name])
        if target is not self._tracked:
            excluded = target.live_excluded()
            for name, value in self._tracked.live_excluded().items():
                tensors.local(excluded[name]).copy_(tensors.local(value))

    @torch.no_grad()
    def state(self) -> dict[str, Any]:
        """Return a state dict of new tensors in the model's dtypes, and of the extra state of modules."""
        state: dict[str, Any] = {
            name: tensors.like(tensor, self._value(index, tensor.device).to(tensor.dtype))
            for index, (name, tensor) in enumerate(self._tracked.averaged.items())
        }
        for (name, tensor), value in zip(self._tracked.buffers.items(), self._newest_buffers(), strict=True):
            state[name] = tensors.like(tensor, value.detach().to(tensor.device, copy=True))
        for name, tensor in self._tracked.live_excluded().items():
            state[name] = tensor.detach().clone()
        for prefix, module in self._tracked.model.named_modules(remove_duplicate=False):
            if type(module).get_extra_state is not nn.Module.get_extra_state:
                state[tensors.canonical(f"{prefix}.{EXTRA}" if prefix else EXTRA)] = module.get_extra_state()
        for other, name in tensors.tied_names(self._tracked.model).items():
            state[other] = state[name]
        return state

    def _value(self, index: int, device: torch.device) -> Tensor:
        value = self._sums[0].values[index].to(device, copy=True)
        for part in self._sums[1:]:
            value += part.values[index].to(device)
        return value.div_(self._total)

    def _newest_buffers(self) -> list[Tensor]:
        return max(self._sums, key=lambda part: part.last).buffers(self._tracked)
