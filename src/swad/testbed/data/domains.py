"""Domains and datasets: a domain is a set of labeled images from one distribution, a dataset one or several domains.

All domains of a dataset share one list of classes. `swad.testbed.data.splits` holds domains out and splits them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import numpy.typing as npt

from swad.util.files import read_bytes
from swad.util.images import IMAGENET_MEAN, IMAGENET_STD, DataError, read_image
from swad.util.names import NO_TARGET, did_you_mean, name_problem

if TYPE_CHECKING:
    from PIL import Image

IntArray = npt.NDArray[np.int64]
ByteArray = npt.NDArray[np.uint8]


class Domain(Protocol):
    """Labeled images of one domain."""

    @property
    def name(self) -> str:
        """Name of the domain, e.g. ``sketch``."""

    @property
    def labels(self) -> IntArray:
        """The class index of every image."""

    def __len__(self) -> int: ...

    def image(self, i: int) -> Image.Image | ByteArray:
        """Return image ``i``: an RGB PIL image from a file, or a uint8 array [height, width, channels] from memory."""


@dataclass(frozen=True, eq=False)
class FileDomain:
    """A domain of image files, which are decoded when they are requested; paths are relative to ``root``."""

    name: str
    labels: IntArray
    root: Path
    files: tuple[str, ...] = field(repr=False)
    split_sizes: tuple[int, int, int] | None = None
    """Number of training, validation and test images, in this order in ``files``. None: split at random."""

    def __post_init__(self) -> None:
        _check_labels(self.name, self.labels, len(self.files))

    def __len__(self) -> int:
        return len(self.files)

    def path(self, i: int) -> Path:
        """Return the path of image ``i``."""
        return self.root / self.files[i]

    def image(self, i: int) -> Image.Image:
        """Decode image ``i`` as RGB."""
        return read_image(self.path(i))

    def content(self, i: int) -> bytes:
        """Read the bytes of image ``i``."""
        try:
            return read_bytes(self.path(i))
        except OSError as error:
            raise DataError(f"cannot read image {self.path(i)}: {error.strerror}; restore it") from None


@dataclass(frozen=True, eq=False)
class ArrayDomain:
    """A domain in memory: one uint8 array, ``[images, height, width, channels]``."""

    name: str
    labels: IntArray
    images: ByteArray = field(repr=False)

    def __post_init__(self) -> None:
        if self.images.dtype != np.uint8 or self.images.ndim != 4:
            got = f"{self.images.dtype} {self.images.shape}"
            raise DataError(
                f"domain {self.name}: images must be uint8 of shape (n, height, width, channels), got {got}"
            )
        _check_labels(self.name, self.labels, len(self.images))

    def __len__(self) -> int:
        return len(self.images)

    def image(self, i: int) -> ByteArray:
        """Return image ``i``, ``[height, width, channels]``."""
        image: ByteArray = self.images[i]
        return image


@dataclass(frozen=True)
class ImageSpec:
    """How the images of a dataset become tensors.

    Args:
        size: Height and width of the images that the network sees.
        channels: Number of channels.
        low_res: Low-resolution images (MNIST, digits): neither resized nor augmented, only normalized.
        center_crop: Evaluate on the center of the image in its proportions, as on ImageNet. Default: on the whole
            image, resized to a square.
        resized_to: Height and width that a run's cache of decoded images resized them to. Default: their own.
        mean: Mean of each channel, for pixels from 0 to 1.
        std: Standard deviation of each channel.
    """

    size: int = 224
    channels: int = 3
    low_res: bool = False
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    center_crop: bool = False
    resized_to: tuple[int, int] | None = None


MIN_EVALUATIONS = 20
"""Evaluations of a run that is too short for its dataset's default."""


@dataclass(frozen=True)
class Defaults:
    """Default settings of a training run on a dataset; these are the paper's."""

    steps: int = 5000
    evaluate_every: int = 100
    tolerance_ratio: float = 0.3
    batch_size: int = 32
    lr: float = 5e-5
    recipe: Literal["imagenet"] | None = None
    """How to train: None for DomainBed's protocol."""
    published_schedule: bool = False
    """Whether `evaluate_every` is part of a published protocol, and so holds for shorter runs, too."""

    def evaluate_every_in(self, steps: int) -> int:
        """Return the steps between evaluations of a run: fewer than `evaluate_every` in one of fewer than `steps`.

        A loss valley is found in a sequence of evaluations: SWAD needs 3 to find its start, and 6 more to find its end.

        >>> [Defaults().evaluate_every_in(steps) for steps in (5000, 2000, 600, 100, 5)]
        [100, 100, 30, 5, 1]
        >>> Defaults(steps=100, evaluate_every=10).evaluate_every_in(100)
        10
        >>> Defaults(published_schedule=True).evaluate_every_in(600)
        100
        """
        if self.published_schedule or steps >= self.steps:
            return min(self.evaluate_every, steps)
        return min(self.evaluate_every, max(1, steps // MIN_EVALUATIONS))


@dataclass(frozen=True, eq=False)
class Dataset:
    """Domains that share one list of classes."""

    name: str
    domains: tuple[Domain, ...]
    classes: tuple[str, ...]
    image_spec: ImageSpec = field(default_factory=ImageSpec)
    defaults: Defaults = field(default_factory=Defaults)
    notes: tuple[str, ...] = ()
    """Remarks on files that were ignored, one line each."""

    def __post_init__(self) -> None:
        names = self.domain_names
        if len(set(names)) != len(names):
            raise DataError(f"dataset {self.name}: domain names must differ, got {', '.join(names)}")
        problems = [name_problem("the name of a dataset", self.name)]
        problems += [name_problem("the name of a domain", name) for name in names]
        if wrong := list(filter(None, problems)):
            raise DataError(wrong[0])
        if NO_TARGET in names:
            raise DataError(f"dataset {self.name}: the name {NO_TARGET} means no target; rename that domain")
        for domain in self.domains:
            if len(domain) and int(domain.labels.max()) >= len(self.classes):
                raise DataError(
                    f"dataset {self.name}: domain {domain.name} has label {int(domain.labels.max())}, "
                    f"but there are {len(self.classes)} classes"
                )

    @property
    def domain_names(self) -> tuple[str, ...]:
        """Names of the domains; their order is the domains' numbering."""
        return tuple(domain.name for domain in self.domains)

    def index(self, domain: str) -> int:
        """Return the number of a domain."""
        names = self.domain_names
        if domain in names:
            return names.index(domain)
        hint = did_you_mean(domain, names)
        listed = ", ".join(names)
        raise DataError(f"dataset {self.name} has no domain {domain!r}; its domains: {listed}{hint and '; '}{hint}")


def _check_labels(name: str, labels: IntArray, n: int) -> None:
    if labels.dtype != np.int64 or labels.shape != (n,):
        got = f"{labels.dtype} {labels.shape}"
        raise DataError(f"domain {name}: labels must be int64 of shape ({n},), got {got}")
    if n and int(labels.min()) < 0:
        raise DataError(f"domain {name}: labels must be at least 0, got {int(labels.min())}")
