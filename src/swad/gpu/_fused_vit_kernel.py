"""Triton kernels for the parts of a ViT block between its matrix products, each with one pass over memory.

Under autocast, torch runs them as separate kernels that move the same numbers again and again: the residual addition,
the layer norm in float32, the cast to bfloat16, the GELU, and the sum over all tokens that is a bias's gradient.

    add_norm   x + delta + bias, kept in float32, and its layer norm in the precision of the next matrix product
    bias_gelu  gelu(hidden + bias)
    qkv        queries, keys and values of one matrix product; their gradients come back as one matrix

The backward kernels also sum the gradients of biases, scales and shifts: one row of sums per program, which torch adds.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.nn import functional

from swad.gpu._fused_norm_kernel import summed_tiles, tiles
from swad.util.kernels import launch

_PROGRAMS = 1056  # about eight for each of the 132 multiprocessors of an H200


# --- residual addition and layer norm -----------------------------------------------------------------------------


def add_norm(
    x: Tensor, delta: Tensor | None, bias: Tensor | None, norm: nn.LayerNorm, dtype: torch.dtype, first: bool = False
) -> tuple[Tensor, Tensor]:
    """Return ``x + delta + bias`` in float32, and its layer norm in `dtype`; without `delta` the first is `x`.

    With `first`, the first result holds the first token of every image only.
    """
    x, y = _AddNorm.apply(x, delta, bias, norm.weight, norm.bias, norm.eps, dtype, first)
    return x, y


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, delta: Tensor | None, bias: Tensor | None, gamma: Tensor, beta: Tensor, eps: float,
        dtype: torch.dtype, first: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        x = x.contiguous()
        width = x.shape[-1]
        rows = x.numel() // width
        total = x if delta is None else torch.empty_like(x)
        y = torch.empty_like(x, dtype=dtype)
        statistics = torch.empty(2, rows, dtype=torch.float32, device=x.device)
        launch(_add_norm, (rows,))(
            x, x if delta is None else delta.contiguous(), gamma if bias is None else bias, gamma, beta, total, y,
            statistics, rows, width, eps, BLOCK=triton.next_power_of_2(width), ADDS=delta is not None,
            HAS_BIAS=bias is not None,
        )  # fmt: skip
        ctx.save_for_backward(total, gamma, statistics)
        ctx.delta_dtype, ctx.has_bias = None if delta is None else delta.dtype, bias is not None
        ctx.every = x.shape[1] if first else 1
        if first:
            return total[:, :1].clone(), y
        # Without `delta` the sum is the input itself, and autograd must know that it is passed on.
        return (x.view_as(x) if delta is None else total), y

    @staticmethod
    def backward(ctx: Any, of_total: Tensor, of_y: Tensor) -> tuple[Tensor | None, ...]:
        total, gamma, statistics = ctx.saved_tensors
        width = total.shape[-1]
        rows = total.numel() // width
        programs = min(rows, _PROGRAMS)
        of_x = torch.empty_like(total)
        of_delta = of_x if ctx.delta_dtype is None else torch.empty_like(total, dtype=ctx.delta_dtype)
        sums = torch.empty(programs, 3, width, dtype=torch.float32, device=total.device)
        launch(_add_norm_backward, (programs,))(
            of_total.contiguous(), of_y.contiguous(), total, gamma, statistics, of_x, of_delta, sums,
            total.numel(), rows, width, triton.cdiv(rows, programs), ctx.every, BLOCK=triton.next_power_of_2(width),
            ADDS=ctx.delta_dtype is not None, num_warps=1,
        )  # fmt: skip
        of_gamma, of_beta, of_bias = sums.sum(0)
        added = ctx.delta_dtype is not None
        of_bias = of_bias if ctx.has_bias else None
        return of_x, of_delta if added else None, of_bias, of_gamma, of_beta, None, None, None


@triton.jit
def _add_norm(
    x, delta, bias, gamma, beta, total, y, statistics, rows, width, eps,
    BLOCK: tl.constexpr, ADDS: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    at = row * width + column
    value = tl.load(x + at, mask=inside, other=0.0)
    if ADDS:
        value += tl.load(delta + at, mask=inside, other=0.0).to(tl.float32)
        if HAS_BIAS:
            value += tl.load(bias + column, mask=inside, other=0.0)
        tl.store(total + at, value, mask=inside)
    mean = tl.sum(value) / width
    centered = tl.where(inside, value - mean, 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(centered * centered) / width + eps)
    tl.store(statistics + row, mean)
    tl.store(statistics + rows + row, inverse)
    scale, shift = tl.load(gamma + column, mask=inside), tl.load(beta + column, mask=inside)
    tl.store(y + at, centered * inverse * scale + shift, mask=inside)


@triton.jit
def _add_norm_backward(
    of_total, of_y, total, gamma, statistics, of_x, of_delta, sums, n, rows, width, each, every,
    BLOCK: tl.constexpr, ADDS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < width
    scale = tl.load(gamma + column, mask=inside, other=0.0)
    of_gamma, of_beta = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    of_bias = tl.zeros((BLOCK,), tl.float32)
    for i in range(each):
        row = program.to(tl.int64) * each + i
        at = row * width + column
        present = inside & (at < n)
        known = tl.minimum(row, rows - 1)
        mean, inverse = tl.load(statistics + known), tl.load(statistics + rows + known)
        value = tl.load(total + at, mask=present, other=0.0)
        normalized = tl.where(present, (value - mean) * inverse, 0.0)
        grad = tl.load(of_y + at, mask=present, other=0.0).to(tl.float32)
        of_gamma += grad * normalized
        of_beta += grad
        grad *= scale
        along = tl.sum(grad * normalized) / width
        result = (grad - tl.sum(grad) / width - normalized * along) * inverse
        of_row = tl.load(of_total + row // every * width + column, mask=present, other=0.0)
        result += tl.where(row % every == 0, of_row, 0.0)  # of `every` rows, only the first was passed on
        tl.store(of_x + at, result, mask=present)
        if ADDS:
            tl.store(of_delta + at, result, mask=present)
            of_bias += tl.where(present, result, 0.0)
    out = sums + program * 3 * width + column
    tl.store(out, of_gamma, mask=inside)
    tl.store(out + width, of_beta, mask=inside)
    tl.store(out + 2 * width, of_bias, mask=inside)


# --- GELU ---------------------------------------------------------------------------------------------------------


def bias_gelu(hidden: Tensor, bias: Tensor) -> Tensor:
    """Return ``gelu(hidden + bias)``, computed in float32."""
    return _BiasGelu.apply(hidden, bias)


class _BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, bias: Tensor) -> Tensor:
        hidden = hidden.contiguous()
        y, width = torch.empty_like(hidden), hidden.shape[-1]
        rows = hidden.numel() // width
        layout = tiles(rows, width)
        launch(_bias_gelu, layout.grid)(hidden, bias, y, rows, width, TILE=layout.tile, COLUMNS=layout.columns)
        ctx.save_for_backward(hidden, bias)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        hidden, bias = ctx.saved_tensors
        width = hidden.shape[-1]
        rows = hidden.numel() // width
        layout = summed_tiles(rows, width)
        result = torch.empty_like(hidden)
        sums = torch.empty(layout.down, width, dtype=torch.float32, device=hidden.device)
        launch(_bias_gelu_backward, layout.grid)(
            grad.contiguous(), hidden, bias, result, sums, rows, width, layout.each,
            TILE=layout.tile, COLUMNS=layout.columns,
        )  # fmt: skip
        return result, sums.sum(0)


@triton.jit
def _normal(x):
    """Return the normal distribution's probability below x, to 1e-7, and its density.

    `tl.erf` would make the kernel wait for arithmetic instead of memory. The polynomial is 7.1.26 of Abramowitz and
    Stegun, Handbook of Mathematical Functions, whose exponential is that of the density.
    """
    bell = tl.exp(-0.5 * x * x)
    t = 1.0 / (1.0 + 0.2316418885 * tl.abs(x))
    tail = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    above = 0.5 * tail * bell
    return tl.where(x < 0, above, 1.0 - above), 0.3989422804014327 * bell


@triton.jit
def _bias_gelu(hidden, bias, y, rows, width, TILE: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    at = row.to(tl.int64)[:, None] * width + column[None, :]
    value = tl.load(hidden + at, mask=inside).to(tl.float32)
    value += tl.load(bias + column, mask=column < width, other=0.0)[None, :]
    below, _ = _normal(value)
    tl.store(y + at, value * below, mask=inside)


@triton.jit
def _bias_gelu_backward(
    grad, hidden, bias, result, sums, rows, width, each, TILE: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    down = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    shift = tl.load(bias + column, mask=column < width, other=0.0)
    total = tl.zeros((TILE, COLUMNS), tl.float32)
    for start in range(0, each, TILE):
        row = down * each + start + tl.arange(0, TILE)
        inside = (row < rows)[:, None] & (column < width)[None, :]
        at = row.to(tl.int64)[:, None] * width + column[None, :]
        value = tl.load(hidden + at, mask=inside, other=0.0).to(tl.float32) + shift[None, :]
        below, density = _normal(value)
        of_hidden = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32) * (below + value * density)
        tl.store(result + at, of_hidden, mask=inside)
        total += tl.where(inside, of_hidden, 0.0)
    tl.store(sums + down * width + column, tl.sum(total, 0), mask=column < width)


# --- matrix products ------------------------------------------------------------------------------------------------


def linear(x: Tensor, weight: Tensor, cast: Tensor) -> Tensor:
    """Return ``x @ cast.T``, where `cast` holds the values of `weight` in the precision of `x`."""
    return _Linear.apply(x, weight, cast)


class _Linear(torch.autograd.Function):
    """Gradients of the weights come out of the matrix product in float32, without a rounding and a pass in between."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, cast: Tensor) -> Tensor:
        ctx.save_for_backward(x, cast)
        with torch.autocast(x.device.type, enabled=False):
            return functional.linear(x, cast)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, cast = ctx.saved_tensors
        rows = grad.reshape(-1, grad.shape[-1])
        with torch.autocast(x.device.type, enabled=False):
            return (rows @ cast).view(x.shape), _product(rows.T, x.reshape(-1, x.shape[-1])), None


def _product(one: Tensor, two: Tensor) -> Tensor:
    """Return a matrix product in float32."""
    if one.dtype == torch.float32 or not one.is_cuda:
        return one.float() @ two.float()
    return torch.mm(one, two, out_dtype=torch.float32)


# --- queries, keys and values -------------------------------------------------------------------------------------


def qkv(y: Tensor, layer: nn.Linear, cast: Tensor, n_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values, ``[images, heads, tokens, width of a head]``, in the precision of `y`.

    `cast` holds the values of the weights in that precision.
    """
    q, k, v = _Qkv.apply(y, layer.weight, cast, layer.bias, n_heads)
    return q, k, v


class _Qkv(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, y: Tensor, weight: Tensor, cast: Tensor, bias: Tensor | None, n_heads: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        y = y.contiguous()
        with torch.autocast(y.device.type, enabled=False):
            product = functional.linear(y, cast, None if bias is None else bias.to(y.dtype))
        ctx.save_for_backward(y, cast)
        ctx.has_bias = bias is not None
        n, tokens, _ = y.shape
        q, k, v = product.view(n, tokens, 3, n_heads, -1).permute(2, 0, 3, 1, 4).unbind()
        return q, k, v

    @staticmethod
    def backward(ctx: Any, of_q: Tensor, of_k: Tensor, of_v: Tensor) -> tuple[Tensor | None, ...]:
        y, weight = ctx.saved_tensors
        width = y.shape[-1]
        grad, sums = pack([one.transpose(1, 2).reshape(-1, len(weight) // 3) for one in (of_q, of_k, of_v)])
        with torch.autocast(y.device.type, enabled=False):
            of_y = (grad @ weight).view(y.shape)
            of_weight = _product(grad.T, y.view(-1, width))
        return of_y, of_weight, None, sums.sum(0) if ctx.has_bias else None, None


def class_token_qkv(y: Tensor, layer: nn.Linear, cast: Tensor, n_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the query of the first token, and keys and values of all; see `qkv`."""
    q, k, v = _ClassTokenQkv.apply(y, layer.weight, cast, layer.bias, n_heads)
    return q, k, v


class _ClassTokenQkv(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, y: Tensor, weight: Tensor, cast: Tensor, bias: Tensor | None, n_heads: int
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(y, cast)
        ctx.has_bias = bias is not None
        biases = (None,) * 3 if bias is None else bias.to(y.dtype).chunk(3)
        with torch.autocast(y.device.type, enabled=False):
            products = [
                functional.linear(x, part, of_part)
                for x, part, of_part in zip((y[:, :1], y, y), cast.chunk(3), biases, strict=True)
            ]
        return tuple(one.view(*one.shape[:2], n_heads, -1).transpose(1, 2) for one in products)

    @staticmethod
    def backward(ctx: Any, of_q: Tensor, of_k: Tensor, of_v: Tensor) -> tuple[Tensor | None, ...]:
        y, cast = ctx.saved_tensors
        width = y.shape[-1]
        grads = [one.transpose(1, 2).reshape(-1, len(cast) // 3) for one in (of_q, of_k, of_v)]
        with torch.autocast(y.device.type, enabled=False):
            q, k, v = cast.chunk(3)
            of_y = torch.addmm(grads[1] @ k, grads[2], v).view(y.shape)
            of_y[:, 0] += grads[0] @ q
            inputs = (y[:, 0], y.view(-1, width), y.view(-1, width))
            of_weight = torch.cat([_product(grad.T, x) for grad, x in zip(grads, inputs, strict=True)])
        of_bias = torch.cat([grad.sum(0, dtype=torch.float32) for grad in grads]) if ctx.has_bias else None
        return of_y, of_weight, None, of_bias, None


def pack(parts: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return three matrices side by side, and the sums of all columns, one row per program."""
    first, second, third = (part.contiguous() for part in parts)
    rows, width = first.shape
    layout = summed_tiles(rows, width)
    packed = torch.empty(rows, 3 * width, dtype=first.dtype, device=first.device)
    sums = torch.empty(layout.down, 3 * width, dtype=torch.float32, device=first.device)
    launch(_pack, layout.grid)(
        first, second, third, packed, sums, rows, width, layout.each, TILE=layout.tile, COLUMNS=layout.columns
    )
    return packed, sums


@triton.jit
def _pack(
    first, second, third, packed, sums, rows, width, each, TILE: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    down = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    zero = tl.zeros((TILE, COLUMNS), tl.float32)
    of_first, of_second, of_third = zero, zero, zero
    for start in range(0, each, TILE):
        row = (down * each + start + tl.arange(0, TILE)).to(tl.int64)[:, None]
        inside = (row < rows) & (column < width)[None, :]
        at, into = row * width + column[None, :], packed + row * 3 * width + column[None, :]
        # One after the other, as the compiler does not vectorize loads from a pointer that is chosen at run time.
        value = tl.load(first + at, mask=inside, other=0.0)
        tl.store(into, value, mask=inside)
        of_first += value.to(tl.float32)
        value = tl.load(second + at, mask=inside, other=0.0)
        tl.store(into + width, value, mask=inside)
        of_second += value.to(tl.float32)
        value = tl.load(third + at, mask=inside, other=0.0)
        tl.store(into + 2 * width, value, mask=inside)
        of_third += value.to(tl.float32)
    out = sums + down * 3 * width + column
    tl.store(out, tl.sum(of_first, 0), mask=column < width)
    tl.store(out + width, tl.sum(of_second, 0), mask=column < width)
    tl.store(out + 2 * width, tl.sum(of_third, 0), mask=column < width)
