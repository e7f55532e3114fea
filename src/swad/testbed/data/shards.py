"""Images in tar files, as WebDataset writes them: one file for thousands of images, read one image at a time.

The members of a sample follow one another and have one name up to its first dot: ``n01440764_18.jpg`` and
``n01440764_18.cls``, the class as a number or a name. Without a ``.cls``, the folder of the member is the class:
``n01440764/n01440764_18.JPEG``. An index of the places of all images is made once and kept in the cache directory, so
that any image can be read at any time: epochs are shuffled through all shards, and a run resumes exactly.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
from PIL import Image

from swad.testbed.data.cache import default_folder
from swad.testbed.data.domains import IntArray
from swad.util.files import atomic_write, require_regular
from swad.util.images import EXTENSIONS, DataError, read_image


@dataclass(frozen=True, eq=False)
class ShardDomain:
    """A domain of images in tar files: image ``i`` is ``sizes[i]`` bytes at ``offsets[i]`` of a shard."""

    name: str
    labels: IntArray
    shards: tuple[Path, ...]
    shard: IntArray = field(repr=False)
    """The number of the shard of every image."""
    offsets: IntArray = field(repr=False)
    sizes: IntArray = field(repr=False)
    split_sizes: tuple[int, int, int] | None = None
    """Number of training, validation and test images, in this order. None: split at random."""

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, i: int) -> Path:
        """Return the shard of image ``i``, and its place there."""
        shard: Path = self.shards[self.shard[i]]
        return shard / f"byte {self.offsets[i]}"

    def image(self, i: int) -> Image.Image:
        """Decode image ``i`` as RGB."""
        return read_image(self.path(i), io.BytesIO(self.content(i)))

    def content(self, i: int) -> bytes:
        """Read the bytes of image ``i``."""
        path, size = self.shards[self.shard[i]], int(self.sizes[i])
        try:
            with path.open("rb") as file:
                return os.pread(file.fileno(), size, int(self.offsets[i]))
        except OSError as error:
            raise DataError(f"cannot read shard {path}: {error.strerror}; restore it") from None


class Index(NamedTuple):
    """The images of one shard: where each is, and its class as text."""

    offsets: IntArray
    sizes: IntArray
    classes: npt.NDArray[np.str_]


def read_shards(
    name: str, splits: Sequence[Sequence[Path]], class_names: Sequence[str] | None = None
) -> tuple[ShardDomain, tuple[str, ...]]:
    """Return a domain of the images of shards, and its classes.

    Classes that are all numbers are the labels themselves; others are numbered in sorted order.

    Args:
        name: Name of the domain.
        splits: The shards of training, validation and test; those of test may be empty.
        class_names: Names of the classes, if shards give numbers.
    """
    shards = tuple(path for paths in splits for path in paths)
    indices = [open_index(path) for path in shards]
    counts = [len(index.offsets) for index in indices]
    texts = np.concatenate([index.classes for index in indices])
    distinct, labels = np.unique(texts, return_inverse=True)
    classes = tuple(map(str, distinct))
    if all(text.isdecimal() for text in classes):
        labels = texts.astype(np.int64)
        classes = tuple(class_names or map(str, range(int(labels.max()) + 1)))
    ends = np.cumsum([0, *(len(paths) for paths in splits)])
    train, val, test = (sum(counts[start:end]) for start, end in pairwise(ends))
    if len(untrained := np.setdiff1d(texts[train:], texts[:train])):
        raise DataError(f"class {untrained[0]} has images in shards of val or test, but not of train: add some")
    domain = ShardDomain(
        name,
        labels.astype(np.int64),
        shards,
        np.repeat(np.arange(len(shards)), counts),
        np.concatenate([index.offsets for index in indices]),
        np.concatenate([index.sizes for index in indices]),
        (train, val, test),
    )
    return domain, classes


def open_index(path: Path) -> Index:
    """Return the index of a shard, from the cache directory if it was made before."""
    status = path.stat()
    key = f"{path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}"
    stored = default_folder() / "shards" / f"{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}.npz"
    try:
        require_regular(stored)
        with np.load(stored) as arrays:
            return Index(arrays["offsets"], arrays["sizes"], arrays["classes"])
    except (OSError, ValueError, LookupError, EOFError, BadZipFile):  # there is none, or it is damaged
        index = make_index(path)
    try:
        with atomic_write(stored) as partial, partial.open("wb") as file:
            np.savez(file, **index._asdict())
    except OSError:  # the next run makes it again
        pass
    return index


def make_index(path: Path) -> Index:
    """Go through the members of a shard."""
    images: dict[str, str] = {}
    places: dict[str, tuple[int, int]] = {}
    classes: dict[str, str] = {}
    try:
        with tarfile.open(path, "r:") as shard:
            for member in shard:
                folder, _, file = member.name.rpartition("/")
                if member.isdir() or file.startswith("."):  # such as ._NAME.jpg, which macOS adds
                    continue
                stem, _, extension = file.partition(".")
                sample = f"{folder}/{stem}"
                if PurePosixPath(file).suffix.lower() in EXTENSIONS:
                    if not member.isreg():
                        raise DataError(
                            f"images of shard {path} must be plain files, but {member.name} is a link: write the "
                            "shard with tar --dereference --hard-dereference"
                        )
                    if images.setdefault(sample, member.name) != member.name:
                        raise DataError(
                            f"images of shard {path} must differ in their names up to the first dot, got "
                            f"{images[sample]} and {member.name}: rename one, or leave it out"
                        )
                    places[sample] = (member.offset_data, member.size)
                    classes.setdefault(sample, PurePosixPath(folder).name)
                elif extension == "cls" and (content := shard.extractfile(member)) is not None:
                    classes[sample] = content.read().decode().strip()
    except (tarfile.TarError, OSError, UnicodeDecodeError, KeyError) as error:  # KeyError: a link to no member
        raise DataError(f"cannot read shard {path}: {error}; restore it, uncompressed") from None
    unnamed = [sample for sample in places if not classes[sample]]
    if unnamed or not places:
        problem = f"image {unnamed[0].lstrip('/')} has none" if unnamed else "it has no images"
        raise DataError(f"images of shard {path} need a class, a .cls file or a folder: {problem}")
    offsets, sizes = np.array(list(places.values()), dtype=np.int64).T
    return Index(offsets, sizes, np.array([classes[sample] for sample in places]))
