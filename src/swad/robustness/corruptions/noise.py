"""Noise of sensors and of transmission."""

from __future__ import annotations

import torch
from torch import Tensor

from swad.robustness.corruptions._random import Noise


def gaussian_noise(images: Tensor, noise: Noise, sigma: float) -> Tensor:
    """Add a normal number of this standard deviation to every value."""
    return images + sigma * noise.normal("gaussian_noise", *images.shape[1:]).to(images)


def shot_noise(images: Tensor, noise: Noise, photons: float) -> Tensor:
    """Count photons: a value x becomes Poisson(photons * x) / photons."""
    uniform = noise.uniform("shot_noise", *images.shape[1:])
    return (poisson_quantile(uniform, photons * images.double()) / photons).to(images)


def impulse_noise(images: Tensor, noise: Noise, amount: float) -> Tensor:
    """Replace this fraction of all values by 0 or 1, with equal probability."""
    uniform = noise.uniform("impulse_noise", *images.shape[1:])
    images = torch.where(uniform < amount / 2, torch.zeros_like(images), images)
    return torch.where((uniform >= amount / 2) & (uniform < amount), torch.ones_like(images), images)


def poisson_quantile(uniform: Tensor, rate: Tensor) -> Tensor:
    """Return the smallest count whose cumulative probability reaches `uniform`, for every rate.

    torch.poisson would be faster, but its numbers depend on the device and the batch.
    """
    term = torch.exp(-rate)
    cumulative, count = term.clone(), torch.zeros_like(rate)
    highest = float(rate.max()) if rate.numel() else 0.0
    for k in range(1, int(highest + 12 * (highest + 1) ** 0.5) + 12):  # beyond it the probability is below 1e-20
        missing = uniform > cumulative
        count += missing
        term = term * rate / k
        cumulative += term
    return count
