"""Which images a step takes, as a function of the seed and the step alone, so that a resumed run sees what an
uninterrupted one would.

The images of a step and the augmentation of each are drawn from ``(seed, step, domain, position)``. No random stream
continues from one step to the next, so neither the number of workers and processes nor earlier steps matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from typing import NamedTuple

import numpy as np
import torch

from swad.testbed.data.domains import Domain, IntArray
from swad.testbed.data.splits import DomainSplit
from swad.util.images import DataError

# The first number of each seed keeps the streams apart: SeedSequence treats (a, b) and (a, b, 0) as equal. The
# augmentation on the device has 5, in `swad.testbed.data.augment_parameters`.
_INDICES, _AUGMENTATION, _EPOCHS = 1, 2, 6

Seed = tuple[int, ...]


class Pool:
    """The images of several splits, numbered through their domains: a number is the row of an image.

    Args:
        splits: One split of each domain.
    """

    def __init__(self, splits: Sequence[DomainSplit]) -> None:
        self.splits = tuple(splits)
        self.sizes = [len(split.domain) for split in splits]
        self.offsets: IntArray = np.cumsum([0, *self.sizes])[:-1]
        self.labels: IntArray = np.concatenate([split.domain.labels for split in splits])
        self.groups: list[IntArray] = [offset + split.keys for offset, split in zip(self.offsets, splits, strict=True)]
        """The rows of each split; the domains' other images have rows, too."""

    def domain_of(self, rows: IntArray) -> IntArray:
        """Return the number of the domain of each row."""
        numbers: IntArray = np.searchsorted(self.offsets, rows, side="right") - 1
        return numbers

    def locate(self, rows: IntArray) -> list[tuple[Domain, int]]:
        """Return the domain of each row, and the image's index there."""
        numbers = self.domain_of(rows)
        keys = (rows - self.offsets[numbers]).tolist()
        return [(self.splits[number].domain, key) for number, key in zip(numbers, keys, strict=True)]

    def renumber(self, rows: IntArray, starts: Mapping[str, int]) -> IntArray:
        """Return rows of a numbering in which the images of each domain begin at its start."""
        shifts = np.array([starts[split.name] for split in self.splits]) - self.offsets
        renumbered: IntArray = rows + shifts[self.domain_of(rows)]
        return renumbered


class Balanced:
    """At every step ``batch_size`` images from each domain, sampled with replacement, of all processes together."""

    names_domains = False
    """Whether a batch says which domain each image is from, because their order does not."""

    def __init__(self, pool: Pool, batch_size: int, seed: int) -> None:
        self.groups, self.batch_size, self._seed = pool.groups, batch_size, seed
        self.n_groups = len(pool.groups)

    def rows(self, step: int) -> IntArray:
        """Return the rows of a step."""
        return np.stack(
            [rows[draw_indices(self._seed, step, i, len(rows), self.batch_size)] for i, rows in enumerate(self.groups)]
        )

    def seed(self, step: int, group: int, position: int, view: int) -> Seed:
        """Return the seed of the augmentation of one image."""
        return (self._seed, step, group, position, view)


class Pooled(Balanced):
    """At every step ``batch_size`` images from all domains together, each image equally likely."""

    names_domains = True

    def __init__(self, pool: Pool, batch_size: int, seed: int) -> None:
        super().__init__(pool, batch_size, seed)
        self.groups, self.n_groups = [np.concatenate(pool.groups)], 1


class Epochs:
    """All images of all domains once per epoch, in a new order each time.

    The order of an epoch is a permutation drawn from (seed, epoch), so a run resumes in mid-epoch without replaying
    anything. Images that do not fill a last batch are left out of their epoch.
    """

    names_domains, n_groups = False, 1

    def __init__(self, pool: Pool, batch_size: int, seed: int) -> None:
        self.batch_size, self._seed, self._pool = batch_size, seed, np.concatenate(pool.groups)
        self.steps_per_epoch = steps_per_epoch(len(self._pool), batch_size)
        self._order: tuple[int, IntArray] = (-1, self._pool)

    def rows(self, step: int) -> IntArray:
        """Return the rows of a step."""
        epoch, position = divmod(step - 1, self.steps_per_epoch)
        if self._order[0] != epoch:
            self._order = (epoch, self._pool[_permutation(self._seed, epoch, len(self._pool))])
        return self._order[1][None, position * self.batch_size : (position + 1) * self.batch_size]

    def seed(self, step: int, group: int, position: int, view: int) -> Seed:
        """Return the seed of the augmentation of one image."""
        return (self._seed, step, position, view) if view else (self._seed, step, position)


Sampler = Balanced | Pooled | Epochs


class Draw(NamedTuple):
    """The images that are read together: a part of a step, or a batch of an evaluation."""

    step: int
    rows: IntArray
    """The rows of the whole step: ``[groups, images]``."""
    positions: range | IntArray
    """Which of each group are read."""
    seed: Callable[[int, int, int, int], Seed | None]
    """From step, group, position and view: the seed of an image's augmentation. None: not augmented."""

    @property
    def own_rows(self) -> IntArray:
        """The rows of the images that are read, one group after another."""
        rows: IntArray = self.rows[:, self.positions].reshape(-1)
        return rows

    def images(self, pool: Pool, views: int) -> Iterator[tuple[Domain, int, Seed | None]]:
        """Iterate over these images, once per view: domain, index there, and the seed of the augmentation."""
        located = pool.locate(self.own_rows)
        places = list(product(range(len(self.rows)), self.positions))
        for view in range(views):
            for (domain, i), (group, position) in zip(located, places, strict=True):
                yield domain, i, self.seed(self.step, group, int(position), view)


def draw_indices(seed: int, step: int, domain: int, n: int, size: int) -> IntArray:
    """Draw the images of a step from a domain of ``n`` images: ``size`` indices, with replacement."""
    # RandomState, because NumPy guarantees that its stream never changes.
    stream = np.random.RandomState(np.random.MT19937(np.random.SeedSequence((_INDICES, seed, step, domain))))
    return stream.randint(0, n, size=size, dtype=np.int64)


def steps_per_epoch(n_images: int, batch_size: int) -> int:
    """Return the number of full batches in an epoch.

    >>> steps_per_epoch(1_281_167, 2048)
    625
    """
    if n_images < batch_size:
        raise DataError(f"a batch must not exceed the {n_images:,} training images, got {batch_size}: lower batch_size")
    return n_images // batch_size


def _permutation(seed: int, epoch: int, n: int) -> IntArray:
    stream = np.random.RandomState(np.random.MT19937(np.random.SeedSequence((_EPOCHS, seed, epoch))))
    return stream.permutation(n)


@contextmanager
def seeded(seed: Seed | None) -> Iterator[None]:
    """Draw the augmentation of one image in the block; torch's global random state is restored."""
    if seed is None:
        yield
        return
    word = int(np.random.SeedSequence((_AUGMENTATION, *seed)).generate_state(1, np.uint64)[0])
    # torchvision draws from the CPU's default generator. torch.manual_seed would reseed every GPU as well.
    generator = torch.default_generator
    before = generator.get_state()
    try:
        generator.manual_seed(word >> 1)
        yield
    finally:
        generator.set_state(before)
