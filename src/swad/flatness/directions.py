"""Random directions in weight space, regenerated from seed and index instead of being stored."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from swad.flatness.weights import Weights
from swad.util.names import require_choice

Normalize = Literal["sphere", "filter", "layer"]
NORMALIZE = ("sphere", "filter", "layer")


class Directions:
    """The random directions of a seed; `directions[k]` is a list of tensors in the shapes of the weights.

    Direction k depends only on the seed, on k, on the chosen parameters (their shapes in the model's order) and on the
    kind of device. Radii and the number of directions do not change it. The generator is the device's own, so a CPU
    and a GPU draw different directions.

    - "sphere": uniform on the unit sphere over all chosen parameters. A radius is then a distance.
    - "layer": every tensor of the direction has the norm of the weights there. A radius is a share of the norm.
    - "filter": the same for every filter (slices along the first axis; single numbers in 1-D tensors), after Li et
      al. (2018).

    With `antithetic`, directions 2 j and 2 j + 1 are opposite to each other.
    """

    def __init__(self, weights: Weights, seed: int, antithetic: bool, normalize: Normalize) -> None:
        require_choice("normalize", normalize, NORMALIZE)
        self._weights, self._seed, self._normalize = weights, seed, normalize
        self._signs = (1.0, -1.0) if antithetic else (1.0,)
        self._generator = torch.Generator(device=weights.device)

    def signed(self, n: int) -> Iterator[tuple[list[Tensor], float]]:
        """Yield the first `n` directions as drawn tensors and a sign; an opposite pair is drawn once."""
        for unit_index in range(n // len(self._signs)):
            tensors = self._draw(unit_index)
            yield from ((tensors, sign) for sign in self._signs)

    def __getitem__(self, index: int) -> list[Tensor]:
        """Return direction `index`."""
        unit_index, place = divmod(index, len(self._signs))
        return [self._signs[place] * tensor for tensor in self._draw(unit_index)]

    @torch.no_grad()
    def _draw(self, unit_index: int) -> list[Tensor]:
        weights = self._weights
        self._generator.manual_seed(_generator_seed(self._seed, unit_index))
        flat = torch.randn(weights.dim, generator=self._generator, device=weights.device)
        if torch.float64 in weights.dtypes:
            flat = flat.double()
        if self._normalize == "sphere":
            # The norm stays on the device, so the host does not wait. Double precision: it sums millions of squares.
            flat.div_(torch.linalg.vector_norm(flat, dtype=torch.float64))
            return weights.shaped(flat)
        tensors = weights.shaped(flat)
        for direction, base in zip(tensors, weights.base, strict=True):
            axes = tuple(range(1, base.ndim)) if self._normalize == "filter" else tuple(range(base.ndim))
            length = _norm(base.to(direction.dtype), axes)
            direction.mul_(length / _norm(direction, axes).clamp_min_(torch.finfo(direction.dtype).tiny))
        return tensors


def _norm(tensor: Tensor, axes: tuple[int, ...]) -> Tensor:
    if not axes:  # filters of one number, or a scalar; vector_norm reads an empty `dim` as "all axes"
        return tensor.abs()
    norm: Tensor = torch.linalg.vector_norm(tensor, dim=axes, keepdim=True)
    return norm


def _generator_seed(seed: int, unit_index: int) -> int:
    """Return a 32-bit seed (a CPU generator takes no more) that differs between all directions of one seed."""
    start = int.from_bytes(hashlib.blake2b(f"directions {seed}".encode(), digest_size=4).digest(), "little")
    # An odd factor gives every index another seed. This one is Knuth's for multiplicative hashing (The Art of Computer
    # Programming, 6.4): the prime 2,654,435,761 near 2**32 over the golden ratio, which spreads neighbors far apart.
    return (start + unit_index * 0x9E3779B1) % 2**32
