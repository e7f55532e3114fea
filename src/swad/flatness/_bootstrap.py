"""A bootstrap over directions and images at once, for the mean of a two-way table of losses.

The loss at (direction, image) is decomposed as in an analysis of variance: the effect of the direction on all images,
the effect of the image under all directions, and the rest. A resample draws directions (antithetic pairs stay
together) and, within every domain, images. Its mean is the mean of the drawn directions' effects plus the mean of the
drawn images' effects. The rest, which is smaller by the square root of the number of images or directions, is part of
both means and counts twice, so intervals are slightly wide rather than narrow.

So two margins of the table are enough: the mean over images for every direction, and the sum over directions for
every image. A thousand resamples are one matrix product for each.

A resample of n values has their spread, and few values estimate their own spread badly: plain intervals from 5 pairs
of directions contain the true mean 88 times in 100 instead of 95. Every resample is therefore divided by a random
number that turns a normal variable into Student's t. Intervals and p-values of any level are then those of t with
n - 1 degrees of freedom; for 5 pairs they are wider by 2.78 / 1.96 at 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 2**22
"""Largest number of resampling weights in memory."""


@dataclass(frozen=True)
class Effects:
    """Effects on the loss of one domain: by resampling unit (units x columns) and by image (images x columns)."""

    units: Tensor
    """A unit is one direction or an antithetic pair."""
    images: Tensor | None
    """None for scalar losses."""


def resample(effects: Mapping[str, Effects], replicates: int, seed: int) -> dict[str, Tensor]:
    """Return the deviations of resampled means from the mean: {domain: replicates x columns}.

    All domains share the drawn directions; images are drawn within each domain. Deviations are widened by
    sqrt(n / (n - 1)), since a resample of n values has the spread of n - 1, and to the width of Student's t. The same
    seed draws the same resamples, so resamples of two models on the same directions and images are paired.
    """
    generator = torch.Generator().manual_seed(seed)
    n_units = {len(effect.units) for effect in effects.values()}
    assert len(n_units) == 1
    unit_seed, *image_seeds = torch.randint(2**31, (1 + len(effects),), generator=generator).tolist()
    units = torch.cat([effect.units for effect in effects.values()], 1)
    widths = [effect.units.shape[1] for effect in effects.values()]
    by_domain = torch.split(_resampled_deviations(units, replicates, unit_seed), widths, 1)
    deviations = {}
    for (domain, effect), by_direction, image_seed in zip(effects.items(), by_domain, image_seeds, strict=True):
        deviations[domain] = by_direction
        if effect.images is not None:
            deviations[domain] = by_direction + _resampled_deviations(effect.images, replicates, image_seed)
    return deviations


def _resampled_deviations(values: Tensor, replicates: int, seed: int) -> Tensor:
    """Return means of resampled rows minus the mean of all rows, widened: replicates x columns."""
    n = len(values)
    if n < 2:
        return torch.full((replicates, values.shape[1]), float("nan"), dtype=torch.float64)
    centered = values - values.mean(0)
    generator = torch.Generator().manual_seed(seed)
    deviations = []
    block = max(1, BLOCK // n)
    for start in range(0, replicates, block):
        size = min(block, replicates - start)
        drawn = torch.randint(n, (size, n), generator=generator)
        counts = torch.zeros(size, n, dtype=torch.float64).scatter_add_(
            1, drawn, torch.ones((), dtype=torch.float64).expand(size, n)
        )
        # Student's t is a normal variable divided by the square root of a mean of n - 1 squares.
        squares = torch.randn(size, n - 1, generator=generator, dtype=torch.float64).square_().mean(1, keepdim=True)
        deviations.append(counts @ centered / n / squares.sqrt())
    return torch.cat(deviations).mul_(math.sqrt(n / (n - 1)))


def interval(mean: Tensor, deviations: Tensor, confidence: float) -> tuple[Tensor, Tensor]:
    """Return the ends of the interval of every column: the mean plus quantiles of the deviations."""
    tail = (1 - confidence) / 2
    quantiles = torch.tensor([tail, 1 - tail], dtype=torch.float64)
    invalid = ~torch.isfinite(deviations).all(0)
    low, high = mean + torch.quantile(torch.where(invalid, 0.0, deviations), quantiles, dim=0)
    nan = torch.full_like(low, float("nan"))
    return torch.where(invalid, nan, low), torch.where(invalid, nan, high)


def p_value(mean: Tensor, deviations: Tensor) -> Tensor:
    """Return the two-sided p-value of every column: how often a deviation is as large as the mean itself."""
    n_larger = (deviations.abs() >= mean.abs()).sum(0)
    p = (1 + n_larger).double() / (1 + len(deviations))
    return torch.where(torch.isfinite(deviations).all(0) & torch.isfinite(mean), p, torch.full_like(p, float("nan")))
