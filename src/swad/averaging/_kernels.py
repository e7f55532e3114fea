"""All averages of a step in one pass: the weights are read once for the shared sum and every moving average.

What a step costs here is memory moved. An addition to the sum and a step of an EMA, each by itself, move 24 bytes for a
weight; together 20. Weights lie in many tensors of many sizes, so a table says for every program where its block is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096
_BYTES = 4  # of a float32


class Table:
    """Where the blocks of the weights, of the sum and of the moving averages begin, and how long each is."""

    def __init__(self, live: Sequence[Tensor], sums: Sequence[Tensor], means: Sequence[Sequence[Tensor]]) -> None:
        rows = []
        for tensors in zip(live, sums, *means, strict=True):
            starts = torch.arange(0, tensors[0].numel(), _BLOCK)
            places = [tensor.data_ptr() + _BYTES * starts for tensor in tensors]
            rows.append(torch.stack([(tensors[0].numel() - starts).clamp(max=_BLOCK), *places], 1))
        self.rows = sent(torch.cat(rows), live[0].device)
        self.n_means = len(means)


def sent(values: Tensor, device: torch.device) -> Tensor:
    """A copy on the device, without a wait for it."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)


def fits(live: Sequence[Tensor], sums: Sequence[Tensor], means: Sequence[Sequence[Tensor]]) -> bool:
    """Whether the tensors are such as the kernel reads: float32, dense, alike in layout, and begin at 16 bytes."""
    return all(
        all(one.dtype == torch.float32 and one.stride() == tensors[0].stride() for one in tensors)
        and all(one.data_ptr() % 16 == 0 and one.device == live[0].device for one in tensors)
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
    if n == BLOCK:  # without a mask, four numbers are moved at a time
        live = tl.load(_place(row, 1) + at)
        total = _place(row, 2)
        tl.store(total + at, tl.load(total + at) + live)
        for i in tl.static_range(MEANS):
            mean = _place(row, 3 + i)
            old = tl.load(mean + at)
            tl.store(mean + at, old + tl.load(rates + i) * (live - old))
    else:
        inside = at < n
        live = tl.load(_place(row, 1) + at, mask=inside)
        total = _place(row, 2)
        tl.store(total + at, tl.load(total + at, mask=inside) + live, mask=inside)
        for i in tl.static_range(MEANS):
            mean = _place(row, 3 + i)
            old = tl.load(mean + at, mask=inside)
            tl.store(mean + at, old + tl.load(rates + i) * (live - old), mask=inside)


@triton.jit
def _place(row, column: tl.constexpr):
    return tl.multiple_of(tl.load(row + column).to(tl.pointer_type(tl.float32)), 16)
