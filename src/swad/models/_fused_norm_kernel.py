"""A convolution, the frozen batch norm after it, a shortcut and a ReLU as one operation with few passes over memory.

Forward: one kernel folds scale and shift into weights and bias (see `swad.models.fused_norm`), cuDNN convolves, and one kernel
adds the bias and the shortcut and cuts off below zero. Backward: one kernel cuts the gradient off where the output was,
and adds up the gradient of the shift and, where an output was used twice, both its gradients; then come cuDNN's two
convolutions, and one kernel that turns the gradient of the folded weights into those of weights and scale. Nothing but
inputs and outputs of convolutions is kept.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.nn import functional

ACTIVATIONS = {"none": 0.0, "relu": float("inf"), "relu6": 6.0}
"""Where each cuts off above; "none" cuts off nowhere."""

# Of an H200, for matrices of 64 to 2,048 columns: tiles of 4,096 numbers, about eight programs for each of 132 cores.
_TILE, _PROGRAMS = 4096, 1056


def conv_norm_act(
    images: Tensor,
    conv: nn.Conv2d,
    norm: Any,
    act: str,
    shortcut: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """``act(norm(conv(images)) + shortcut)``, twice: give each to another use, and their gradients meet in one pass."""
    images = images.to(dtype or images.dtype, memory_format=torch.channels_last)
    y, twin = _ConvNormAct.apply(
        images, conv.weight, norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.eps, shortcut, act,
        (conv.stride, conv.padding, conv.dilation, conv.groups),
    )  # fmt: skip
    return y, twin


class _ConvNormAct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, var: Tensor, eps: float,
        shortcut: Tensor | None, act: str, how: tuple[Any, ...],
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        weight = weight.contiguous(memory_format=torch.channels_last)
        folded, shift = fold(weight, gamma, beta, mean, var, eps, x.dtype)
        with torch.autocast(x.device.type, enabled=False):
            y = functional.conv2d(x, folded, None, *how)
        y = shift_act(y.contiguous(memory_format=torch.channels_last), shift, shortcut, act)
        ctx.save_for_backward(x, weight, folded, gamma, mean, var, y if act != "none" else None)
        ctx.eps, ctx.act, ctx.how, ctx.added = eps, act, how, shortcut is not None
        ctx.set_materialize_grads(False)
        return y, y.view_as(y)

    @staticmethod
    def backward(ctx: Any, first: Tensor | None, second: Tensor | None) -> tuple[Tensor | None, ...]:
        x, weight, folded, gamma, mean, var, y = ctx.saved_tensors
        if first is None:
            first, second = second, None
        assert first is not None
        grad, sums = cut_off(first, second, y, ctx.act)
        stride, padding, dilation, groups = ctx.how
        wanted = [ctx.needs_input_grad[0], True, False]
        with torch.autocast(x.device.type, enabled=False):
            into, of_folded, _ = torch.ops.aten.convolution_backward(
                grad, x, folded, None, stride, padding, dilation, False, (0, 0), groups, wanted
            )
        of_weight, of_gamma, of_beta = unfold(of_folded, weight, gamma, mean, var, ctx.eps, sums)
        return into, of_weight, of_gamma, of_beta, None, None, None, grad if ctx.added else None, None, None


# --- the kernels ------------------------------------------------------------------------------------------------


def fold(
    weight: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, var: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Weights times scale in `dtype`, and the shift: s = γ / √(v + ε), s·W and β − m·s.

    The shift stays in float32. It can be many times as large as what a step changes of it: in bfloat16 a shift of 16 is
    the same until it has moved by 0.06, at a rate of 5e-5 for a thousand steps. That is why it is not left to cuDNN,
    which adds one in bfloat16 at no cost, but one in float32 with kernels that it first compiles for every shape: 40 s
    for ResNet-50, and no faster than a pass of our own.
    """
    folded = torch.empty_like(weight, dtype=dtype)
    shift = torch.empty_like(beta)
    n = weight[0].numel()
    _fold[(len(weight),)](weight, gamma, beta, mean, var, folded, shift, n, eps, BLOCK=_block(n))
    return folded, shift


@triton.jit
def _fold(weight, gamma, beta, mean, var, folded, shift, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    scale = tl.load(gamma + row) / tl.sqrt(tl.load(var + row) + eps)
    tl.store(shift + row, tl.load(beta + row) - tl.load(mean + row) * scale)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(weight + row * n + at, mask=at < n)
        tl.store(folded + row * n + at, value * scale, mask=at < n)


def unfold(
    grad: Tensor, weight: Tensor, gamma: Tensor, mean: Tensor, var: Tensor, eps: float, sums: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """From the gradients of folded weights and shift (`sums`, in parts) to those of weights, scale and shift."""
    grad = grad.contiguous(memory_format=torch.channels_last)
    of_weight = torch.empty_like(weight)
    of_gamma, of_beta = torch.empty_like(gamma), torch.empty_like(gamma)
    n = weight[0].numel()
    _unfold[(len(weight),)](
        grad, weight, gamma, mean, var, sums, of_weight, of_gamma, of_beta, n, len(sums), len(weight), eps,
        BLOCK=_block(n), PARTS=triton.next_power_of_2(len(sums)),
    )  # fmt: skip
    return of_weight, of_gamma, of_beta


@triton.jit
def _unfold(
    grad, weight, gamma, mean, var, sums, of_weight, of_gamma, of_beta, n, parts, rows, eps,
    BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    inverse = 1.0 / tl.sqrt(tl.load(var + row) + eps)
    scale = tl.load(gamma + row) * inverse
    part = tl.arange(0, PARTS)
    of_shift = tl.sum(tl.load(sums + part * rows + row, mask=part < parts, other=0.0))
    products = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(grad + row * n + at, mask=at < n, other=0.0).to(tl.float32)
        products += value * tl.load(weight + row * n + at, mask=at < n, other=0.0)
        tl.store(of_weight + row * n + at, value * scale, mask=at < n)
    tl.store(of_gamma + row, (tl.sum(products) - tl.load(mean + row) * of_shift) * inverse)
    tl.store(of_beta + row, of_shift)


def cut_off(first: Tensor, second: Tensor | None, y: Tensor | None, act: str) -> tuple[Tensor, Tensor]:
    """The gradient where the activation let the value through, and its sums over all but channels, in parts.

    `second` is added first, where an output had two uses. Without an activation there is nothing to cut off.
    """
    first = first.contiguous(memory_format=torch.channels_last)
    second = None if second is None else second.contiguous(memory_format=torch.channels_last)
    channels = first.shape[1]
    rows = first.numel() // channels
    columns = min(128, triton.next_power_of_2(channels))
    tile, across = _TILE // columns, triton.cdiv(channels, columns)
    down = max(1, min(triton.cdiv(rows, tile), _PROGRAMS // across))
    each = triton.cdiv(triton.cdiv(rows, down), tile) * tile  # rows of one program: a whole number of tiles
    down = triton.cdiv(rows, each)
    writes = y is not None or second is not None
    grad = torch.empty_like(first) if writes else first
    sums = torch.empty(down, channels, dtype=torch.float32, device=first.device)
    _cut_off[(down, across)](
        first, first if second is None else second, first if y is None else y, grad, sums, rows, channels, each,
        ACTIVATIONS[act], TILE=tile, COLUMNS=columns, TWO=second is not None, CUTS=y is not None, WRITES=writes,
    )  # fmt: skip
    return grad, sums


@triton.jit
def _cut_off(
    first, second, y, grad, sums, rows, channels, each, above,
    TILE: tl.constexpr, COLUMNS: tl.constexpr, TWO: tl.constexpr, CUTS: tl.constexpr, WRITES: tl.constexpr,
):  # fmt: skip
    down = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((COLUMNS,), tl.float32)
    for start in range(0, each, TILE):
        row = down * each + start + tl.arange(0, TILE)
        inside = (row < rows)[:, None] & (column < channels)[None, :]
        at = row.to(tl.int64)[:, None] * channels + column[None, :]
        value = tl.load(first + at, mask=inside, other=0.0).to(tl.float32)
        if TWO:
            value += tl.load(second + at, mask=inside, other=0.0).to(tl.float32)
        if CUTS:
            output = tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
            value = tl.where((output <= 0) | (output >= above), 0.0, value)  # NaN is neither, and must go on
        if WRITES:
            tl.store(grad + at, value, mask=inside)
        total += tl.sum(value, 0)
    tl.store(sums + down * channels + column, total, mask=column < channels)


def shift_act(y: Tensor, shift: Tensor, shortcut: Tensor | None, act: str) -> Tensor:
    """Add the shift of each channel and the shortcut, and cut off, in place."""
    if shortcut is not None:
        shortcut = shortcut.contiguous(memory_format=torch.channels_last)
    n = y.numel()
    _shift_act[(triton.cdiv(n, _TILE),)](
        y, shift, y if shortcut is None else shortcut, n, y.shape[1], ACTIVATIONS[act],
        BLOCK=_TILE, ADDS=shortcut is not None, CUTS=act != "none",
    )  # fmt: skip
    return y


@triton.jit
def _shift_act(y, shift, shortcut, n, channels, above, BLOCK: tl.constexpr, ADDS: tl.constexpr, CUTS: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(y + at, mask=at < n).to(tl.float32) + tl.load(shift + at % channels, mask=at < n).to(tl.float32)
    if ADDS:
        value += tl.load(shortcut + at, mask=at < n).to(tl.float32)
    if CUTS:
        value = tl.where(value <= 0, 0.0, tl.where(value >= above, above, value))  # leaves NaN as it is
    tl.store(y + at, value, mask=at < n)


def _block(n: int) -> int:
    return int(min(2048, triton.next_power_of_2(n)))
