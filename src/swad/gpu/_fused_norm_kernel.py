"""Triton kernels for a convolution, the frozen batch norm after it, a shortcut and a ReLU, with few passes over memory.

Forward: one kernel multiplies the weights by the batch norm's scale and computes the shift (see
`swad.gpu.fused_norm`), cuDNN convolves, and one kernel adds shift and shortcut and applies the activation. Backward:
one kernel sets the gradient to zero where the activation did, sums it for the gradient of the shift, and adds the two
gradients of an output that was used twice. Then follow cuDNN's two convolutions, and one kernel that turns the gradient
of the scaled weights into those of weights and scale. Only the inputs and outputs of convolutions are kept.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.nn import functional

from swad.util.kernels import launch

ACTIVATIONS = {"none": 0.0, "relu": float("inf"), "relu6": 6.0}
"""The upper bound of each activation; "none" has no lower bound either."""

# Measured on an H200 for matrices of 64 to 3,072 columns: tiles of 4,096 numbers, or 2,048 where columns are summed by
# about eight programs for each of the 132 multiprocessors.
_TILE, _SUMMED, _PROGRAMS = 4096, 2048, 1056
# One size for the weights of all layers, so that there is one kernel to compile (about half a second) and not a dozen.
_BLOCK = 1024


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
        stride, padding, *others = conv_options
        ctx.in_blocks = x.shape[1] <= 4 and stride == (2, 2) and others == [(1, 1), 1] and not ctx.needs_input_grad[0]
        if ctx.in_blocks:
            x, scaled = space_to_depth(x, scaled, padding)
            conv_options = ((1, 1), (0, 0), (1, 1), 1)
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
        if ctx.in_blocks:
            of_scaled = depth_to_space(of_scaled, weight)
        of_weight, of_gamma, of_beta = split_gradients(of_scaled, weight, gamma, mean, var, ctx.eps, sums)
        return of_images, of_weight, of_gamma, of_beta, None, None, None, grad if ctx.has_shortcut else None, None, None


def space_to_depth(x: Tensor, weight: Tensor, padding: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return images and weights for which a convolution of stride 1 gives what one of stride 2 gives for these.

    Blocks of 2 × 2 pixels become 16 channels: cuDNN is slow with three, by a factor of 2.5 for ResNet-50's first
    convolution.
    """
    channels, (height, width) = x.shape[1], x.shape[2:]
    sizes = [
        (n + 2 * p - k) // 2 + -(-k // 2) for n, p, k in zip((height, width), padding, weight.shape[2:], strict=True)
    ]
    ends = [2 * size - n - p for size, n, p in zip(sizes, (height, width), padding, strict=True)]
    spare = 4 - channels
    x = functional.pad(x, (padding[1], ends[1], padding[0], ends[0], 0, spare))
    odd = (0, weight.shape[3] % 2, 0, weight.shape[2] % 2, 0, spare)
    return _blocks_to_channels(x), _blocks_to_channels(functional.pad(weight, odd))


def _blocks_to_channels(x: Tensor) -> Tensor:
    n, channels, height, width = x.shape
    blocks = x.permute(0, 2, 3, 1).reshape(n, height // 2, 2, width // 2, 2, channels).transpose(2, 3)
    return blocks.reshape(n, height // 2, width // 2, 4 * channels).permute(0, 3, 1, 2)


def depth_to_space(of_blocks: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient of the weights that `space_to_depth` was given."""
    n, channels, height, width = of_blocks.shape
    pixels = of_blocks.permute(0, 2, 3, 1).reshape(n, height, width, 2, 2, channels // 4).transpose(2, 3)
    pixels = pixels.reshape(n, 2 * height, 2 * width, channels // 4).permute(0, 3, 1, 2)
    return pixels[:, : weight.shape[1], : weight.shape[2], : weight.shape[3]]


# --- the kernels ------------------------------------------------------------------------------------------------


def max_pool(x: Tensor, size: int, stride: int, padding: int) -> Tensor:
    """Return the largest value in every window; the gradient goes to the first of equals, as in torch."""
    return _MaxPool.apply(x.contiguous(memory_format=torch.channels_last), size, stride, padding)


class _MaxPool(torch.autograd.Function):
    """torch's own kernels for this layout take a millisecond of ResNet-50's step, these a tenth of one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, size: int, stride: int, padding: int) -> Tensor:
        n, channels, height, width = x.shape
        shape = (n, channels, (height + 2 * padding - size) // stride + 1, (width + 2 * padding - size) // stride + 1)
        y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        place = torch.empty_like(y, dtype=torch.int8)
        ctx.shape, ctx.window = x.shape, (size, stride, padding)
        _launch_pool(_max_pool, x, y, place, y, ctx.window)
        ctx.save_for_backward(place)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (place,) = ctx.saved_tensors
        grad = grad.contiguous(memory_format=torch.channels_last)
        of_x = torch.empty(ctx.shape, dtype=grad.dtype, device=grad.device, memory_format=torch.channels_last)
        _launch_pool(_max_pool_backward, of_x, grad, place, of_x, ctx.window)
        return of_x, None, None, None


def _launch_pool(kernel: Any, x: Tensor, y: Tensor, place: Tensor, written: Tensor, window: tuple[int, ...]) -> None:
    channels = x.shape[1]
    rows = written.numel() // channels
    layout = tiles(rows, channels, 1024)  # small ones, which compile in a quarter of the time
    launch(kernel, layout.grid)(
        x, y, place, rows, channels, *x.shape[2:], *y.shape[2:], SIZE=window[0], STRIDE=window[1], PADDING=window[2],
        TILE=layout.tile, COLUMNS=layout.columns,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows"])
def _max_pool(
    x, y, place, rows, channels, height, width, out_height, out_width,
    SIZE: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, TILE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    image, top = row // (out_height * out_width), row // out_width % out_height * STRIDE - PADDING
    left = row % out_width * STRIDE - PADDING
    known = (row < rows)[:, None] & (column < channels)[None, :]
    best = tl.full((TILE, COLUMNS), float("-inf"), tl.float32)
    at_best = tl.zeros((TILE, COLUMNS), tl.int32)
    for i in tl.static_range(SIZE):
        for j in tl.static_range(SIZE):
            inside = (top + i >= 0) & (top + i < height) & (left + j >= 0) & (left + j < width)
            pixel = (image.to(tl.int64) * height + top + i) * width + left + j
            at = pixel[:, None] * channels + column[None, :]
            value = tl.load(x + at, mask=known & inside[:, None], other=float("-inf")).to(tl.float32)
            larger = (value > best) | (value != value)  # NaN is passed on
            best = tl.where(larger, value, best)
            at_best = tl.where(larger, i * SIZE + j, at_best)
    at = row.to(tl.int64)[:, None] * channels + column[None, :]
    tl.store(y + at, best, mask=known)
    tl.store(place + at, at_best, mask=known)


@triton.jit(do_not_specialize=["rows"])
def _max_pool_backward(
    of_x, of_y, place, rows, channels, height, width, out_height, out_width,
    SIZE: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, TILE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    image, down, across = row // (height * width), row // width % height + PADDING, row % width + PADDING
    known = (row < rows)[:, None] & (column < channels)[None, :]
    total = tl.zeros((TILE, COLUMNS), tl.float32)
    # A pixel is in the window that starts at or before it, and in the windows before that one.
    for i in tl.static_range((SIZE + STRIDE - 1) // STRIDE):
        for j in tl.static_range((SIZE + STRIDE - 1) // STRIDE):
            window, beside = down // STRIDE - i, across // STRIDE - j
            inside = (window >= 0) & (window < out_height) & (beside >= 0) & (beside < out_width)
            mine = (down - window * STRIDE) * SIZE + across - beside * STRIDE
            inside &= (down - window * STRIDE < SIZE) & (across - beside * STRIDE < SIZE)
            pixel = (image.to(tl.int64) * out_height + window) * out_width + beside
            at = pixel[:, None] * channels + column[None, :]
            chosen = tl.load(place + at, mask=known & inside[:, None], other=-1).to(tl.int32) == mine[:, None]
            total += tl.where(chosen, tl.load(of_y + at, mask=known & inside[:, None], other=0.0).to(tl.float32), 0.0)
    tl.store(of_x + row.to(tl.int64)[:, None] * channels + column[None, :], total, mask=known)


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
    launch(_scale_weights, (len(weight),))(weight, gamma, beta, mean, var, scaled, shift, n, eps, BLOCK=_BLOCK)
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
    launch(_split_gradients, (len(weight),))(
        grad, weight, gamma, mean, var, sums, of_weight, of_gamma, of_beta, n, len(sums), len(weight), eps,
        BLOCK=_BLOCK,
    )  # fmt: skip
    return of_weight, of_gamma, of_beta


@triton.jit(do_not_specialize=["parts"])
def _split_gradients(
    grad, weight, gamma, mean, var, sums, of_weight, of_gamma, of_beta, n, parts, rows, eps, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0)
    inverse = 1.0 / tl.sqrt(tl.load(var + row) + eps)
    scale = tl.load(gamma + row) * inverse
    shifts = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, parts, BLOCK):
        part = start + tl.arange(0, BLOCK)
        shifts += tl.load(sums + part * rows + row, mask=part < parts, other=0.0)
    of_shift = tl.sum(shifts)
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
    layout = summed_tiles(rows, channels)
    writes = y is not None or second is not None
    grad = torch.empty_like(first) if writes else first
    sums = torch.empty(layout.down, channels, dtype=torch.float32, device=first.device)
    launch(_activation_backward, layout.grid)(
        first, first if second is None else second, first if y is None else y, grad, sums, rows, channels, layout.each,
        ACTIVATIONS[act], TILE=layout.tile, COLUMNS=layout.columns, TWO=second is not None, CLAMPS=y is not None,
        WRITES=writes,
    )  # fmt: skip
    return grad, sums


@triton.jit(do_not_specialize=["rows"])
def _activation_backward(
    first, second, y, grad, sums, rows, channels, each, above,
    TILE: tl.constexpr, COLUMNS: tl.constexpr, TWO: tl.constexpr, CLAMPS: tl.constexpr, WRITES: tl.constexpr,
):  # fmt: skip
    down = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((TILE, COLUMNS), tl.float32)  # summed once at the end: each sum makes the threads wait
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
        total += value
    tl.store(sums + down * channels + column, tl.sum(total, 0), mask=column < channels)


class Tiles(NamedTuple):
    """How programs share a matrix: `down` × `across` of them, with tiles of `tile` rows and `columns` columns."""

    tile: int
    columns: int
    down: int
    across: int
    each: int
    """Rows of one program, a whole number of tiles."""

    @property
    def grid(self) -> tuple[int, int]:
        return self.down, self.across


def tiles(rows: int, columns: int, numbers: int = _TILE) -> Tiles:
    """Give each program one tile of that many numbers."""
    wide = min(128, triton.next_power_of_2(columns))
    tile = numbers // wide
    return Tiles(tile, wide, triton.cdiv(rows, tile), triton.cdiv(columns, wide), tile)


def summed_tiles(rows: int, columns: int) -> Tiles:
    """Give each program several tiles below each other, whose columns it sums."""
    wide = min(64, triton.next_power_of_2(columns))
    tile, across = _SUMMED // wide, triton.cdiv(columns, wide)
    down = max(1, min(triton.cdiv(rows, tile), _PROGRAMS // across))
    each = triton.cdiv(triton.cdiv(rows, down), tile) * tile
    return Tiles(tile, wide, triton.cdiv(rows, each), across, each)


def shift_act(y: Tensor, shift: Tensor, shortcut: Tensor | None, act: str) -> Tensor:
    """Add the shift of each channel and the shortcut, and apply the activation, in place."""
    if shortcut is not None:
        shortcut = shortcut.contiguous(memory_format=torch.channels_last)
    channels = y.shape[1]
    rows = y.numel() // channels
    layout = tiles(rows, channels)
    launch(_shift_act, layout.grid)(
        y, shift, y if shortcut is None else shortcut, rows, channels, ACTIVATIONS[act],
        TILE=layout.tile, COLUMNS=layout.columns, ADDS=shortcut is not None, CLAMPS=act != "none",
    )  # fmt: skip
    return y


@triton.jit(do_not_specialize=["rows"])
def _shift_act(
    y, shift, shortcut, rows, channels, above,
    TILE: tl.constexpr, COLUMNS: tl.constexpr, ADDS: tl.constexpr, CLAMPS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < channels)[None, :]
    at = row.to(tl.int64)[:, None] * channels + column[None, :]
    value = tl.load(y + at, mask=inside).to(tl.float32)
    value += tl.load(shift + column, mask=column < channels, other=0.0)[None, :]
    if ADDS:
        value += tl.load(shortcut + at, mask=inside).to(tl.float32)
    if CLAMPS:
        value = tl.where(value <= 0, 0.0, tl.where(value >= above, above, value))  # keeps NaN
    tl.store(y + at, value, mask=inside)
