"""Sums of weights over spans of updates, which every average consists of.

All sums are float32 (or wider where the model is), whatever the model's dtype: a running mean in bfloat16 stops moving
after a few hundred updates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from swad.averaging.tracked import TrackedTensors
from swad.tensors.names import require_match
from swad.tensors.shards import accumulator, like, localized

Tensors = Mapping[str, Mapping[str, Tensor]]
"""The tensors of a sum by role ("sums" and "buffers") and name."""


class WeightSum:
    """A sum of the weights after the updates `first` to `last`, or after some of them.

    Args:
        values: One tensor per averaged tensor of the model, in the same order.
        first: The first update of the span.
        last: The last update of the span.
        weight: The sum of the factors in it; the mean is `values` divided by this.
        buffers: The model's buffers after the last update in it; None while those are the live ones.
    """

    def __init__(
        self, values: list[Tensor], first: int, last: int, weight: float = 0, buffers: list[Tensor] | None = None
    ) -> None:
        self.values, self.first, self.last, self.weight, self.buffers = values, first, last, weight, buffers

    @classmethod
    def zeros(cls, tracked: TrackedTensors, first: int, last: int, offload: bool = False) -> WeightSum:
        """Allocate an empty sum on the model's device, or in pinned host memory."""
        return cls(_zeros(tracked.live(), offload), first, last)

    @classmethod
    def of_live(cls, tracked: TrackedTensors, step: int) -> WeightSum:
        """Return the live weights after update `step` as a sum to read from. It shares the model's tensors."""
        return cls(tracked.live(), step, step, 1)

    def add_(self, other: WeightSum, tracked: TrackedTensors, factor: float = 1.0) -> None:
        """Add `factor` times a sum of later updates, and take its buffers."""
        if not other.weight:
            self.last = max(self.last, other.last)
            return
        if all(a.device == b.device for a, b in zip(self.values, other.values, strict=True)):
            torch._foreach_add_(self.values, other.values, alpha=factor)
        else:  # one is offloaded, or the model was moved
            for value, added in zip(self.values, other.values, strict=True):
                value.add_(added.to(value.device), alpha=factor)
        self.weight += factor * other.weight
        self.last = other.last
        self.buffers = clones(tracked.live_buffers() if other.buffers is None else other.buffers)

    # -- state --------------------------------------------------------------------------------------------

    def header(self) -> dict[str, Any]:
        """Return the part of the state that is not a tensor."""
        return {"first": self.first, "last": self.last, "weight": self.weight}

    def tensors(self, tracked: TrackedTensors, clone: bool = False) -> Tensors:
        """Return the tensors of the state by name, distributed as the model is."""
        # A state is complete: it contains the buffers also where they are still the live ones.
        buffers = tracked.live_buffers() if self.buffers is None else self.buffers
        targets = {"sums": (tracked.averaged, self.values), "buffers": (tracked.buffers, buffers)}
        return {
            role: {
                name: like(target, value)
                for (name, target), value in zip(named.items(), clones(values) if clone else values, strict=True)
            }
            for role, (named, values) in targets.items()
        }

    @classmethod
    def allocated(cls, header: Mapping[str, Any], tracked: TrackedTensors, offload: bool = False) -> WeightSum:
        """Allocate a sum with this header, whose tensors will be filled in later."""
        total = cls.zeros(tracked, int(header["first"]), int(header["last"]), offload)
        total.weight, total.buffers = header["weight"], clones(tracked.live_buffers())
        return total

    @classmethod
    @torch.no_grad()
    def loaded(
        cls, header: Mapping[str, Any], saved: Tensors, tracked: TrackedTensors, offload: bool = False
    ) -> WeightSum:
        """Return a sum with the saved tensors, whose names and shapes must be those of the model."""
        total = cls.allocated(header, tracked, offload)
        sums, buffers = saved.get("sums", {}), saved.get("buffers", {})  # a file of tensors has no empty dicts
        rule = "a state must be loaded with the model, include and exclude it was saved with"
        require_match(rule, tracked.averaged, sums)
        # The shapes of buffers are those of their update, which may be other than now, e.g. of a memory that grows.
        require_match(rule, {name: buffers.get(name, b) for name, b in tracked.buffers.items()}, buffers)
        for read, named, values in (
            (sums, tracked.averaged, total.values),
            (buffers, tracked.buffers, total.buffers or []),
        ):
            for value, (name, target) in zip(values, named.items(), strict=True):
                shard = localized(target, read[name])
                value.resize_(shard.shape).copy_(shard)
        return total


class OpenSum(WeightSum):
    """The sum that updates are added to. Its memory stays the same, so that a CUDA graph can write to it."""

    def __init__(self, first: int = 1) -> None:
        super().__init__([], first, first - 1)
        self.captured = False  # a CUDA graph writes to it, so its memory must not be released
        self._uncounted: Tensor | None = None  # the weight of updates that a GradScaler may have skipped, on the device

    def follow(self, live: Sequence[Tensor]) -> None:
        """Allocate the memory, on the devices of the live weights."""
        if not self.values:
            self.values = _zeros(live)
        elif self.values[0].device != live[0].device:  # the model was moved in the middle of a segment
            self.values = [value.to(tensor.device) for value, tensor in zip(self.values, live, strict=True)]

    def add_live(self, live: Sequence[Tensor], keep: Tensor | None = None) -> None:
        """Add the live weights. `keep` is 0 on the device where a GradScaler skipped the step; it is not read here."""
        self.follow(live)
        self.buffers = None  # those of this update are the live ones
        if keep is None:
            torch._foreach_add_(self.values, list(live))
        else:
            for value, tensor in zip(self.values, live, strict=True):
                value.add_(tensor * keep)

    def add_some(self, live: Sequence[Tensor], buffers: list[Tensor], keep: Tensor | None = None) -> None:
        """Add the live weights of an update after which others may be left out: count it, and copy its buffers."""
        kept = self.buffers
        self.add_live(live, keep)
        if keep is None or kept is None:
            self.buffers = clones(buffers)
        else:
            self.buffers = [torch.where(keep > 0, new, old) for new, old in zip(buffers, kept, strict=True)]
        if keep is None:
            self.weight += 1
        else:
            self._uncounted = keep if self._uncounted is None else self._uncounted + keep

    def move(self, live: Sequence[Tensor], share: float | Tensor) -> None:
        """Move the values toward the live weights; `share`, 1 for all the way, may be on the device."""
        self.follow(live)
        self.weight, self.buffers = 1, None
        if isinstance(share, Tensor):
            for mean, tensor in zip(self.values, live, strict=True):  # foreach lerp reads a tensor on the host
                mean.lerp_(tensor.to(mean.dtype), share.to(mean.dtype))
        elif all(mean.dtype == tensor.dtype for mean, tensor in zip(self.values, live, strict=True)):
            torch._foreach_lerp_(self.values, list(live), share)
        else:  # lerp does not mix dtypes
            torch._foreach_mul_(self.values, 1 - share)
            torch._foreach_add_(self.values, list(live), alpha=share)

    def resolve_skips(self) -> None:
        """Read how many updates a GradScaler let through. Waits for the device."""
        if self._uncounted is not None:
            self.weight += float(self._uncounted)
            self._uncounted = None

    def clear(self, first: int) -> None:
        """Start an empty segment at update `first`, in the same memory."""
        torch._foreach_zero_(self.values) if self.values else None
        self.first, self.last, self.weight, self.buffers, self._uncounted = first, first - 1, 0, None, None

    def release(self) -> None:
        """Free the memory, unless a CUDA graph still writes to it."""
        if not self.captured:
            self.values = []

    def load(self, total: WeightSum) -> None:
        """Continue a sum from a checkpoint, in the memory there is, if any."""
        if self.values:
            torch._foreach_copy_(self.values, total.values)
        else:
            self.values = total.values
        self.first, self.last, self.weight, self.buffers = total.first, total.last, total.weight, total.buffers
        self._uncounted = None


# Both allocate outside inference mode, whatever the caller's mode: tensors made in it cannot be written to outside.


@torch.inference_mode(False)
@torch.no_grad()
def clones(values: Sequence[Tensor]) -> list[Tensor]:
    """Copy tensors."""
    return [value.detach().clone() for value in values]


@torch.inference_mode(False)
@torch.no_grad()
def _zeros(live: Sequence[Tensor], offload: bool = False) -> list[Tensor]:
    place: dict[str, Any] = {"device": "cpu", "pin_memory": torch.cuda.is_available()} if offload else {}
    return [torch.zeros_like(tensor, dtype=accumulator(tensor), requires_grad=False, **place) for tensor in live]
