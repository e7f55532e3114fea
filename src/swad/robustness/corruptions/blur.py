"""Blur: of the lens, of frosted glass, of motion, of a zooming camera."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from swad.robustness.corruptions._filters import convolve, gaussian_blur, motion_blur, to_bytes, zoom_center
from swad.robustness.corruptions._random import Noise


def defocus_blur(images: Tensor, noise: Noise, radius: float, alias: float) -> Tensor:
    """Convolve with a disk whose edge is softened by a Gaussian of standard deviation `alias`."""
    half = max(8, math.floor(radius))
    x = torch.arange(-half, half + 1, dtype=torch.float64)
    disk = (x[:, None] ** 2 + x**2 <= radius**2).double()
    disk /= disk.sum()
    soft = 1 if radius <= 8 else 2  # the Gaussian has 3 x 3 or 5 x 5 pixels
    edge = torch.exp(-0.5 * (torch.arange(-soft, soft + 1, dtype=torch.float64) / alias) ** 2)
    edge /= edge.sum()
    kernel = convolve(disk[None, None], edge[:, None] * edge)[0, 0]
    return convolve(images, kernel)


def glass_blur(images: Tensor, noise: Noise, sigma: float, shift: int, iterations: int) -> Tensor:
    """Blur, let every pixel take the value of a near one, several times, and blur again.

    The published code means to swap two pixels. It copies one of them instead (two views of one array), and draws
    offsets from -shift to shift - 1. ImageNet-C was made that way, so this does the same.
    """
    blurred = to_bytes(gaussian_blur(images, sigma))
    n, channels, height, width = images.shape
    flat = blurred.reshape(n, channels, -1)
    for iteration in range(iterations):
        source = shuffle_sources(noise, f"glass_blur/{iteration}", height, width, shift)
        flat = flat.gather(2, source[:, None].expand(-1, channels, -1))
    return gaussian_blur(flat.view_as(images), sigma)


def shuffle_sources(noise: Noise, stream: str, height: int, width: int, shift: int) -> Tensor:
    """Return the pixel whose value every pixel has after one pass over the image: `[images, height * width]`.

    The pass goes from the last pixel to the first, a border of `shift` pixels excepted. A pixel takes the present
    value of a near one: the new value if the pass was there already, else the old one. Following the chain of new
    values to its end by doubling takes a few vectorized steps instead of a loop over pixels.
    """
    offsets = noise.integers(stream, -shift, shift, height, width, 2)
    rows, columns = torch.meshgrid(
        torch.arange(height, device=offsets.device), torch.arange(width, device=offsets.device), indexing="ij"
    )
    position = (rows * width + columns).flatten()
    near = ((rows + offsets[..., 1]) * width + columns + offsets[..., 0]).flatten(1)
    inside = (rows > shift) & (rows <= height - shift) & (columns > shift) & (columns <= width - shift)
    inside = inside.flatten()
    near = torch.where(inside, near, position)
    # A pixel that lies behind this one has its new value already.
    follows = inside & inside[near] & (near > position)
    jump = torch.where(follows, near, position)
    while True:
        further = jump.gather(1, jump)
        if torch.equal(further, jump):
            return near.gather(1, jump)
        jump = further


def motion_blur_random(images: Tensor, noise: Noise, radius: int, sigma: float) -> Tensor:
    """Blur along a line at a random angle between -45 and 45 degrees."""
    return motion_blur(images, radius, sigma, noise.between("motion_blur", -45, 45))


def zoom_blur(images: Tensor, noise: Noise, end: float, step: float) -> Tensor:
    """Average the image and its enlargements by factors from 1 up to `end`."""
    factors = np.arange(1, end, step).tolist()
    total = images.clone()
    for factor in factors:
        total += zoom_center(images, factor)
    return total / (len(factors) + 1)
