"""Filters that several corruptions share: convolutions, Gaussian and motion blur, zoom, and sampling at coordinates."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional


def to_bytes(images: Tensor) -> Tensor:
    """Clip to [0, 1] and round down to multiples of 1/255, as a conversion to bytes does in numpy.

    A value that is whole but for an error of the last digits keeps its byte. Otherwise flat areas would depend on the
    order of a sum, which differs between devices.
    """
    return (images.clamp(0, 1) * 255 + 1e-6).floor() / 255


def convolve(images: Tensor, kernel: Tensor) -> Tensor:
    """Apply one symmetric kernel to every channel; the border is mirrored without its edge pixel (OpenCV's default)."""
    height, width = images.shape[2:]
    images = pad(images, kernel.shape[0] // 2, kernel.shape[1] // 2)
    size = images.shape[2:]
    # In double precision, Fourier transforms are ten times faster than conv2d on a CPU.
    spectrum = torch.fft.rfft2(images) * torch.fft.rfft2(kernel.to(images), s=size).conj()
    filtered: Tensor = torch.fft.irfft2(spectrum, s=size)
    return filtered[:, :, :height, :width]


def pad(images: Tensor, rows: int, columns: int) -> Tensor:
    """Mirror the border without its edge pixel, also by more pixels than the image has."""
    height, width = images.shape[2:]
    return images[:, :, mirror(torch.arange(-rows, height + rows), height).to(images.device)][
        :, :, :, mirror(torch.arange(-columns, width + columns), width).to(images.device)
    ]


def mirror(index: Tensor, size: int) -> Tensor:
    """Fold whole coordinates into an image, mirrored at its edge pixels: 2 1 | 0 1 2 3 | 2 1."""
    if size == 1:
        return torch.zeros_like(index)
    period = 2 * (size - 1)
    index = index.remainder(period)
    return torch.minimum(index, period - index)


def reflect(index: Tensor, size: int) -> Tensor:
    """Fold whole coordinates into an image, mirrored between pixels: 1 0 | 0 1 2 3 | 3 2 (scipy's "reflect")."""
    index = index.remainder(2 * size)
    return torch.minimum(index, 2 * size - 1 - index)


def gaussian_blur(images: Tensor, sigma: float, truncate: float = 4.0, border: str = "nearest") -> Tensor:
    """Blur as scipy.ndimage.gaussian_filter does.

    Args:
        images: Batch of images.
        sigma: Standard deviation in pixels.
        truncate: Radius of the kernel, in standard deviations.
        border: "nearest" repeats the edge pixel; "reflect" mirrors the image between pixels.
    """
    radius = int(truncate * sigma + 0.5)
    offsets = torch.arange(-radius, radius + 1)
    weights = torch.exp(-0.5 * (offsets.double() / sigma) ** 2) if radius else torch.ones(1, dtype=torch.float64)
    weights = weights / weights.sum()
    height, width = (_filter_matrix(size, offsets, weights, border).to(images) for size in images.shape[2:])
    return height @ images @ width.T


def _filter_matrix(size: int, offsets: Tensor, weights: Tensor, border: str) -> Tensor:
    """Return a filter with its border as a matrix: kernels wider than the image (elastic) cost no more than others."""
    index = torch.arange(size)[:, None] + offsets
    index = index.clamp(0, size - 1) if border == "nearest" else reflect(index, size)
    return torch.zeros(size, size, dtype=weights.dtype).scatter_add_(1, index, weights.expand(size, -1))


def motion_offsets(radius: int, angle: Tensor) -> tuple[Tensor, Tensor]:
    """Return the row and column offsets of ImageMagick's motion blur: `[images, 2 * radius + 1]` whole numbers."""
    steps = torch.arange(2 * radius + 1, device=angle.device, dtype=angle.dtype)
    radians = torch.deg2rad(angle)[:, None]
    columns = torch.ceil(steps * torch.cos(radians) - 0.5)
    rows = torch.ceil(steps * torch.sin(radians) - 0.5)
    return rows.long(), columns.long()


def motion_blur(images: Tensor, radius: int, sigma: float, angle: Tensor) -> Tensor:
    """Blur along a line that starts at the pixel, with Gaussian weights, as ImageMagick does; edges are repeated.

    ImageMagick computes with 16 bits and returns bytes. It rounded them to the nearest when ImageNet-C was made; since
    2021 it rounds them down.

    Args:
        images: Batch of images.
        radius: The line has 2 * radius + 1 pixels.
        sigma: Standard deviation of the weights, in pixels.
        angle: Angle of every image, in degrees.
    """
    n, channels, height, width = images.shape
    steps = torch.arange(2 * radius + 1, dtype=images.dtype, device=images.device)
    weights = torch.exp(-0.5 * (steps / sigma) ** 2)
    weights = weights / weights.sum()
    rows, columns = motion_offsets(radius, angle)
    y = torch.arange(height, device=images.device)
    x = torch.arange(width, device=images.device)
    flat = images.reshape(n, channels, -1)
    blurred = torch.zeros_like(images)
    for step, weight in enumerate(weights.tolist()):
        source_y = (y + rows[:, step, None]).clamp(0, height - 1)
        source_x = (x + columns[:, step, None]).clamp(0, width - 1)
        index = (source_y[:, :, None] * width + source_x[:, None, :]).view(n, 1, -1).expand(-1, channels, -1)
        blurred += weight * flat.gather(2, index).view_as(images)
    return ((blurred * 65535 + 0.5).floor() / 257).round() / 255


def zoom_center(images: Tensor, factor: float) -> Tensor:
    """Enlarge the center of the images and keep their size."""
    size = images.shape[2:]
    crop = [math.ceil(length / factor) for length in size]
    top, left = ((length - part) // 2 for length, part in zip(size, crop, strict=True))
    center = images[:, :, top : top + crop[0], left : left + crop[1]]
    # scipy.ndimage.zoom rounds the new size to the nearest whole number and aligns the corner pixels.
    enlarged = functional.interpolate(
        center, size=[round(part * factor) for part in crop], mode="bilinear", align_corners=True
    )
    top, left = ((part - length) // 2 for length, part in zip(size, enlarged.shape[2:], strict=True))
    return enlarged[:, :, top : top + size[0], left : left + size[1]]


def sample(images: Tensor, y: Tensor, x: Tensor, fold: str) -> Tensor:
    """Sample images at real coordinates by bilinear interpolation; coordinates `[images, height, width]`.

    Args:
        images: Batch of images.
        y: Row of every output pixel.
        x: Column of every output pixel.
        fold: How coordinates outside the image are folded back: "mirror" or "reflect".
    """
    n, channels, height, width = images.shape
    folded = {"mirror": mirror, "reflect": reflect}[fold]
    top, left = y.floor(), x.floor()
    down, right = (y - top)[:, None], (x - left)[:, None]
    flat = images.reshape(n, channels, -1)

    def at(rows: Tensor, columns: Tensor) -> Tensor:
        index = folded(rows.long(), height) * width + folded(columns.long(), width)
        return flat.gather(2, index.view(n, 1, -1).expand(-1, channels, -1)).view(n, channels, *y.shape[1:])

    upper = at(top, left) * (1 - right) + at(top, left + 1) * right
    lower = at(top + 1, left) * (1 - right) + at(top + 1, left + 1) * right
    return upper * (1 - down) + lower * down
