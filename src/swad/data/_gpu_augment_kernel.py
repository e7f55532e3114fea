"""The augmentation around its two matrix products: their weights before, everything about color after.

Call by call these are dozens of passes over memory. Here the weights of an axis are written once, and the pixels that
come out of the products are read twice: for the mean gray that contrast needs, and to be finished. Between reading and
writing a pixel stays in registers, in float32. The numbers are those of `swad.data.gpu_augment`, which runs everywhere.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from swad.data import gpu_augment

# A kernel sees those names of its module that are constants of Triton.
_FIELDS = tl.constexpr(gpu_augment.FIELDS)
_START, _LENGTH, _WHOLE = (tl.constexpr(i) for i in (gpu_augment.TOP, gpu_augment.HEIGHT, gpu_augment.IMAGE_HEIGHT))
_FLIP, _GRAYSCALE = tl.constexpr(gpu_augment.FLIP), tl.constexpr(gpu_augment.GRAYSCALE)
_FACTORS, _ORDER = tl.constexpr(gpu_augment.FACTORS.start), tl.constexpr(gpu_augment.ORDER.start)
_CONTRAST, _SATURATION, _HUE = (
    tl.constexpr(i) for i in (gpu_augment.CONTRAST, gpu_augment.SATURATION, gpu_augment.HUE)
)
_WEIGH_RED, _WEIGH_GREEN, _WEIGH_BLUE = (tl.constexpr(weight) for weight in gpu_augment.LUMINANCE)

_PIXELS = 1024  # of one image, for a program: 49 programs for each image of 224 × 224
_NUMBERS = 4096  # weights, for a program: whole pieces, of which each is divided by its sum


# --- before the products ----------------------------------------------------------------------------------------


def weights(parameters: Tensor, axis: int, held: int, pixels: int, size: int, dtype: torch.dtype) -> Tensor:
    """How much each pixel of an axis weighs in each of ``size`` pieces of the crop, as `augment.weights`."""
    result = torch.empty((len(parameters), size, pixels), dtype=dtype, device=parameters.device)
    columns = triton.next_power_of_2(pixels)
    pieces = max(1, _NUMBERS // columns)
    with torch.cuda.device_of(result):
        _weights[(len(parameters), triton.cdiv(size, pieces))](
            parameters.contiguous(), result, held, pixels, size, AXIS=axis, PIECES=pieces, COLUMNS=columns
        )
    return result


@triton.jit
def _weights(parameters, result, held, pixels, size, AXIS: tl.constexpr, PIECES: tl.constexpr, COLUMNS: tl.constexpr):
    image = tl.program_id(0)
    row = parameters + image * _FIELDS + AXIS  # what is said of columns stands one after what is said of rows
    zoom = held / tl.load(row + _WHOLE)
    start, length = tl.load(row + _START) * zoom, tl.load(row + _LENGTH) * zoom
    scale = length / size
    reach = tl.maximum(scale, 1.0)
    number = tl.program_id(1) * PIECES + tl.arange(0, PIECES)
    piece = number + 0.5
    if AXIS == 1:
        piece = tl.where(tl.load(parameters + image * _FIELDS + _FLIP) > 0.5, size - piece, piece)
    column = tl.arange(0, COLUMNS)
    middle = column + 0.5
    inside = tl.abs(middle - (start + length / 2)) <= tl.maximum(length / 2, 0.5) + 1e-3
    distance = ((start + scale * piece) / reach)[:, None] - (middle / reach)[None, :]
    weight = tl.where(inside[None, :], tl.maximum(1 - tl.abs(distance), 0.0), 0.0)
    weight = weight / tl.sum(weight, 1)[:, None]
    if AXIS == 1:
        weight = weight / 255
    at = (image.to(tl.int64) * size + number)[:, None] * pixels + column[None, :]
    tl.store(result + at, weight, mask=(number < size)[:, None] & (column < pixels)[None, :])


# --- after the products -----------------------------------------------------------------------------------------


def finish(pixels: Tensor, parameters: Tensor, mean: Tensor, std: Tensor, result: Tensor) -> None:
    """Jitter, make gray and normalize pixels ``[b, size, 3, size]`` into ``result``, ``[b, 3, size, size]``.

    ``result`` may have any type and layout. Sums are made in a fixed order: the same inputs give the same bits.
    """
    b, size = len(pixels), pixels.shape[-1]
    chunks = triton.cdiv(size * size, _PIXELS)
    sums = torch.empty((b, chunks), dtype=torch.float32, device=pixels.device)
    pixels, parameters = pixels.contiguous(), parameters.contiguous()
    with torch.cuda.device_of(pixels):
        _sum_gray[(b, chunks)](pixels, parameters, sums, SIZE=size, PIXELS=_PIXELS)
        _finish[(b, chunks)](
            pixels, parameters, sums, mean.contiguous(), std.contiguous(), result, *result.stride(), chunks,
            SIZE=size, PIXELS=_PIXELS, CHUNKS=triton.next_power_of_2(chunks),
        )  # fmt: skip


@triton.jit
def _sum_gray(pixels, parameters, sums, SIZE: tl.constexpr, PIXELS: tl.constexpr):
    """The sum over some pixels of their gray when contrast's turn comes: after the operations before it."""
    image, chunk = tl.program_id(0), tl.program_id(1)
    at = chunk * PIXELS + tl.arange(0, PIXELS)
    red, green, blue = _read(pixels, image, at, SIZE)
    row = parameters + image * _FIELDS
    turn = tl.arange(0, 4)
    contrast_at = tl.sum(tl.where(tl.load(row + _ORDER + turn) == _CONTRAST, turn, 0))
    for i in range(3):
        if i < contrast_at:
            red, green, blue = _adjust(red, green, blue, row, i, 0.0)
    gray = tl.where(at < SIZE * SIZE, _gray(red, green, blue), 0.0)
    tl.store(sums + image * tl.num_programs(1) + chunk, tl.sum(gray))


@triton.jit
def _finish(
    pixels, parameters, sums, mean, std, result, per_image, per_channel, per_row, per_column, chunks,
    SIZE: tl.constexpr, PIXELS: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0)
    at = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
    red, green, blue = _read(pixels, image, at, SIZE)
    row = parameters + image * _FIELDS
    chunk = tl.arange(0, CHUNKS)
    level = tl.sum(tl.load(sums + image * chunks + chunk, mask=chunk < chunks, other=0.0)) / (SIZE * SIZE)
    for i in range(4):
        red, green, blue = _adjust(red, green, blue, row, i, level)
    share = tl.load(row + _GRAYSCALE)
    gray = share * _gray(red, green, blue)
    to = result + image.to(tl.int64) * per_image + (at // SIZE) * per_row + (at % SIZE) * per_column
    _write(to, gray + (1 - share) * red, mean, std, at < SIZE * SIZE)
    _write(to + per_channel, gray + (1 - share) * green, mean + 1, std + 1, at < SIZE * SIZE)
    _write(to + 2 * per_channel, gray + (1 - share) * blue, mean + 2, std + 2, at < SIZE * SIZE)


@triton.jit
def _read(pixels, image, at, SIZE: tl.constexpr):
    """Red, green and blue in float32."""
    place = pixels + image.to(tl.int64) * (3 * SIZE * SIZE) + (at // SIZE) * (3 * SIZE) + at % SIZE
    inside = at < SIZE * SIZE
    red = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    green = tl.load(place + SIZE, mask=inside, other=0.0).to(tl.float32)
    blue = tl.load(place + 2 * SIZE, mask=inside, other=0.0).to(tl.float32)
    return red, green, blue


@triton.jit
def _write(place, value, mean, std, inside):
    tl.store(place, (value - tl.load(mean)) / tl.load(std), mask=inside)


@triton.jit
def _adjust(red, green, blue, row, i, level):
    """Operation number i of an image: the hue, or a mixture with the mean gray, each pixel's own gray, or black."""
    operation = tl.load(row + _ORDER + i).to(tl.int32)
    factor = tl.load(row + _FACTORS + operation)
    if operation == _HUE:
        # Rounded weights can add up to a little more than one, and no mixture may have come before.
        red, green, blue = _turn(_clamp(red), _clamp(green), _clamp(blue), 6 * factor)
    else:
        other = tl.where(operation == _SATURATION, _gray(red, green, blue), 0.0)
        other = (1 - factor) * tl.where(operation == _CONTRAST, level, other)
        red, green, blue = (
            _clamp(factor * red + other),
            _clamp(factor * green + other),
            _clamp(factor * blue + other),
        )
    return red, green, blue


@triton.jit
def _turn(red, green, blue, sixths):
    """Turn the hue, as `augment.shift_hue`: a channel is v - c · min(k, 4 - k, 1), for another k each."""
    value = tl.maximum(tl.maximum(red, green), blue)
    chroma = value - tl.minimum(tl.minimum(red, green), blue)
    hue = tl.where(value == green, blue - red + 2 * chroma, red - green + 4 * chroma)
    hue = tl.where(value == red, green - blue, hue) / tl.where(chroma > 0, chroma, 1.0) + sixths
    return (
        value - chroma * _below(hue + 5),
        value - chroma * _below(hue + 3),
        value - chroma * _below(hue + 1),
    )


@triton.jit
def _below(k):
    """How much of the chroma a channel lies below the value."""
    k = k - 6 * tl.floor(k / 6)
    return _clamp(tl.minimum(k, 4 - k))


@triton.jit
def _gray(red, green, blue):
    return _WEIGH_RED * red + _WEIGH_GREEN * green + _WEIGH_BLUE * blue


@triton.jit
def _clamp(value):
    return tl.minimum(tl.maximum(value, 0.0), 1.0)
