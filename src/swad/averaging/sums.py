"""Sums of weights over stretches of a trajectory: what averages are made of.

All sums are float32 (or wider where the model is), whatever the model's dtype: a running mean in bfloat16
stops moving after a few hundred updates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from swad.averaging.one_pass import OnePass
from swad.averaging.tensors import TrackedTensors, accumulator, like, localized

_CHUNK = 1 << 24
"""Elements scaled at a time where a product is needed: 64 MB of scratch (or the largest tensor), not the model."""


class Source:
    """Something to add up: tensors, what they weigh together, and the last update in them."""

    sums: list[Tensor]
    weight: float = 0
    last: int = -1
    _carried: list[Tensor] | None = None

    @classmethod
    def of_live(cls, tracked: TrackedTensors, step: int) -> Source:
        """The live weights, as they are after update `step`."""
        source = Source()
        source.sums, source.weight, source.last = tracked.live(), 1, step
        return source

    def carried(self, tracked: TrackedTensors) -> list[Tensor]:
        """The buffers of the last update in it: kept here, or still the live ones."""
        return tracked.live_carried() if self._carried is None else self._carried


class WeightSum(Source):
    """A sum that is kept."""

    @classmethod
    def zeros(cls, tracked: TrackedTensors, offload: bool = False) -> WeightSum:
        """An empty sum, beside the model or in pinned host memory."""
        piece = cls()
        piece.sums = [_zeros(tensor, offload) for tensor in tracked.live()]
        return piece

    def absorb(self, source: Source, factor: float, tracked: TrackedTensors) -> None:
        """Add `factor` times another sum; the buffers come from whichever is newer."""
        if all(a.device == b.device for a, b in zip(self.sums, source.sums, strict=True)):
            torch._foreach_add_(self.sums, source.sums, alpha=factor)
        else:  # offloaded, or the model was moved since
            for ours, theirs in zip(self.sums, source.sums, strict=True):
                ours.add_(theirs.to(ours.device), alpha=factor)
        self.weight += factor * source.weight
        if source.last >= self.last:
            self.last = source.last
            self._carry(source.carried(tracked))

    def emptied(self) -> Self:
        """The same buffers, for another sum."""
        torch._foreach_zero_(self.sums)
        self.weight, self.last = 0, -1
        return self

    def _carry(self, buffers: list[Tensor]) -> None:
        if self._carried is None:
            self._carried = _clones(buffers)
        else:
            for ours, theirs in zip(self._carried, buffers, strict=True):
                ours.copy_(theirs)

    # -- state --------------------------------------------------------------------------------------------

    def header(self) -> dict[str, Any]:
        """What is not a tensor."""
        return {"weight": self.weight, "last": self.last}

    def tensors(self, tracked: TrackedTensors, clone: bool = False) -> dict[str, dict[str, Tensor]]:
        """What is, by name, distributed as the model is."""

        def named(targets: Mapping[str, Tensor], values: list[Tensor]) -> dict[str, Tensor]:
            values = _clones(values) if clone else values
            return {name: like(target, value) for (name, target), value in zip(targets.items(), values, strict=True)}

        # With the buffers of its last update, also where they are still the live ones: a state stands by itself.
        return {"sums": named(tracked.averaged, self.sums), "carried": named(tracked.carried, self.carried(tracked))}

    @classmethod
    def empty(cls, header: Mapping[str, Any], tracked: TrackedTensors, offload: bool = False) -> WeightSum:
        """A piece of that header with its tensors still to be filled."""
        piece = cls.zeros(tracked, offload)
        piece.weight, piece.last = header["weight"], int(header["last"])
        piece._carried = _clones(tracked.live_carried())
        return piece

    @classmethod
    def from_state(
        cls,
        header: Mapping[str, Any],
        state: Mapping[str, Mapping[str, Tensor]],
        tracked: TrackedTensors,
        offload: bool = False,
    ) -> WeightSum:
        """A piece with the tensors of `state`, which must be those followed here, by name and shape."""
        piece = cls.empty(header, tracked, offload)
        _fill(piece.sums, tracked.averaged, state["sums"])
        _fill(piece._carried or [], tracked.carried, state["carried"])
        return piece


class Segment(WeightSum):
    """The open sum that updates are added to. Its buffers stay where they are, so that a graph can hold them."""

    def __init__(self) -> None:
        self.sums = []
        self.first = 1  # the first update in it
        self.keep = False  # captured: the buffers must outlive the average's need for them
        self.upper_bound = 0  # of the updates in it, as far as the host knows
        self._count: float = 0
        self._on_device: Tensor | None = None  # what a scaler's skips leave of the count
        self.one_pass: OnePass | None = None  # of a feed, which does the work of all its averages at once

    @property
    def weight(self) -> float:  # type: ignore[override]
        """Updates in it."""
        self.resolve()
        return self._count

    @property
    def allocated(self) -> bool:
        """Whether it holds buffers."""
        return bool(self.sums)

    def allocate(self, live: Sequence[Tensor]) -> None:
        """Make the buffers, beside the model's tensors."""
        self.sums = [_zeros(tensor) for tensor in live]

    def add(self, live: list[Tensor], weight: Tensor | None = None, counted: bool = True) -> None:
        """Add the live weights; `weight`, 0 or 1, is on the device and is not read."""
        self._follow_device(live)
        if weight is None and self.one_pass is not None:
            self.one_pass.run(live, self.sums)
        elif weight is None:
            torch._foreach_add_(self.sums, live)
        else:
            for part in _chunks(live):
                torch._foreach_add_(self.sums[part], torch._foreach_mul(live[part], weight))
            self._on_device = weight.clone() if self._on_device is None else self._on_device.add_(weight)
        if counted:
            self.count(1, on_host=weight is None)

    def count(self, n: int, on_host: bool = True) -> None:
        """Count `n` updates whose weights were added."""
        self.upper_bound += n
        self._count += n if on_host else 0

    def blend(self, live: list[Tensor], rate: float, weight: Tensor | None = None) -> None:
        """Move towards the live weights by `rate`; the first time, take them as they are."""
        self._follow_device(live)
        if weight is not None:
            if self._count:
                begun = torch.ones_like(weight)
            else:
                begun = torch.zeros_like(weight) if self._on_device is None else self._on_device
                self._on_device = torch.maximum(begun, weight)
            rates = torch.where(begun > 0, rate, 1.0) * weight
            for part in _chunks(live):
                step = torch._foreach_sub(live[part], self.sums[part])
                torch._foreach_mul_(step, rates)
                torch._foreach_add_(self.sums[part], step)
            return
        self.resolve()
        if not self._count:
            torch._foreach_copy_(self.sums, live)
            self._count = 1
        elif all(a.dtype == b.dtype for a, b in zip(self.sums, live, strict=True)):
            if self.one_pass is not None:
                self.one_pass.blend(self.sums, rate)
            else:
                torch._foreach_lerp_(self.sums, live, rate)
        else:  # lerp refuses to mix dtypes
            torch._foreach_mul_(self.sums, 1 - rate)
            torch._foreach_add_(self.sums, live, alpha=rate)

    def _follow_device(self, live: list[Tensor]) -> None:
        if not self.sums:
            self.allocate(live)
        elif self.sums[0].device != live[0].device:  # the model was moved in the middle of a segment
            self.sums = [ours.to(theirs.device) for ours, theirs in zip(self.sums, live, strict=True)]

    def keep_carried(self, tracked: TrackedTensors, weight: Tensor | None = None) -> None:
        """Remember the buffers of this update, for averages that do not take every one; only where `weight` is 1."""
        live = tracked.live_carried()
        if weight is not None and self._carried is not None:
            live = [torch.where(weight > 0, new, old) for new, old in zip(live, self._carried, strict=True)]
        self._carry(live)

    def resolve(self) -> None:
        """Bring the count to the host, waiting for the device only if a scaler was at work."""
        if self._on_device is not None:
            self._count += float(self._on_device)
            self._on_device = None
            self.upper_bound = int(self._count)

    def clear(self) -> None:
        """Begin anew, in the same buffers."""
        if self.sums:
            torch._foreach_zero_(self.sums)
        self._count, self._on_device, self.upper_bound, self._carried = 0, None, 0, None
        self.first = self.last + 1 if self.last >= 0 else 1

    def release(self) -> None:
        """Give the buffers up, unless a graph still writes into them."""
        self.clear()
        if not self.keep:
            self.sums = []

    def absorb(self, source: Source, factor: float, tracked: TrackedTensors) -> None:
        """Add a piece that is to be continued; the buffers stay the segment's own."""
        self.resolve()
        for ours, theirs in zip(self.sums, source.sums, strict=True):
            ours.add_(theirs.to(ours.device), alpha=factor)
        self._count += factor * source.weight

    def take_carried(self, source: Source, tracked: TrackedTensors) -> None:
        """Go on with the buffers of another sum: those of its last update are the last here too."""
        self._carried, self.last = _clones(source.carried(tracked)), source.last

    def forget_carried(self) -> None:
        """The buffers are the live ones again."""
        self._carried = None

    def header(self) -> dict[str, Any]:
        """What is not a tensor."""
        return {**super().header(), "first": self.first}

    def adopt(self, piece: WeightSum) -> None:
        """Go on with a loaded piece, in the present buffers where there are any."""
        if self.sums:
            torch._foreach_copy_(self.sums, piece.sums)
        else:
            self.sums = piece.sums
        self._count, self.upper_bound = piece.weight, int(piece.weight)
        self.last, self._carried = piece.last, piece._carried

    @classmethod
    def zeros(cls, tracked: TrackedTensors, offload: bool = False) -> Self:
        """Segments are made empty and allocate when the first update comes."""
        raise NotImplementedError


# Made outside inference mode, whatever the caller is in: what is made in it can never be written to outside.


@torch.inference_mode(False)
@torch.no_grad()
def _clones(values: Sequence[Tensor]) -> list[Tensor]:
    return [value.detach().clone() for value in values]


@torch.inference_mode(False)
@torch.no_grad()
def _zeros(tensor: Tensor, offload: bool = False) -> Tensor:
    if not offload:
        return torch.zeros_like(tensor, dtype=accumulator(tensor), requires_grad=False)
    pinned = torch.cuda.is_available()
    return torch.zeros_like(tensor, dtype=accumulator(tensor), device="cpu", pin_memory=pinned, requires_grad=False)


def _chunks(tensors: Sequence[Tensor]) -> Iterator[slice]:
    begin, size = 0, 0
    for end, tensor in enumerate(tensors):
        if size and size + tensor.numel() > _CHUNK:
            yield slice(begin, end)
            begin, size = end, 0
        size += tensor.numel()
    yield slice(begin, len(tensors))


def _fill(ours: list[Tensor], tracked: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    missing = [name for name in tracked if name not in state]
    unknown = [name for name in state if name not in tracked]
    if missing or unknown:
        raise ValueError(
            f"the state must hold the tensors of this model by name; missing {missing[:5]}, unknown {unknown[:5]}"
        )
    with torch.no_grad():
        for tensor, (name, target) in zip(ours, tracked.items(), strict=True):
            values = localized(target, state[name])
            if values.shape != tensor.shape:
                raise ValueError(f"{name} has the shape {tuple(values.shape)} in the state, {tuple(tensor.shape)} here")
            tensor.copy_(values)
