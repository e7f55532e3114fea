"""Triton kernels for the augmentation: the weights of the two matrix products, and all color operations after them.

In eager PyTorch these take dozens of passes over memory. Here the weights of an axis are written once, and the pixels
are read twice: once for the mean gray that contrast needs, and once to apply all operations. In between, a pixel stays
in registers, in float32. The results equal those of the plain code in `swad.testbed.data.gpu_augment`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from swad.testbed.data import augment_parameters as columns
from swad.util.images import LUMINANCE
from swad.util.kernels import launch

# A kernel can use globals of its module only if they are tl.constexpr.
_FIELDS = tl.constexpr(columns.FIELDS)
_START, _LENGTH, _IMAGE_LENGTH = (tl.constexpr(i) for i in (columns.TOP, columns.HEIGHT, columns.IMAGE_HEIGHT))
_FLIP, _GRAYSCALE = tl.constexpr(columns.FLIP), tl.constexpr(columns.GRAYSCALE)
_FACTORS, _ORDER = tl.constexpr(columns.FACTORS.start), tl.constexpr(columns.ORDER.start)
_CONTRAST, _SATURATION, _HUE = (tl.constexpr(i) for i in (columns.CONTRAST, columns.SATURATION, columns.HUE))
_RED_WEIGHT, _GREEN_WEIGHT, _BLUE_WEIGHT = (tl.constexpr(weight) for weight in LUMINANCE)

_PIXELS = 1024  # pixels of one image per program: 49 programs for an image of 224 × 224
_WEIGHTS = 4096  # weights per program: all weights of several output pixels, which are normalized together


# --- before the products ----------------------------------------------------------------------------------------


def weights(parameters: Tensor, axis: int, length: int, pixels: int, size: int, dtype: torch.dtype) -> Tensor:
    """Return the resampling weights of an axis, as `gpu_augment.weights` does."""
    result = torch.empty((len(parameters), size, pixels), dtype=dtype, device=parameters.device)
    columns = triton.next_power_of_2(pixels)
    outputs = max(1, _WEIGHTS // columns)
    with torch.cuda.device_of(result):
        launch(_weights, (len(parameters), triton.cdiv(size, outputs)))(
            parameters.contiguous(), result, length, pixels, size, AXIS=axis, OUTPUTS=outputs, COLUMNS=columns
        )
    return result


@triton.jit
def _weights(
    parameters, result, length, pixels, size, AXIS: tl.constexpr, OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr
):
    image = tl.program_id(0)
    row = parameters + image * _FIELDS + AXIS  # each parameter of the columns follows that of the rows
    zoom = length / tl.load(row + _IMAGE_LENGTH)
    crop_start, crop_length = tl.load(row + _START) * zoom, tl.load(row + _LENGTH) * zoom
    scale = crop_length / size
    radius = tl.maximum(scale, 1.0)
    number = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    output = number + 0.5
    if AXIS == 1:
        output = tl.where(tl.load(parameters + image * _FIELDS + _FLIP) > 0.5, size - output, output)
    column = tl.arange(0, COLUMNS)
    center = column + 0.5
    inside = tl.abs(center - (crop_start + crop_length / 2)) <= tl.maximum(crop_length / 2, 0.5) + 1e-3
    distance = ((crop_start + scale * output) / radius)[:, None] - (center / radius)[None, :]
    weight = tl.where(inside[None, :], tl.maximum(1 - tl.abs(distance), 0.0), 0.0)
    weight = weight / tl.sum(weight, 1)[:, None]
    if AXIS == 1:
        weight = weight / 255
    at = (image.to(tl.int64) * size + number)[:, None] * pixels + column[None, :]
    tl.store(result + at, weight, mask=(number < size)[:, None] & (column < pixels)[None, :])


# --- after the products -----------------------------------------------------------------------------------------


def finish(pixels: Tensor, parameters: Tensor, mean: Tensor, std: Tensor, result: Tensor) -> None:
    """Apply color jitter, grayscale and normalization to pixels ``[b, size, 3, size]``.

    ``result``, ``[b, 3, size, size]``, may have any type and memory format. Sums have a fixed order, so equal inputs
    give equal bits.
    """
    b, size = len(pixels), pixels.shape[-1]
    chunks = triton.cdiv(size * size, _PIXELS)
    sums = torch.empty((b, chunks), dtype=torch.float32, device=pixels.device)
    pixels, parameters = pixels.contiguous(), parameters.contiguous()
    with torch.cuda.device_of(pixels):
        launch(_sum_gray, (b, chunks))(pixels, parameters, sums, SIZE=size, PIXELS=_PIXELS)
        launch(_finish, (b, chunks))(
            pixels, parameters, sums, mean.contiguous(), std.contiguous(), result, *result.stride(), chunks,
            SIZE=size, PIXELS=_PIXELS, CHUNKS=triton.next_power_of_2(chunks),
        )  # fmt: skip


@triton.jit
def _sum_gray(pixels, parameters, sums, SIZE: tl.constexpr, PIXELS: tl.constexpr):
    """Sum the gray of a chunk of pixels as contrast sees it, after the operations that precede contrast."""
    image, chunk = tl.program_id(0), tl.program_id(1)
    at = chunk * PIXELS + tl.arange(0, PIXELS)
    red, green, blue = _read(pixels, image, at, SIZE)
    row = parameters + image * _FIELDS
    position = tl.arange(0, 4)
    contrast_at = tl.sum(tl.where(tl.load(row + _ORDER + position) == _CONTRAST, position, 0))
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
    grayscale = tl.load(row + _GRAYSCALE)
    gray = grayscale * _gray(red, green, blue)
    to = result + image.to(tl.int64) * per_image + (at // SIZE) * per_row + (at % SIZE) * per_column
    _write(to, gray + (1 - grayscale) * red, mean, std, at < SIZE * SIZE)
    _write(to + per_channel, gray + (1 - grayscale) * green, mean + 1, std + 1, at < SIZE * SIZE)
    _write(to + 2 * per_channel, gray + (1 - grayscale) * blue, mean + 2, std + 2, at < SIZE * SIZE)


@triton.jit
def _read(pixels, image, at, SIZE: tl.constexpr):
    """Load red, green and blue as float32."""
    address = pixels + image.to(tl.int64) * (3 * SIZE * SIZE) + (at // SIZE) * (3 * SIZE) + at % SIZE
    inside = at < SIZE * SIZE
    red = tl.load(address, mask=inside, other=0.0).to(tl.float32)
    green = tl.load(address + SIZE, mask=inside, other=0.0).to(tl.float32)
    blue = tl.load(address + 2 * SIZE, mask=inside, other=0.0).to(tl.float32)
    return red, green, blue


@triton.jit
def _write(address, value, mean, std, inside):
    tl.store(address, (value - tl.load(mean)) / tl.load(std), mask=inside)


@triton.jit
def _adjust(red, green, blue, row, i, level):
    """Apply operation i of an image: the hue, or a blend with the mean gray, each pixel's own gray, or black."""
    operation = tl.load(row + _ORDER + i).to(tl.int32)
    factor = tl.load(row + _FACTORS + operation)
    if operation == _HUE:
        # Rounded weights can sum to slightly more than one, and no blend may have clamped the pixels before.
        red, green, blue = _shift_hue(_clamp(red), _clamp(green), _clamp(blue), 6 * factor)
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
def _shift_hue(red, green, blue, sixths):
    """Rotate the hue as `gpu_augment.shift_hue` does: a channel is v - c · min(k, 4 - k, 1), with its own k."""
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
    """Return the fraction of the chroma by which a channel is below the value."""
    k = k - 6 * tl.floor(k / 6)
    return _clamp(tl.minimum(k, 4 - k))


@triton.jit
def _gray(red, green, blue):
    return _RED_WEIGHT * red + _GREEN_WEIGHT * green + _BLUE_WEIGHT * blue


@triton.jit
def _clamp(value):
    return tl.minimum(tl.maximum(value, 0.0), 1.0)
