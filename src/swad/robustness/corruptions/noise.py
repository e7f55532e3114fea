"""Noise of sensors and of transmission."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from swad.robustness.corruptions._random import Noise


def gaussian_noise(images: Tensor, noise: Noise, sigma: float) -> Tensor:
    """Add a normal number of this standard deviation to every value."""
    return images + sigma * noise.normal("gaussian_noise", *images.shape[1:]).to(images)


def shot_noise(images: Tensor, noise: Noise, photons: float) -> Tensor:
    """Count photons: a value x becomes Poisson(photons * x) / photons."""
    uniform = noise.uniform("shot_noise", *images.shape[1:])
    return poisson_quantile(uniform, (images * 255).round().long(), photons / 255) / photons


def impulse_noise(images: Tensor, noise: Noise, amount: float) -> Tensor:
    """Replace this fraction of all values by 0 or 1, with equal probability."""
    uniform = noise.uniform("impulse_noise", *images.shape[1:])
    images = torch.where(uniform < amount / 2, torch.zeros_like(images), images)
    return torch.where((uniform >= amount / 2) & (uniform < amount), torch.ones_like(images), images)


def poisson_quantile(uniform: Tensor, values: Tensor, scale: float) -> Tensor:
    """Return the smallest count whose cumulative probability reaches `uniform`, for the rates `values * scale`.

    The cumulative probabilities of all 256 bytes make one sorted list, in which a binary search finds every count.
    torch.poisson draws numbers that depend on the device and the batch.

    Args:
        uniform: Multiples of 2^-53 from [0, 1).
        values: Bytes, as int64.
        scale: Rate of the byte 1.
    """
    limits = _poisson_limits(scale).to(values.device)
    wanted = values * _WHOLE + (uniform * _WHOLE).long()
    position = torch.searchsorted(limits.flatten(), wanted.contiguous())  # torch warns about other layouts
    return (position - values * limits.shape[1]).double()


_WHOLE = 1 << 53
"""The probability 1 as a whole number, for exact comparisons."""


@cache
def _poisson_limits(scale: float) -> Tensor:
    """Return the cumulative probabilities of counts, `[256, counts]`; row b is that of byte b and starts at b."""
    highest = 255 * scale
    rate = scale * torch.arange(256, dtype=torch.float64)
    terms = [torch.exp(-rate)]
    for k in range(1, int(highest + 12 * (highest + 1) ** 0.5) + 12):  # beyond it the probability is below 1e-20
        terms.append(terms[-1] * rate / k)
    limits = (torch.stack(terms, 1).cumsum(1) * _WHOLE).long().clamp(max=_WHOLE - 1)
    return torch.arange(256)[:, None] * _WHOLE + limits
