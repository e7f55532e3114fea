"""Sums of weights over stretches of a trajectory, which every average consists of.

A `WeightSum` is a kept sum with its total weight. The `Segment` is the open sum that every update adds to. All sums
are float32 (or wider where the model is), whatever the model's dtype: a running mean in bfloat16 stops moving after a
few hundred updates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from swad.averaging.tensors import TrackedTensors, accumulator, like, localized, require_match
from swad.util.packages import has_triton

if TYPE_CHECKING:
    from swad.averaging._kernels import Table

_CHUNK = 1 << 24
"""Elements multiplied at a time where a product needs scratch memory: 64 MB (or the largest tensor), not the model."""


class WeightSum:
    """A sum of weights, with its total weight and the buffers of its last update.

    Attributes:
        values: One tensor per averaged tensor of the model, in the same order.
        weight: The sum of the factors in it; the mean is `values` divided by this.
        last: The last update in it, or -1.
    """

    values: list[Tensor]
    weight: float = 0
    last: int = -1
    _buffers: list[Tensor] | None = None  # of the last update; None while they are still the live ones

    @classmethod
    def zeros(cls, tracked: TrackedTensors, offload: bool = False) -> WeightSum:
        """Allocate an empty sum on the model's device or in pinned host memory."""
        total = cls()
        total.values = [_zeros(tensor, offload) for tensor in tracked.live()]
        return total

    @classmethod
    def of_live(cls, tracked: TrackedTensors, step: int) -> WeightSum:
        """Return the live weights after update `step` as a sum to read from. It shares the model's tensors."""
        view = WeightSum()
        view.values, view.weight, view.last = tracked.live(), 1, step
        return view

    def buffers(self, tracked: TrackedTensors) -> list[Tensor]:
        """Return the buffers of the last update in the sum."""
        return tracked.live_buffers() if self._buffers is None else self._buffers

    def add_(self, other: WeightSum, factor: float, tracked: TrackedTensors) -> None:
        """Add `factor` times another sum, and take its buffers where they are newer."""
        if all(a.device == b.device for a, b in zip(self.values, other.values, strict=True)):
            torch._foreach_add_(self.values, other.values, alpha=factor)
        else:  # one is offloaded, or the model was moved
            for value, added in zip(self.values, other.values, strict=True):
                value.add_(added.to(value.device), alpha=factor)
        self.weight += factor * other.weight
        if other.last >= self.last:
            self.last = other.last
            self._copy_buffers(other.buffers(tracked))

    def zeroed(self) -> Self:
        """Set the sum to zero and return it, to reuse its memory."""
        torch._foreach_zero_(self.values)
        self.weight, self.last = 0, -1
        return self

    def _copy_buffers(self, buffers: list[Tensor]) -> None:
        shapes = [buffer.shape for buffer in buffers]
        if self._buffers is None or [buffer.shape for buffer in self._buffers] != shapes:  # e.g. a memory that grows
            self._buffers = clones(buffers)
        else:
            for buffer, value in zip(self._buffers, buffers, strict=True):
                buffer.copy_(value)

    # -- state --------------------------------------------------------------------------------------------

    def header(self) -> dict[str, Any]:
        """Return the part of the state that is not a tensor."""
        return {"weight": self.weight, "last": self.last}

    def named_tensors(self, tracked: TrackedTensors, clone: bool = False) -> dict[str, dict[str, Tensor]]:
        """Return the tensors of the state by name, distributed as the model is."""

        def named(targets: Mapping[str, Tensor], values: list[Tensor]) -> dict[str, Tensor]:
            values = clones(values) if clone else values
            return {name: like(target, value) for (name, target), value in zip(targets.items(), values, strict=True)}

        # A state is complete: it contains the buffers also where they are still the live ones.
        return {"sums": named(tracked.averaged, self.values), "buffers": named(tracked.buffers, self.buffers(tracked))}

    @classmethod
    def empty(cls, header: Mapping[str, Any], tracked: TrackedTensors, offload: bool = False) -> WeightSum:
        """Allocate a sum with this header, whose tensors will be filled in later."""
        total = cls.zeros(tracked, offload)
        total.weight, total.last = header["weight"], int(header["last"])
        total._buffers = clones(tracked.live_buffers())
        return total

    @classmethod
    def from_state(
        cls,
        header: Mapping[str, Any],
        state: Mapping[str, Mapping[str, Tensor]],
        tracked: TrackedTensors,
        offload: bool = False,
    ) -> WeightSum:
        """Return a sum with the tensors of `state`, whose names and shapes must be those of the model."""
        total = cls.empty(header, tracked, offload)
        _fill(total.values, tracked.averaged, state["sums"])
        # Their shapes are those of their update, which may be other than now, e.g. of a memory that grows.
        _fill(total._buffers or [], tracked.buffers, state["buffers"], of_any_shape=True)
        return total


class Segment(WeightSum):
    """The open sum that updates are added to. Its memory stays the same, so that a CUDA graph can write to it."""

    def __init__(self) -> None:
        self.values = []
        self.first = 1  # the first update in it
        self.captured = False  # a CUDA graph writes to it, so its memory must not be released
        self._count: float = 0
        self._device_count: Tensor | None = None  # of updates that a GradScaler may have skipped
        self.fused: FusedUpdate | None = None  # in a group: does the work of all members in one pass

    @property
    def weight(self) -> float:  # type: ignore[override]
        """Number of updates in it."""
        self.resolve_count()
        return self._count

    @property
    def allocated(self) -> bool:
        """Whether it has memory."""
        return bool(self.values)

    @property
    def count_is_known(self) -> bool:
        """Whether the number of updates is on the host; steps that a GradScaler may skip are counted on the device."""
        return self._device_count is None

    def allocate(self, live: Sequence[Tensor]) -> None:
        """Allocate memory on the devices of the model's tensors."""
        self.values = [_zeros(tensor) for tensor in live]

    def add_live(self, live: list[Tensor], weight: Tensor | None = None, counted: bool = True) -> None:
        """Add the live weights.

        Args:
            live: The model's tensors.
            weight: 0 or 1 on the device, which is not read on the host. Without it, 1.
            counted: Whether to count the update now. Updates in a CUDA graph are counted when it is replayed.
        """
        self._follow_device(live)
        if weight is None and self.fused is not None:
            self.fused.run(live, self.values)
        elif weight is None:
            torch._foreach_add_(self.values, live)
        else:
            for chunk in _chunks(live):
                torch._foreach_add_(self.values[chunk], torch._foreach_mul(live[chunk], weight))
            self._device_count = weight.clone() if self._device_count is None else self._device_count.add_(weight)
        if counted and weight is None:
            self.count(1)

    def count(self, n: int) -> None:
        """Count `n` updates whose weights were added."""
        self._count += n

    def blend(self, live: list[Tensor], rate: float | Tensor, weight: Tensor | None = None) -> None:
        """Move towards the live weights by `rate`; the first time, copy them. A tensor is not read on the host."""
        self._follow_device(live)
        if weight is not None:
            if self._count:
                started = torch.ones_like(weight)
            else:
                started = torch.zeros_like(weight) if self._device_count is None else self._device_count
                self._device_count = torch.maximum(started, weight)
            self._move(live, torch.where(started > 0, rate, 1.0) * weight)
            return
        self.resolve_count()
        if not self._count:
            torch._foreach_copy_(self.values, live)
            self._count = 1
        elif isinstance(rate, Tensor):
            self._move(live, rate)
        elif all(a.dtype == b.dtype for a, b in zip(self.values, live, strict=True)):
            if self.fused is not None:
                self.fused.queue_blend(self.values, rate)
            else:
                torch._foreach_lerp_(self.values, live, rate)
        else:  # lerp does not mix dtypes
            torch._foreach_mul_(self.values, 1 - rate)
            torch._foreach_add_(self.values, live, alpha=rate)

    def _move(self, live: list[Tensor], rate: Tensor) -> None:
        for chunk in _chunks(live):
            difference = torch._foreach_sub(live[chunk], self.values[chunk])
            torch._foreach_mul_(difference, rate)
            torch._foreach_add_(self.values[chunk], difference)

    def _follow_device(self, live: list[Tensor]) -> None:
        if not self.values:
            self.allocate(live)
        elif self.values[0].device != live[0].device:  # the model was moved in the middle of a segment
            self.values = [value.to(tensor.device) for value, tensor in zip(self.values, live, strict=True)]

    def keep_buffers(self, tracked: TrackedTensors, weight: Tensor | None = None) -> None:
        """Copy the buffers of this update, for an average that may skip the next; only where `weight` is 1."""
        live = tracked.live_buffers()
        if weight is not None and self._buffers is not None:
            live = [torch.where(weight > 0, new, old) for new, old in zip(live, self._buffers, strict=True)]
        self._copy_buffers(live)

    def take_buffers(self, other: WeightSum, tracked: TrackedTensors) -> None:
        """Take the buffers of another sum, whose last update is the last here too."""
        self._buffers, self.last = clones(other.buffers(tracked)), other.last

    def use_live_buffers(self) -> None:
        """Let the buffers be the live ones again."""
        self._buffers = None

    def resolve_count(self) -> None:
        """Bring the count to the host. Waits for the device only if a GradScaler may have skipped updates."""
        if self._device_count is not None:
            self._count += float(self._device_count)
            self._device_count = None

    def clear(self) -> None:
        """Start an empty segment in the same memory."""
        if self.values:
            torch._foreach_zero_(self.values)
        self._count, self._device_count, self._buffers = 0, None, None
        self.first = self.last + 1 if self.last >= 0 else 1

    def release(self) -> None:
        """Clear the segment, and free its memory unless a CUDA graph still writes to it."""
        self.clear()
        if not self.captured:
            self.values = []

    def add_(self, other: WeightSum, factor: float, tracked: TrackedTensors) -> None:
        """Add a sum that continues in this segment; the buffers stay those of the segment."""
        self.resolve_count()
        for value, added in zip(self.values, other.values, strict=True):
            value.add_(added.to(value.device), alpha=factor)
        self._count += factor * other.weight

    def header(self) -> dict[str, Any]:
        """Return the part of the state that is not a tensor."""
        return {**super().header(), "first": self.first}

    def load(self, total: WeightSum) -> None:
        """Continue a sum from a checkpoint, in the memory the segment has, if any."""
        if self.values:
            torch._foreach_copy_(self.values, total.values)
        else:
            self.values = total.values
        self._count, self.last, self._buffers = total.weight, total.last, total._buffers


class FusedUpdate:
    """One pass over the weights for everything that the members of a group do with them at a step.

    The members queue their moving averages here, and the addition to the shared segment then runs all of them. On a
    GPU with Triton one kernel reads each weight once; elsewhere one foreach call follows the other.
    """

    def __init__(self) -> None:
        self._means: list[list[Tensor]] = []
        self._rates: list[float] = []
        # Never released: a captured CUDA graph reads them at every replay.
        self._tables: dict[tuple[float, ...], tuple[Table, Tensor] | None] = {}

    def queue_blend(self, means: list[Tensor], rate: float) -> None:
        """Let the next `run` move `means` towards the weights by `rate`."""
        self._means.append(means)
        self._rates.append(rate)

    def discard(self) -> None:
        """Empty the queue, for a step that failed before its `run`."""
        self._means, self._rates = [], []

    def run(self, live: list[Tensor], sums: list[Tensor] | None) -> None:
        """Move the queued means, and add the weights to `sums` unless it is None."""
        queued, rates = self._means, self._rates
        self.discard()
        if sums is not None and queued and live[0].is_cuda and has_triton():
            table_and_rates = self._table(live, sums, queued, rates)
            if table_and_rates is not None:
                from swad.averaging._kernels import add_and_blend

                with torch.cuda.device(live[0].device):
                    add_and_blend(*table_and_rates)
                return
        if sums is not None:
            torch._foreach_add_(sums, live)
        for means, rate in zip(queued, rates, strict=True):
            torch._foreach_lerp_(means, live, rate)

    def _table(
        self, live: list[Tensor], sums: list[Tensor], means: list[list[Tensor]], rates: list[float]
    ) -> tuple[Table, Tensor] | None:
        key = (*rates, *(tensor.data_ptr() for tensors in (live, sums, *means) for tensor in tensors))
        if key not in self._tables:
            if torch.cuda.is_current_stream_capturing():  # a table cannot be copied to the device during a capture
                return None
            from swad.averaging._kernels import Table, fits, to_device

            table_and_rates = None
            if fits(live, sums, means):
                table_and_rates = (Table(live, sums, means), to_device(torch.tensor(rates), live[0].device))
            self._tables[key] = table_and_rates
        return self._tables[key]


# Both allocate outside inference mode, whatever the caller's mode: tensors made in it cannot be written to outside.


@torch.inference_mode(False)
@torch.no_grad()
def clones(values: Sequence[Tensor]) -> list[Tensor]:
    """Copy tensors."""
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


@torch.no_grad()
def _fill(
    values: list[Tensor], targets: Mapping[str, Tensor], state: Mapping[str, Tensor], of_any_shape: bool = False
) -> None:
    expected = {name: state.get(name, target) for name, target in targets.items()} if of_any_shape else targets
    require_match("a state must be loaded with the model, include and exclude it was saved with", expected, state)
    for value, (name, target) in zip(values, targets.items(), strict=True):
        saved = localized(target, state[name])
        value.resize_(saved.shape).copy_(saved)
