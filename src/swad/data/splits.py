"""TODO."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from swad.data.domains import DataError, Dataset, Defaults, Domain, ImageSpec, IntArray

if TYPE_CHECKING:
    pass


# --- splits ---------------------------------------------------------------------------------------------------


class Split(NamedTuple):
    """Disjoint keys that together are all images of a domain; ``test`` is empty with 80/20."""

    train: IntArray
    val: IntArray
    test: IntArray


def split_seed(trial: int, domain_index: int) -> int:
    """The seed of a split, shared with DomainBed: the md5 of the text ``(trial, domain_index)``, modulo 2^31.

    >>> [split_seed(0, domain) for domain in range(4)]
    [894182419, 1514274641, 1325548499, 1796103049]
    """
    text = str((int(trial), int(domain_index)))
    return int(hashlib.md5(text.encode(), usedforsecurity=False).hexdigest(), 16) % 2**31


def split(n: int, trial: int, domain_index: int, *, three_way: bool = False) -> Split:
    """Split ``n`` images into 80/20 training and validation, or 60/20/20 with a test part.

    The three-way split holds 0.4 out and halves that by shuffling it again with the same seed.

    >>> parts = split(2048, trial=0, domain_index=0)
    >>> parts.val[:3].tolist(), parts.train[:3].tolist()
    ([548, 677, 1997], [895, 510, 1575])
    """
    seed = split_seed(trial, domain_index)
    keys = _shuffled(n, seed)
    held = int(n * (0.4 if three_way else 0.2))
    out, train = keys[:held], keys[held:]
    if not three_way:
        return Split(train, out, np.empty(0, np.int64))
    out = out[_shuffled(held, seed)]
    return Split(train, out[: held // 2], out[held // 2 :])


def subsample(keys: IntArray, n: int | None, seed: int = 0) -> IntArray:
    """The first ``n`` of ``keys`` in a seeded shuffle, so that a smaller subsample is part of every larger one."""
    if n is None or n >= len(keys):
        return keys
    if n < 1:
        raise DataError(f"a subsample needs at least 1 image, got {n}")
    return keys[_shuffled(len(keys), seed)[:n]]


def _shuffled(n: int, seed: int) -> IntArray:
    # A list, and RandomState: the stream NumPy has frozen, drawn the way DomainBed draws it.
    keys = list(range(n))
    np.random.RandomState(seed).shuffle(keys)
    return np.array(keys, dtype=np.int64)


# --- holding a target out -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class DomainSplit:
    """Some images of one domain: those of one split."""

    domain: Domain
    split: str
    keys: IntArray = field(repr=False)

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def name(self) -> str:
        """The domain's name."""
        return self.domain.name

    @property
    def labels(self) -> IntArray:
        """The class index of every image of the part."""
        labels: IntArray = self.domain.labels[self.keys]
        return labels


@dataclass(frozen=True, eq=False)
class Sources:
    """All that training, validation and selection may see: the domains that are not held out."""

    dataset: str
    classes: tuple[str, ...]
    image_spec: ImageSpec
    defaults: Defaults
    train: tuple[DomainSplit, ...]
    val: tuple[DomainSplit, ...]
    test: tuple[DomainSplit, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the source domains."""
        return tuple(part.name for part in self.train)


@dataclass(frozen=True, eq=False)
class Target:
    """The held-out domain (several for ``lodo``): for the final number and ``oracle`` alone.

    ``train`` is what is reported (80 %, or 60 % of a three-way split), ``val`` what ``oracle`` chooses by,
    ``full`` every image.
    """

    classes: tuple[str, ...]
    image_spec: ImageSpec
    train: tuple[DomainSplit, ...]
    val: tuple[DomainSplit, ...]
    test: tuple[DomainSplit, ...]
    full: tuple[DomainSplit, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the held-out domains."""
        return tuple(part.name for part in self.full)


class HeldOut(NamedTuple):
    """The two sides of a run; hand the first to what trains, the second to what scores."""

    sources: Sources
    target: Target


def hold_out(
    dataset: Dataset,
    target: str | int | Sequence[str | int],
    *,
    trial: int = 0,
    three_way: bool = False,
) -> HeldOut:
    """Take the target out of a dataset and split every domain for a trial.

    Splits depend on the trial and on the domain's number in the whole dataset, never on which domain is held
    out, so a domain has the same validation images whatever the target is.
    """
    wanted = [target] if isinstance(target, str | int) else list(target)
    held = {dataset.index(one) for one in wanted}
    if not 1 <= len(held) < len(dataset.domains):
        raise DataError(
            f"hold out at least 1 and fewer than all {len(dataset.domains)} domains of {dataset.name}, "
            f"got {len(held)}; choose from {', '.join(dataset.domain_names)}"
        )
    splits = [split(len(d), trial, i, three_way=three_way) for i, d in enumerate(dataset.domains)]
    for i, (domain, cut) in enumerate(zip(dataset.domains, splits, strict=True)):
        empty = not len(cut.train) or not len(cut.val) or (three_way and not len(cut.test))
        if empty:
            raise DataError(
                f"domain {domain.name} of {dataset.name} (number {i}) has {len(domain)} images, too few to split; "
                "add images or leave the domain away"
            )

    def parts(side: bool, which: str) -> tuple[DomainSplit, ...]:
        return tuple(
            DomainSplit(domain, which, getattr(cut, which))
            for i, (domain, cut) in enumerate(zip(dataset.domains, splits, strict=True))
            if (i in held) is side
        )

    tests = (parts(False, "test"), parts(True, "test")) if three_way else ((), ())
    sources = Sources(
        dataset=dataset.name,
        classes=dataset.classes,
        image_spec=dataset.image_spec,
        defaults=dataset.defaults,
        train=parts(False, "train"),
        val=parts(False, "val"),
        test=tests[0],
    )
    everything = tuple(
        DomainSplit(domain, "full", np.arange(len(domain), dtype=np.int64))
        for i, domain in enumerate(dataset.domains)
        if i in held
    )
    return HeldOut(
        sources,
        Target(
            classes=dataset.classes,
            image_spec=dataset.image_spec,
            train=parts(True, "train"),
            val=parts(True, "val"),
            test=tests[1],
            full=everything,
        ),
    )
