"""The 15 corruptions of ImageNet-C for any images, in batches on their device, at five severities.

Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations", ICLR 2019.

>>> images = torch.rand(2, 3, 32, 32)
>>> corrupt(images, "fog", severity=3).shape
torch.Size([2, 3, 32, 32])

The same seed and image number give the same corruption on every device and in any batch. Severities have two scales:
that of ImageNet-C for large images, and that of CIFAR-10-C for images of up to 64 pixels. These corruptions follow the
published definitions to the byte, but the stored ImageNet-C is another set of images: its noise was drawn once, its
images were saved as JPEG of quality 85, and its frost is photographs. Do not compare errors here with errors on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from swad.robustness.corruptions import blur, digital, noise, weather
from swad.robustness.corruptions._filters import to_bytes
from swad.robustness.corruptions._random import Noise
from swad.util.names import did_you_mean

SEVERITIES = (1, 2, 3, 4, 5)
VERSION = 3
"""Version of the definitions, stored with measured errors. Version 1 rounded results to the nearest byte; up to version
2, the texture of frost was too dark."""
SMALL = 64
"""Images of up to this height take the severities of CIFAR-10-C."""


class Corruption(NamedTuple):
    """A corruption with the parameters of each severity, for large and for small images."""

    apply: Callable[..., Tensor]
    large: tuple[tuple[Any, ...], ...]
    small: tuple[tuple[Any, ...], ...]


def _each(*values: float) -> tuple[tuple[float, ...], ...]:
    return tuple((value,) for value in values)


def _scaled(size: int, *rows: tuple[float, ...]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(size * value for value in row) for row in rows)


CORRUPTIONS = {
    "gaussian_noise": Corruption(
        noise.gaussian_noise, _each(0.08, 0.12, 0.18, 0.26, 0.38), _each(0.04, 0.06, 0.08, 0.09, 0.10)
    ),
    "shot_noise": Corruption(noise.shot_noise, _each(60, 25, 12, 5, 3), _each(500, 250, 100, 75, 50)),
    "impulse_noise": Corruption(
        noise.impulse_noise, _each(0.03, 0.06, 0.09, 0.17, 0.27), _each(0.01, 0.02, 0.03, 0.05, 0.07)
    ),
    "defocus_blur": Corruption(
        blur.defocus_blur,
        ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
        ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    ),
    "glass_blur": Corruption(
        blur.glass_blur,
        ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
        ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    ),
    "motion_blur": Corruption(
        blur.motion_blur_random,
        ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
        ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    ),
    "zoom_blur": Corruption(
        blur.zoom_blur,
        ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
        ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
    ),
    "snow": Corruption(
        weather.snow,
        (
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ),
        (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
    ),
    "frost": Corruption(
        weather.frost,
        ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
        ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    ),
    "fog": Corruption(
        weather.fog,
        ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
        ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    ),
    "brightness": Corruption(weather.brightness, _each(0.1, 0.2, 0.3, 0.4, 0.5), _each(0.05, 0.1, 0.15, 0.2, 0.3)),
    "contrast": Corruption(digital.contrast, _each(0.4, 0.3, 0.2, 0.1, 0.05), _each(0.75, 0.5, 0.4, 0.3, 0.15)),
    # 244 is the published constant, a slip for 224.
    "elastic_transform": Corruption(
        digital.elastic_transform,
        _scaled(244, (2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)),
        _scaled(32, (0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    ),
    "pixelate": Corruption(digital.pixelate, _each(0.6, 0.5, 0.4, 0.3, 0.25), _each(0.95, 0.9, 0.85, 0.75, 0.65)),
    "jpeg_compression": Corruption(digital.jpeg_compression, _each(25, 18, 15, 10, 7), _each(80, 65, 58, 50, 40)),
}
"""All corruptions, in the order of ImageNet-C."""


def corrupt(
    images: Tensor, name: str, severity: int, *, seed: int = 0, indices: Tensor | None = None, small: bool | None = None
) -> Tensor:
    """Corrupt a batch of images; a severity of 0 returns them as they are.

    Args:
        images: `[images, channels, height, width]` with 1 or 3 channels: bytes, or floats from 0 to 1, which are
            rounded to bytes. The result has the same type; its values are bytes too, rounded down as in ImageNet-C.
        name: A key of `CORRUPTIONS`.
        severity: From 1 to 5.
        seed: Seed of all random numbers.
        indices: Number of every image in its dataset, so that an image is corrupted alike in any batch. Default: their
            position in the batch.
        small: Whether to take the severities for small images. Default: for a height of up to 64 pixels.
    """
    if indices is None:
        indices = torch.arange(len(images))
    _require_valid(images, name, severity, indices)
    if severity == 0 or not len(images):
        return images
    if small is None:
        small = images.shape[2] <= SMALL
    corruption = CORRUPTIONS[name]
    parameters = (corruption.small if small else corruption.large)[int(severity) - 1]
    # In double precision, since rounding down would turn a whole number with a small error into the one below.
    values = (images if images.dtype == torch.uint8 else (images * 255).round()).double() / 255
    random = Noise(seed, indices.to(images.device))
    values = to_bytes(corruption.apply(values, random, *parameters))
    return (values * 255).round().to(torch.uint8) if images.dtype == torch.uint8 else values.to(images.dtype)


def _require_valid(images: Tensor, name: str, severity: int, indices: Tensor) -> None:
    if name not in CORRUPTIONS:
        hint = did_you_mean(name, CORRUPTIONS) or f"the corruptions are {', '.join(CORRUPTIONS)}"
        raise ValueError(f"there is no corruption {name!r}: {hint}")
    if severity not in (0, *SEVERITIES):
        raise ValueError(f"severity must be a whole number from 0 to 5, got {severity!r}")
    if not isinstance(images, Tensor) or not isinstance(indices, Tensor):
        got = f"{type(images).__name__} and {type(indices).__name__}"
        raise TypeError(f"images and indices must be tensors, got {got}: convert them with torch.as_tensor")
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise ValueError(f"images must have the shape [images, 1 or 3, height, width], got {tuple(images.shape)}")
    if indices.shape != images.shape[:1]:
        raise ValueError(f"indices must number all {len(images)} images, got the shape {tuple(indices.shape)}")
    if not images.is_floating_point() and images.dtype != torch.uint8:
        raise ValueError(f"images must be bytes, or floats from 0 to 1, got {images.dtype}")
    if images.is_floating_point() and not bool(((images >= 0) & (images <= 1)).all()):
        raise ValueError("images of floats must have values from 0 to 1: divide values up to 255 by 255")
