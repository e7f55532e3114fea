"""Weather: snow, frost, fog and bright light."""

from __future__ import annotations

import torch
from torch import Tensor

from swad.robustness.corruptions._filters import gaussian_blur, motion_blur, to_bytes, zoom_center
from swad.robustness.corruptions._random import Noise

LUMINANCE = (0.299, 0.587, 0.114)

FROST_MEAN, FROST_STD = 0.643, 0.129
"""Mean brightness of the five photographs that ImageNet-C adds as frost, and the mean of their standard deviations."""
TINY = 1e-12
"""Least standard deviation to divide by: that of a single pixel is 0."""


def snow(
    images: Tensor,
    noise: Noise,
    mean: float,
    std: float,
    zoom: float,
    threshold: float,
    radius: int,
    sigma: float,
    mix: float,
) -> Tensor:
    """Add flakes that fall at a random angle, in two directions, to a whitened image.

    Args:
        images: Batch of images.
        noise: Random numbers.
        mean: Mean of the normal numbers that become flakes.
        std: Their standard deviation.
        zoom: Enlargement of the flakes.
        threshold: Smaller numbers are not flakes.
        radius: Radius of the flakes' motion blur.
        sigma: Standard deviation of that blur.
        mix: Share of the original image; the rest is whitened.
    """
    height, width = images.shape[2:]
    layer = mean + std * noise.normal("snow", 1, height, width).to(images)
    layer = zoom_center(layer, zoom)
    layer = to_bytes(torch.where(layer < threshold, torch.zeros_like(layer), layer))
    layer = motion_blur(layer, radius, sigma, noise.between("snow/angle", -135, -45))
    white = torch.maximum(images, gray(images) * 1.5 + 0.5)
    return mix * images + (1 - mix) * white + layer + layer.flip(2, 3)


def frost(images: Tensor, noise: Noise, image_share: float, frost_share: float) -> Tensor:
    """Add a texture of ice crystals.

    ImageNet-C adds one of five photographs. They cannot be shipped here, so the texture is computed, as bright and as
    rich in contrast as they are on average. Errors under frost cannot be compared with those on ImageNet-C.
    """
    return image_share * images + frost_share * frost_texture(noise, *images.shape[2:]).to(images)


def frost_texture(noise: Noise, height: int, width: int) -> Tensor:
    """Return ice crystals, `[images, 1, height, width]`: thin bright ridges of smooth noise at several scales."""
    size = max(height, width)
    total = torch.zeros(len(noise.images), 1, height, width, dtype=torch.float64, device=noise.images.device)
    weight = 1.0
    for octave in range(4):
        sigma = size / (16 * 2**octave)
        smooth = gaussian_blur(noise.normal(f"frost/{octave}", 1, height, width), max(sigma, 0.5), border="reflect")
        smooth = smooth / smooth.std((2, 3), correction=0, keepdim=True).clamp_min(TINY)
        total += weight * torch.exp(-4 * smooth.abs())  # a ridge where the noise changes its sign
        weight *= 0.7
    std, mean = torch.std_mean(total, (2, 3), correction=0, keepdim=True)
    texture = FROST_MEAN + FROST_STD * (total - mean) / std.clamp_min(TINY)
    return texture.clamp(0, 1)  # a photograph is nowhere brighter than white


def fog(images: Tensor, noise: Noise, strength: float, decay: float) -> Tensor:
    """Add a cloud of diamond-square noise and scale back to the brightest value of the image."""
    height, width = images.shape[2:]
    highest = images.amax((1, 2, 3), keepdim=True)
    cloud = plasma(noise, max(height, width), decay)[:, None, :height, :width].to(images)
    return (images + strength * cloud) * highest / (highest + strength)


def plasma(noise: Noise, size: int, decay: float) -> Tensor:
    """Return diamond-square noise between 0 and 1: `[images, side, side]`, side being a power of 2 of at least `size`.

    Each round halves the spacing of the grid: first the centers of its squares, then the centers of the diamonds get
    the mean of their four neighbors plus a random number, whose range shrinks by `decay` from round to round. The map
    wraps around.
    """
    side = 1 << max(1, (size - 1).bit_length())
    n, device = len(noise.images), noise.images.device
    cloud = torch.zeros(n, side, side, dtype=torch.float64, device=device)
    spread, step = 100.0, side
    while step >= 2:
        half, count = step // 2, side // step

        def means(total: Tensor, which: str, spread: float = spread, step: int = step, count: int = count) -> Tensor:
            # The published code multiplies the random number by its range once more.
            return total / 4 + spread * noise.between(f"plasma/{step}/{which}", -spread, spread, count, count)

        corners = cloud[:, ::step, ::step]
        pairs = corners + corners.roll(-1, 1)
        cloud[:, half::step, half::step] = means(pairs + pairs.roll(-1, 2), "square")
        centers = cloud[:, half::step, half::step]
        cloud[:, ::step, half::step] = means(
            centers + centers.roll(1, 1) + corners + corners.roll(-1, 2), "upper diamond"
        )
        cloud[:, half::step, ::step] = means(
            centers + centers.roll(1, 2) + corners + corners.roll(-1, 1), "left diamond"
        )
        step, spread = half, spread / decay
    cloud -= cloud.amin((1, 2), keepdim=True)
    return cloud / cloud.amax((1, 2), keepdim=True)


def brightness(images: Tensor, noise: Noise, amount: float) -> Tensor:
    """Add to V of HSV; hue and saturation stay, so every channel is scaled by the same factor."""
    value = images.amax(1, keepdim=True)
    brighter = (value + amount).clamp(0, 1)
    return torch.where(value > 0, images * (brighter / value.clamp_min(1e-12)), brighter.expand_as(images))


def gray(images: Tensor) -> Tensor:
    """Return the luminance of RGB images, or gray images as they are, with one channel."""
    if images.shape[1] == 1:
        return images
    return (images * images.new_tensor(LUMINANCE).view(-1, 1, 1)).sum(1, keepdim=True)
