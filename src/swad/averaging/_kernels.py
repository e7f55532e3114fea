"""One Triton kernel for all averages of a step: it reads each weight once for the shared sum and every moving average.

The step is bound by memory traffic. Adding to the sum and moving an EMA in two passes moves 24 bytes per weight, in one
pass 20. The weights are in many tensors of many sizes, so a table tells every program where its block begins.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096
_BYTES = 4  # per float32


class Table:
    """Where the blocks of the weights, the sum and the moving averages begin, and how long each block is."""

    def __init__(self, live: Sequence[Tensor], sums: Sequence[Tensor], means: Sequence[Sequence[Tensor]]) -> None:
        rows = []
        for tensors in zip(live, sums, *means, strict=True):
            starts = torch.arange(0, tensors[0].numel(), _BLOCK)
            pointers = [tensor.data_ptr() + _BYTES * starts for tensor in tensors]
            rows.append(torch.stack([(tensors[0].numel() - starts).clamp(max=_BLOCK), *pointers], 1))
        self.rows = to_device(torch.cat(rows), live[0].device)
        self.n_means = len(means)


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Copy values to the device without waiting for it."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)


def fits(live: Sequence[Tensor], sums: Sequence[Tensor], means: Sequence[Sequence[Tensor]]) -> bool:
    """Whether the kernel can read the tensors: float32, dense, of one layout, aligned to 16 bytes, on one device."""
    return all(
        all(tensor.dtype == torch.float32 and tensor.stride() == tensors[0].stride() for tensor in tensors)
        and all(tensor.data_ptr() % 16 == 0 and tensor.device == live[0].device for tensor in tensors)
        and bool(torch.ops.aten.is_non_overlapping_and_dense(tensors[0]))
        for tensors in zip(live, sums, *means, strict=True)
    )


def add_and_blend(table: Table, rates: Tensor) -> None:
    """Add the weights to the sum, and move every moving average towards them by its rate."""
    rows = table.rows
    _add_and_blend[(len(rows),)](rows, rates, BLOCK=_BLOCK, MEANS=table.n_means, num_warps=8)


@triton.jit
def _add_and_blend(rows, rates, BLOCK: tl.constexpr, MEANS: tl.constexpr):
    row = rows + tl.program_id(0).to(tl.int64) * (3 + MEANS)
    n = tl.load(row)
    at = tl.arange(0, BLOCK)
    if n == BLOCK:  # without a mask, the kernel loads four numbers at a time
        live = tl.load(_pointer(row, 1) + at)
        total = _pointer(row, 2)
        tl.store(total + at, tl.load(total + at) + live)
        for i in tl.static_range(MEANS):
            mean = _pointer(row, 3 + i)
            old = tl.load(mean + at)
            tl.store(mean + at, old + tl.load(rates + i) * (live - old))
    else:
        inside = at < n
        live = tl.load(_pointer(row, 1) + at, mask=inside)
        total = _pointer(row, 2)
        tl.store(total + at, tl.load(total + at, mask=inside) + live, mask=inside)
        for i in tl.static_range(MEANS):
            mean = _pointer(row, 3 + i)
            old = tl.load(mean + at, mask=inside)
            tl.store(mean + at, old + tl.load(rates + i) * (live - old), mask=inside)


@triton.jit
def _pointer(row, column: tl.constexpr):
    return tl.multiple_of(tl.load(row + column).to(tl.pointer_type(tl.float32)), 16)
