"""Digital corruptions: contrast, elastic deformation, large pixels, JPEG artifacts."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from swad.robustness.corruptions._filters import gaussian_blur, sample
from swad.robustness.corruptions._random import Noise


def contrast(images: Tensor, noise: Noise, factor: float) -> Tensor:
    """Move every value towards the mean of its channel."""
    mean = images.mean((2, 3), keepdim=True)
    return (images - mean) * factor + mean


# ------------------------------------------------------------ elastic


def elastic_transform(images: Tensor, noise: Noise, alpha: float, sigma: float, affine: float) -> Tensor:
    """Deform: a random affine map, then a smooth random displacement of every pixel.

    Args:
        images: Batch of images.
        noise: Random numbers.
        alpha: Scale of the displacements, in pixels before smoothing.
        sigma: Standard deviation of the Gaussian that smooths them, in pixels.
        affine: Each corner of a central triangle moves by up to this many pixels per axis.
    """
    height, width = images.shape[2:]
    y, x = affine_coordinates(noise, height, width, affine)
    images = sample(images, y, x, "mirror")
    moves = noise.between("elastic_transform", -1, 1, 2, height, width)
    moves = alpha * gaussian_blur(moves, sigma, truncate=3.0, border="reflect")
    rows, columns = _grid(height, width, images)
    return sample(images, rows + moves[:, 1], columns + moves[:, 0], "reflect").to(images)


def affine_coordinates(noise: Noise, height: int, width: int, affine: float) -> tuple[Tensor, Tensor]:
    """Return the coordinates that a random affine map samples at, `[images, height, width]` each.

    The map moves three points around the center; it is inverted to find where each output pixel comes from. As OpenCV
    computes with whole numbers, coordinates are multiples of 1/32 pixel.
    """
    moves = noise.between("elastic_transform/affine", -affine, affine, 3, 2)
    center, reach = (height // 2, width // 2), min(height, width) // 3
    points = moves.new_tensor(
        [
            [center[1] + reach, center[0] + reach],
            [center[1] + reach, center[0] - reach],
            [center[1] - reach, center[0] - reach],
        ]
    )
    moved = torch.cat([points + moves, torch.ones_like(moves[..., :1])], -1)
    inverse = torch.linalg.solve(moved, points.expand(len(moves), -1, -1))  # rows: x, y, constant
    rows, columns = _grid(height, width, moves)
    per_column, per_row, constant = (1024 * inverse[:, :, :, None, None]).unbind(1)
    whole = (columns * per_column).round() + (rows * per_row + constant).round() + 16
    x, y = ((whole / 32).floor() / 32).unbind(1)
    return y, x


def _grid(height: int, width: int, like: Tensor) -> tuple[Tensor, Tensor]:
    rows = torch.arange(height, dtype=torch.float64, device=like.device)
    columns = torch.arange(width, dtype=torch.float64, device=like.device)
    return rows[:, None].expand(-1, width), columns.expand(height, -1)


# ------------------------------------------------------------ pixelate


def pixelate(images: Tensor, noise: Noise, factor: float) -> Tensor:
    """Shrink by this factor and enlarge again, both with Pillow's box filter."""
    height, width = images.shape[2:]
    values = (images * 255).round()
    for new_height, new_width in ((max(1, int(height * factor)), max(1, int(width * factor))), (height, width)):
        values = _resize_rows(values.mT, new_width).mT
        values = _resize_rows(values, new_height)
    return values / 255


def _resize_rows(values: Tensor, size: int) -> Tensor:
    """Resize the height as Pillow does: with weights of 22 binary digits, and rounded to bytes."""
    weights = (box_matrix(values.shape[2], size).to(values) * 2**22 + 0.5).floor()
    return ((weights @ values + 2**21) / 2**22).floor()


@cache
def box_matrix(size: int, new_size: int) -> Tensor:
    """Return the matrix that resizes a line with Pillow's box filter."""
    scale = size / new_size
    support = max(scale, 1.0) / 2
    matrix = torch.zeros(new_size, size, dtype=torch.float64)
    for row in range(new_size):
        center = (row + 0.5) * scale
        first, last = max(0, int(center - support + 0.5)), min(size, int(center + support + 0.5))
        for column in range(first, last):
            position = (column - center + 0.5) / max(scale, 1.0)
            matrix[row, column] = float(-0.5 < position <= 0.5)
    return matrix / matrix.sum(1, keepdim=True)


# ------------------------------------------------------------ JPEG

_LUMINANCE = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
_CHROMINANCE = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    *((99,) * 8,) * 4,
)
"""Quantization tables of annex K of the JPEG standard, for quality 50."""


def jpeg_compression(images: Tensor, noise: Noise, quality: float) -> Tensor:
    """Encode and decode as baseline JPEG with halved chroma resolution, without the lossless part.

    All numbers are whole, as in libjpeg, and so are its results: the bytes are the same.
    """
    values = (images * 255).round()
    if images.shape[1] == 1:
        return _luma(values, quality) / 255
    height, width = images.shape[2:]
    # libjpeg fills blocks with the last column before it halves the chroma resolution, and with the last row after it.
    red, green, blue = _pad_to(values, 2, 16).unbind(1)
    luma = _shifted(19595 * red + 38470 * green + 7471 * blue, 16)
    chroma = torch.stack([-11059 * red - 21709 * green + 32768 * blue, 32768 * red - 27439 * green - 5329 * blue], 1)
    chroma = ((chroma + 32767) / 65536).floor()
    # libjpeg adds 1/4 and 1/2 by turns before it rounds down, so that the mean has no bias.
    chroma = torch.nn.functional.avg_pool2d(chroma, 2)
    chroma = (chroma + chroma.new_tensor([0.25, 0.5]).repeat(chroma.shape[-1] // 2)).floor()
    chroma = _decoded(chroma, _table(_CHROMINANCE, quality)).clamp(-128, 127)
    chroma = _double(chroma[:, :, : (height + 1) // 2, : (width + 1) // 2])[:, :, :height, :width]
    blue_difference, red_difference = chroma.unbind(1)
    luma = _luma(luma[:, None], quality)[:, :, :height, :width]
    added = torch.stack(
        [91881 * red_difference, -22554 * blue_difference - 46802 * red_difference, 116130 * blue_difference], 1
    )
    return (luma + _shifted(added, 16)).clamp(0, 255) / 255


def _shifted(values: Tensor, bits: int) -> Tensor:
    """Divide whole numbers by a power of 2 and round to the nearest, halves up."""
    return ((values + (1 << bits - 1)) / (1 << bits)).floor()


def _luma(values: Tensor, quality: float) -> Tensor:
    return (_decoded(values - 128, _table(_LUMINANCE, quality)) + 128).clamp(0, 255)


def _table(base: tuple[tuple[int, ...], ...], quality: float) -> Tensor:
    """Scale a quantization table as libjpeg does."""
    scale = 5000 / quality if quality < 50 else 200 - 2 * quality
    return torch.tensor(base).mul(int(scale)).add(50).div(100, rounding_mode="floor").clamp(1, 255)


def _decoded(channels: Tensor, table: Tensor) -> Tensor:
    """Quantize the cosine transform of every block of 8 x 8 values and transform back."""
    height, width = channels.shape[2:]
    padded = _pad_to(channels, 8, 8)
    transform, steps = _cosines().to(channels), 8 * table.to(channels)
    blocks = padded.unfold(2, 8, 8).unfold(3, 8, 8)
    coefficients = _shifted(transform @ _shifted(blocks @ transform.mT, 11), 15)
    quantized = coefficients.sign() * (coefficients.abs() / steps + 0.5).floor() * steps / 8
    blocks = _shifted(_shifted(transform.mT @ quantized, 11) @ transform, 18)
    return blocks.transpose(3, 4).reshape(padded.shape)[:, :, :height, :width]


@cache
def _cosines() -> Tensor:
    """Return the matrix of libjpeg's accurate cosine transform, times 2^13 * sqrt(8)."""
    half = torch.tensor(
        [
            [8192, 8192, 8192, 8192],
            [11363, 9633, 6437, 2260],
            [10703, 4433, -4433, -10703],
            [9633, -2259, -11362, -6436],
            [8192, -8192, -8192, 8192],
            [6437, -11362, 2261, 9633],
            [4433, -10704, 10704, -4433],
            [2260, -6436, 9633, -11363],
        ],
        dtype=torch.float64,
    )
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(4)[:, None]
    return torch.cat([half, signs * half.flip(1)], 1)


def _pad_to(images: Tensor, rows: int, columns: int) -> Tensor:
    """Repeat the last row and column until height and width are multiples of these."""
    height, width = images.shape[2:]
    return torch.nn.functional.pad(images, (0, -width % columns, 0, -height % rows), mode="replicate")


def _double(chroma: Tensor) -> Tensor:
    """Double the resolution with the triangle filter of libjpeg: 3/4 of the near value, 1/4 of the far one."""
    for axis in (2, 3):
        near = chroma.movedim(axis, -1)
        before = torch.cat([near[..., :1], near[..., :-1]], -1)
        after = torch.cat([near[..., 1:], near[..., -1:]], -1)
        doubled = torch.stack([3 * near + before, 3 * near + after], -1).flatten(-2)
        chroma = doubled.movedim(-1, axis)
    # Halves are rounded up and down by turns.
    return ((chroma + chroma.new_tensor([8, 7]).repeat(chroma.shape[-1] // 2)) / 16).floor()
