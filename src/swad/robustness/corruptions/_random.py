"""Random numbers that depend on the seed, the image and the position alone: the same on every device, in any batch.

torch's generators give other numbers on a GPU than on a CPU, and other numbers when images are batched differently. A
hash of (seed, image, stream, position) does neither. It is splitmix64, whose output passes the usual statistical tests.

>>> images = torch.arange(4)
>>> noise = Noise(seed=0, images=images)
>>> alone = Noise(seed=0, images=images[2:3])
>>> bool((noise.uniform("gaussian", 5)[2] == alone.uniform("gaussian", 5)[0]).all())
True
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import torch
from torch import Tensor


def _signed(value: int) -> int:
    """Return a 64-bit pattern as the int64 that torch computes with."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


_STEP, _FIRST, _SECOND = (
    _signed(constant) for constant in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Shift right and fill with zeros; torch fills with the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _FIRST
    x = (x ^ _shift(x, 27)) * _SECOND
    return x ^ _shift(x, 31)


@dataclass(frozen=True)
class Noise:
    """Random numbers of a batch of images.

    Args:
        seed: Seed of all numbers.
        images: Number of every image in its dataset, on the device of the images.
    """

    seed: int
    images: Tensor

    def uniform(self, stream: str, *shape: int) -> Tensor:
        """Draw from [0, 1), in double precision: one tensor of this shape for every image."""
        digest = hashlib.sha256(f"{self.seed}/{stream}".encode()).digest()
        key = _signed(int.from_bytes(digest[:8], "little"))
        starts = _mix(self.images.to(torch.int64) * _STEP + key)
        positions = torch.arange(1, math.prod(shape) + 1, device=self.images.device)
        bits = _shift(_mix(starts[:, None] + positions * _STEP), 11)
        return (bits.double() * 2.0**-53).view(len(self.images), *shape)

    def between(self, stream: str, low: float, high: float, *shape: int) -> Tensor:
        """Draw from [low, high)."""
        return low + (high - low) * self.uniform(stream, *shape)

    def normal(self, stream: str, *shape: int) -> Tensor:
        """Draw from the standard normal distribution (Box-Muller)."""
        radius = (-2 * torch.log1p(-self.uniform(f"{stream}/radius", *shape))).sqrt()
        return radius * torch.cos(2 * math.pi * self.uniform(f"{stream}/angle", *shape))

    def integers(self, stream: str, low: int, high: int, *shape: int) -> Tensor:
        """Draw whole numbers from low to high - 1."""
        return (low + self.uniform(stream, *shape) * (high - low)).floor().long()
