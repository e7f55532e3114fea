"""Triton kernels for a convolution, the frozen batch norm after it, a shortcut and a ReLU, with few passes over memory.

Forward: one kernel multiplies the weights by the batch norm's scale and computes the shift (see
`swad.models.fused_norm`), cuDNN convolves, and one kernel adds shift and shortcut and applies the activation. Backward:
one kernel sets the gradient to zero where the activation did, sums it for the gradient of the shift, and adds the two
gradients of an output that was used twice. Then follow cuDNN's two convolutions, and one kernel that turns the gradient
of the scaled weights into those of weights and scale. Only the inputs and outputs of convolutions are kept.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.nn import functional

ACTIVATIONS = {"none": 0.0, "relu": float("inf"), "relu6": 6.0}
"""The upper bound of each activation; "none" has no lower bound either."""

# Measured on an H200 for matrices of 64 to 2,048 columns: tiles of 4,096 numbers, about eight programs for each of
# the 132 multiprocessors.
_TILE, _PROGRAMS = 4096, 1056


def conv_norm_act(
    images: Tensor,
    conv: nn.Conv2d,
    norm: Any,
    act: str,
    shortcut: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Return ``act(norm(conv(images)) + shortcut)`` and an alias of it, for two uses whose gradients one pass adds."""
    images = images.to(dtype or images.dtype, memory_format=torch.channels_last)
    y, alias = _ConvNormAct.apply(
        images, conv.weight, norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.eps, shortcut, act,
        (conv.stride, conv.padding, conv.dilation, conv.groups),
    )  # fmt: skip
    return y, alias


class _ConvNormAct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, var: Tensor, eps: float,
        shortcut: Tensor | None, act: str, conv_options: tuple[Any, ...],
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        weight = weight.contiguous(memory_format=torch.channels_last)
        scaled, shift = scale_weights(weight, gamma, beta, mean, var, eps, x.dtype)
        with torch.autocast(x.device.type, enabled=False):
            y = functional.conv2d(x, scaled, None, *conv_options)
        y = shift_act(y.contiguous(memory_format=torch.channels_last), shift, shortcut, act)
        ctx.save_for_backward(x, weight, scaled, gamma, mean, var, y if act != "none" else None)
        ctx.eps, ctx.act, ctx.conv_options, ctx.has_shortcut = eps, act, conv_options, shortcut is not None
        ctx.set_materialize_grads(False)
        return y, y.view_as(y)

    @staticmethod
    def backward(ctx: Any, first: Tensor | None, second: Tensor | None) -> tuple[Tensor | None, ...]:
        x, weight, scaled, gamma, mean, var, y = ctx.saved_tensors
        if first is None:
            first, second = second, None
        assert first is not None
        grad, sums = activation_backward(first, second, y, ctx.act)
        stride, padding, dilation, groups = ctx.conv_options
        needed = [ctx.needs_input_grad[0], True, False]
        with torch.autocast(x.device.type, enabled=False):
            of_images, of_scaled, _ = torch.ops.aten.convolution_backward(
                grad, x, scaled, None, stride, padding, dilation, False, (0, 0), groups, needed
            )
        of_weight, of_gamma, of_beta = split_gradients(of_scaled, weight, gamma, mean, var, ctx.eps, sums)
        return of_images, of_weight, of_gamma, of_beta, None, None, None, grad if ctx.has_shortcut else None, None, None


# --- the kernels ------------------------------------------------------------------------------------------------


def scale_weights(
    weight: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, var: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return the weights times the scale, in `dtype`, and the shift: s = γ / √(v + ε), s·W and β − m·s.

    The shift stays in float32. It can be many times as large as what a step changes of it: in bfloat16 a shift of 16
    stays the same until it has moved by 0.06, which at a learning rate of 5e-5 takes a thousand steps. That is why
    cuDNN does not add it. It adds a bfloat16 bias at no cost, but for a float32 bias it first compiles a kernel for
    every shape (40 s for ResNet-50) that is no faster than a separate pass.
    """
    scaled = torch.empty_like(weight, dtype=dtype)
    shift = torch.empty_like(beta)
    n = weight[0].numel()
    _scale_weights[(len(weight),)](weight, gamma, beta, mean, var, scaled, shift, n, eps, BLOCK=_block(n))
    return scaled, shift


@triton.jit
def _scale_weights(weight, gamma, beta, mean, var, scaled, shift, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    scale = tl.load(gamma + row) / tl.sqrt(tl.load(var + row) + eps)
    tl.store(shift + row, tl.load(beta + row) - tl.load(mean + row) * scale)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(weight + row * n + at, mask=at < n)
        tl.store(scaled + row * n + at, value * scale, mask=at < n)


def split_gradients(
    grad: Tensor, weight: Tensor, gamma: Tensor, mean: Tensor, var: Tensor, eps: float, sums: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Turn the gradients of scaled weights and shift (`sums`, one row per program) into those of weights, γ and β."""
    grad = grad.contiguous(memory_format=torch.channels_last)
    of_weight = torch.empty_like(weight)
    of_gamma, of_beta = torch.empty_like(gamma), torch.empty_like(gamma)
    n = weight[0].numel()
    _split_gradients[(len(weight),)](
        grad, weight, gamma, mean, var, sums, of_weight, of_gamma, of_beta, n, len(sums), len(weight), eps,
        BLOCK=_block(n), PARTS=triton.next_power_of_2(len(sums)),
    )  # fmt: skip
    return of_weight, of_gamma, of_beta


@triton.jit
def _split_gradients(
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


def activation_backward(first: Tensor, second: Tensor | None, y: Tensor | None, act: str) -> tuple[Tensor, Tensor]:
    """Return the gradient before the activation, and its sums over all but channels, one row per program.

    `second` is the other gradient of an output with two uses, and is added first. `y` is None without an activation.
    """
    first = first.contiguous(memory_format=torch.channels_last)
    second = None if second is None else second.contiguous(memory_format=torch.channels_last)
    channels = first.shape[1]
    rows = first.numel() // channels
    columns = min(128, triton.next_power_of_2(channels))
    tile, across = _TILE // columns, triton.cdiv(channels, columns)
    down = max(1, min(triton.cdiv(rows, tile), _PROGRAMS // across))
    each = triton.cdiv(triton.cdiv(rows, down), tile) * tile  # rows of one program, a whole number of tiles
    down = triton.cdiv(rows, each)
    writes = y is not None or second is not None
    grad = torch.empty_like(first) if writes else first
    sums = torch.empty(down, channels, dtype=torch.float32, device=first.device)
    _activation_backward[(down, across)](
        first, first if second is None else second, first if y is None else y, grad, sums, rows, channels, each,
        ACTIVATIONS[act], TILE=tile, COLUMNS=columns, TWO=second is not None, CLAMPS=y is not None, WRITES=writes,
    )  # fmt: skip
    return grad, sums


@triton.jit
def _activation_backward(
    first, second, y, grad, sums, rows, channels, each, above,
    TILE: tl.constexpr, COLUMNS: tl.constexpr, TWO: tl.constexpr, CLAMPS: tl.constexpr, WRITES: tl.constexpr,
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
        if CLAMPS:
            output = tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
            value = tl.where((output <= 0) | (output >= above), 0.0, value)  # NaN compares false and is kept
        if WRITES:
            tl.store(grad + at, value, mask=inside)
        total += tl.sum(value, 0)
    tl.store(sums + down * channels + column, total, mask=column < channels)


def shift_act(y: Tensor, shift: Tensor, shortcut: Tensor | None, act: str) -> Tensor:
    """Add the shift of each channel and the shortcut, and apply the activation, in place."""
    if shortcut is not None:
        shortcut = shortcut.contiguous(memory_format=torch.channels_last)
    n = y.numel()
    _shift_act[(triton.cdiv(n, _TILE),)](
        y, shift, y if shortcut is None else shortcut, n, y.shape[1], ACTIVATIONS[act],
        BLOCK=_TILE, ADDS=shortcut is not None, CLAMPS=act != "none",
    )  # fmt: skip
    return y


@triton.jit
def _shift_act(y, shift, shortcut, n, channels, above, BLOCK: tl.constexpr, ADDS: tl.constexpr, CLAMPS: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(y + at, mask=at < n).to(tl.float32) + tl.load(shift + at % channels, mask=at < n).to(tl.float32)
    if ADDS:
        value += tl.load(shortcut + at, mask=at < n).to(tl.float32)
    if CLAMPS:
        value = tl.where(value <= 0, 0.0, tl.where(value >= above, above, value))  # keeps NaN
    tl.store(y + at, value, mask=at < n)


def _block(n: int) -> int:
    return int(min(2048, triton.next_power_of_2(n)))
