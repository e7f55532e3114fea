"""Random directions in weight space, each regenerated from its seed and number: none is ever stored."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from swad.flatness._perturb import Weights

Normalize = Literal["sphere", "filter", "layer"]
NORMALIZE = ("sphere", "filter", "layer")


class Directions:
    """Direction `k` of a seed, as tensors in the shapes of the weights.

    It depends on the seed, the number, the chosen parameters (names in the model's order and shapes) and the kind of
    device alone: not on the radii, on how many directions there are, or on how the work is cut. The generator is the
    device's own, so a CPU and a GPU draw different directions.

    - "sphere": uniform on the unit sphere over all chosen parameters. A radius is then a distance.
    - "layer": in every tensor as long as the weights there. A radius is then a share of the weights' norm.
    - "filter": the same in every filter (the slices along the first axis; in tensors of one axis every number is one),
      after Li et al. (2018).

    With `antithetic`, directions 2 j and 2 j + 1 are opposite to each other.
    """

    def __init__(self, weights: Weights, seed: int, antithetic: bool, normalize: Normalize) -> None:
        if normalize not in NORMALIZE:
            raise ValueError(f"normalize must be one of {', '.join(NORMALIZE)}; got {normalize!r}")
        self._weights, self._seed, self.antithetic, self._normalize = weights, seed, antithetic, normalize
        self._generator = torch.Generator(device=weights.device)

    @property
    def unit(self) -> int:
        """Directions that belong together: 2 in antithetic pairs."""
        return 2 if self.antithetic else 1

    def units(self, start: int, stop: int) -> Iterator[tuple[list[Tensor], list[tuple[int, float]]]]:
        """From direction `start` on: tensors, and the numbers of the directions they serve, with their signs."""
        for first in range(start, stop, self.unit):
            yield self._draw(first // self.unit), [(first, 1.0), (first + 1, -1.0)][: self.unit]

    def __getitem__(self, number: int) -> list[Tensor]:
        """Direction `number`."""
        tensors = self._draw(number // self.unit)
        return [-tensor for tensor in tensors] if number % self.unit else tensors

    @torch.no_grad()
    def _draw(self, number: int) -> list[Tensor]:
        weights = self._weights
        self._generator.manual_seed(_mixed(self._seed, number))
        flat = torch.randn(weights.dim, generator=self._generator, device=weights.device)
        if torch.float64 in weights.dtypes:
            flat = flat.double()
        if self._normalize == "sphere":
            # The norm stays on the device: no waiting. In double, as millions of squares are added.
            flat.div_(torch.linalg.vector_norm(flat, dtype=torch.float64))
            return weights.shaped(flat)
        tensors = weights.shaped(flat)
        for direction, base in zip(tensors, weights.base, strict=True):
            axes = tuple(range(1, base.ndim)) if self._normalize == "filter" else tuple(range(base.ndim))
            length = _norm(base.to(direction.dtype), axes)
            direction.mul_(length / _norm(direction, axes).clamp_min_(torch.finfo(direction.dtype).tiny))
        return tensors


def _norm(tensor: Tensor, axes: tuple[int, ...]) -> Tensor:
    if not axes:  # one number a filter, or a scalar: vector_norm would take "no axes" for all of them
        return tensor.abs()
    norm: Tensor = torch.linalg.vector_norm(tensor, dim=axes, keepdim=True)
    return norm


def _mixed(seed: int, number: int) -> int:
    """A seed for the generator: 32 bits, all that a CPU's takes; different for every number of one seed."""
    start = int.from_bytes(hashlib.blake2b(f"directions {seed}".encode(), digest_size=4).digest(), "little")
    return (start + number * 0x9E3779B1) % 2**32
