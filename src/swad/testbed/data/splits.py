"""Splitting domains into train and validation images, and holding a target domain out.

One rule governs this module: training, validation and selection see only `Sources`, the final score sees `Target`, and
neither contains an image of the other. Splits are those of DomainBed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from swad.testbed.data.domains import Dataset, Domain, ImageSpec, IntArray
from swad.util.images import DataError
from swad.util.names import NO_TARGET, counted


class Split(NamedTuple):
    """Disjoint indices that together cover all images of a domain; ``test`` is empty for an 80/20 split."""

    train: IntArray
    val: IntArray
    test: IntArray


def seed_hash(*values: object) -> int:
    """Return DomainBed's seed for a tuple of values: the MD5 of its text, modulo 2^31. Splits use (trial, domain).

    >>> [seed_hash(0, domain) for domain in range(4)]
    [894182419, 1514274641, 1325548499, 1796103049]
    """
    return int(hashlib.md5(str(values).encode(), usedforsecurity=False).hexdigest(), 16) % 2**31


def split(n: int, trial: int, domain_index: int, *, three_way: bool = False) -> Split:
    """Split ``n`` images 80/20 into train and val, or 60/20/20 into train, val and test.

    The three-way split holds 40 % out, shuffles them again with the same seed, and halves them.

    >>> indices = split(2048, trial=0, domain_index=0)
    >>> indices.val[:3].tolist(), indices.train[:3].tolist()
    ([548, 677, 1997], [895, 510, 1575])
    """
    seed = seed_hash(int(trial), int(domain_index))  # the text of NumPy's numbers is another
    keys = _shuffled(n, seed)
    n_out = n - n_train(n, three_way=three_way)
    out, train = keys[:n_out], keys[n_out:]
    if not three_way:
        return Split(train, out, np.empty(0, np.int64))
    out = out[_shuffled(n_out, seed)]
    return Split(train, out[: n_out // 2], out[n_out // 2 :])


def n_train(n: int, *, three_way: bool = False) -> int:
    """Return how many of ``n`` images are for training."""
    return n - int(n * (0.4 if three_way else 0.2))


def _split_domain(dataset: Dataset, index: int, trial: int, three_way: bool) -> Split:
    """Split a domain at random, or as its own folders do."""
    domain = dataset.domains[index]
    sizes = getattr(domain, "split_sizes", None)
    if sizes is None:
        return split(len(domain), trial, index, three_way=three_way)
    if three_way:
        raise DataError(f"{dataset.name} has its own split into folders, got 60/20/20; use 80/20, the default")
    return Split(*np.split(np.arange(len(domain), dtype=np.int64), np.cumsum(sizes)[:-1]))


def _shuffled(n: int, seed: int) -> IntArray:
    # Shuffle a list with RandomState, as DomainBed does; NumPy guarantees that its stream never changes.
    keys = list(range(n))
    np.random.RandomState(seed).shuffle(keys)
    return np.array(keys, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class DomainSplit:
    """The images of one split of a domain."""

    domain: Domain
    split: str
    keys: IntArray = field(repr=False)

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def name(self) -> str:
        """Name of the domain."""
        return self.domain.name

    @property
    def labels(self) -> IntArray:
        """Class index of every image of the split."""
        labels: IntArray = self.domain.labels[self.keys]
        return labels

    def subsample(self, n: int | None, seed: int) -> DomainSplit:
        """Return the first ``n`` images in a seeded shuffle; a smaller subsample is part of every larger one."""
        if n is None or n >= len(self):
            return self
        return replace(self, keys=self.keys[_shuffled(len(self), seed)[:n]])


@dataclass(frozen=True, eq=False)
class Sources:
    """The domains that are not held out: all that training, validation and selection may see."""

    classes: tuple[str, ...]
    image_spec: ImageSpec
    train: tuple[DomainSplit, ...]
    val: tuple[DomainSplit, ...]
    test: tuple[DomainSplit, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the source domains."""
        return tuple(split.name for split in self.train)


@dataclass(frozen=True, eq=False)
class Target:
    """The held-out domain (several for ``lodo``, or none), for the final score and ``oracle`` selection only.

    ``train`` (80 % of the images, or 60 % of a three-way split) is reported, ``val`` is for ``oracle`` selection, and
    ``full`` contains all images. Records call the two splits ``in`` and ``out``, as DomainBed does.
    """

    train: tuple[DomainSplit, ...]
    val: tuple[DomainSplit, ...]
    test: tuple[DomainSplit, ...]
    full: tuple[DomainSplit, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the held-out domains."""
        return tuple(split.name for split in self.full)


class HeldOut(NamedTuple):
    """The two sides of a run: the sources are for training, the target is for the final score."""

    sources: Sources
    target: Target


def hold_out(
    dataset: Dataset,
    target: str | Sequence[str] | None,
    *,
    trial: int = 0,
    three_way: bool = False,
) -> HeldOut:
    """Hold a target domain out of a dataset, and split every domain.

    Splits depend on the trial and on the domain's number in the dataset, but not on the target, so a domain has the
    same validation images for every target.

    Args:
        target: Name of the domain to hold out, or several. None or (): train on all domains.
        trial: Number of the random split; the paper uses 0, 1 and 2.
        three_way: Split 60/20/20 instead of 80/20.
    """
    targets = [target] if isinstance(target, str) else list(target or ())
    held_out = {dataset.index(domain) for domain in targets}
    if len(held_out) == len(dataset.domains):
        raise DataError(
            f"at least one domain of {dataset.name} must be left to train on, got the targets "
            f"{', '.join(dataset.domain_names)}; the target {NO_TARGET} trains on all"
        )
    splits = [_split_domain(dataset, i, trial, three_way) for i in range(len(dataset.domains))]
    for domain, indices in zip(dataset.domains, splits, strict=True):
        if not len(indices.train) or not len(indices.val) or (three_way and not len(indices.test)):
            raise DataError(
                f"domain {domain.name} of {dataset.name} has {counted(len(domain), 'image')}, too few to split; add "
                "images or remove the domain"
            )

    def select(name: str, *, from_target: bool) -> tuple[DomainSplit, ...]:
        """Return one split of every domain on one side; only some splits have test images."""
        return tuple(
            DomainSplit(domain, name, keys)
            for i, (domain, indices) in enumerate(zip(dataset.domains, splits, strict=True))
            if (i in held_out) is from_target and len(keys := getattr(indices, name))
        )

    source_train, source_val, source_test = (select(name, from_target=False) for name in Split._fields)
    train, val, test = (select(name, from_target=True) for name in Split._fields)
    full = tuple(DomainSplit(part.domain, "full", np.arange(len(part.domain))) for part in train)
    sources = Sources(dataset.classes, dataset.image_spec, source_train, source_val, source_test)
    return HeldOut(sources, Target(train, val, test, full))
