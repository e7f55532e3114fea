"""A domain is a set of labeled images from one place; a dataset is several of them with the same classes.

One domain is held out and the others are trained on, so everything here serves one rule: what trains and
validates sees :class:`Sources`, what scores the end sees :class:`Target`, and neither holds the other's images.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from PIL import Image


import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass

IntArray = npt.NDArray[np.int64]
ByteArray = npt.NDArray[np.uint8]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class DataError(ValueError):
    """Data that is missing, broken or not of the expected shape; the message is one line that says what to do."""


class Domain(Protocol):
    """Images with labels, from one place."""

    @property
    def name(self) -> str:
        """What the domain is called, e.g. ``sketch``."""

    @property
    def labels(self) -> IntArray:
        """The class index of every image."""

    def __len__(self) -> int: ...

    def image(self, i: int) -> Image.Image | ByteArray:
        """Image ``i``: RGB PIL when it comes from a file, uint8 height × width × channels when from memory."""


@dataclass(frozen=True, eq=False)
class FileDomain:
    """A domain on disk: file paths relative to one folder, decoded when asked for."""

    name: str
    labels: IntArray
    root: Path
    files: tuple[str, ...] = field(repr=False)

    def __post_init__(self) -> None:
        _check_labels(self.name, self.labels, len(self.files))

    def __len__(self) -> int:
        return len(self.files)

    def path(self, i: int) -> Path:
        """Where image ``i`` lies."""
        return self.root / self.files[i]

    def image(self, i: int) -> Image.Image:
        """Image ``i``, whole and as RGB."""
        return read_image(self.path(i))


@dataclass(frozen=True, eq=False)
class ArrayDomain:
    """A domain in memory: one uint8 array, images × height × width × channels."""

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
        """Image ``i``, height × width × channels."""
        image: ByteArray = self.images[i]
        return image


def read_image(path: Path) -> Image.Image:
    """Decode an image file completely, as RGB of 8 bits; a file that cannot be decoded is named.

    The pixels are as they lie in the file: an EXIF orientation is not applied, and alpha is dropped.
    """
    from PIL import Image

    try:
        with Image.open(path) as image:
            return _eight_bits(image).convert("RGB")
    # Pillow's plugins raise more than OSError on broken files (SyntaxError, struct.error, DecompressionBombError).
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"cannot decode image {path}: {reason}; replace it, or remove it before training") from error


def _eight_bits(image: Image.Image) -> Image.Image:
    """Deep gray images by their upper eight bits, as Pillow reads deep colors; it would cut gray ones off at 255."""
    from PIL import Image

    # Pillow widens the 16 bits of PGM files to 32; older versions those of PNG files too.
    sixteen = image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM"))
    if sixteen:
        bits = getattr(image, "tag_v2", {}).get(258, (16,))[0]  # of a TIFF file, which may have twelve
        return Image.fromarray((np.asarray(image).astype(np.uint32) >> (bits - 8)).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"its pixels (mode {image.mode}) have no known white; save it with 8 or 16 bits")
    return image


@dataclass(frozen=True)
class ImageSpec:
    """How the images of a dataset become tensors.

    ``small`` images (MNIST, digits) are neither resized nor augmented, only normalized.
    """

    size: int = 224
    channels: int = 3
    low_res: bool = False
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD


@dataclass(frozen=True)
class Defaults:
    """What a dataset asks of a run that says nothing else (the paper's values)."""

    steps: int = 5000
    evaluate_every: int = 100
    tolerance_ratio: float = 0.3
    batch_size: int = 32
    lr: float = 5e-5


@dataclass(frozen=True, eq=False)
class Dataset:
    """Domains that share one list of classes, with the defaults of their benchmark."""

    name: str
    domains: tuple[Domain, ...]
    classes: tuple[str, ...]
    image_spec: ImageSpec = field(default_factory=ImageSpec)
    defaults: Defaults = field(default_factory=Defaults)
    notes: tuple[str, ...] = ()
    """What was found and not read, one line each."""

    def __post_init__(self) -> None:
        names = self.domain_names
        if len(set(names)) != len(names):
            raise DataError(f"dataset {self.name}: domain names must differ, got {', '.join(names)}")
        for domain in self.domains:
            if len(domain) and int(domain.labels.max()) >= len(self.classes):
                raise DataError(
                    f"dataset {self.name}: domain {domain.name} has label {int(domain.labels.max())}, "
                    f"but there are {len(self.classes)} classes"
                )

    @property
    def domain_names(self) -> tuple[str, ...]:
        """The names of the domains, in the order that numbers them."""
        return tuple(domain.name for domain in self.domains)

    def index(self, domain: str | int) -> int:
        """The number of a domain given by name or number."""
        names = self.domain_names
        if isinstance(domain, int) and not isinstance(domain, bool) and 0 <= domain < len(names):
            return domain
        if isinstance(domain, str) and domain in names:
            return names.index(domain)
        raise DataError(f"dataset {self.name} has no domain {domain!r}; it has {', '.join(names)}")


def _check_labels(name: str, labels: IntArray, n: int) -> None:
    if labels.dtype != np.int64 or labels.shape != (n,):
        got = f"{labels.dtype} {labels.shape}"
        raise DataError(f"domain {name}: labels must be int64 of shape ({n},), got {got}")
    if n and int(labels.min()) < 0:
        raise DataError(f"domain {name}: labels must be 0 or more, got {math.floor(labels.min())}")
