"""All decoded images of a dataset in one file, which is built once and then memory-mapped by every run.

    <dataset>-<place>-<content>/images.u8     bytes: images × height × width × channels, one domain after another
    <dataset>-<place>-<content>/index.json    shape, original sizes, checksums of the images and of itself
    <dataset>-<place>.lock                    exclusive for the process that builds the cache, shared for readers

The place is a hash of where the images are and of the size that was asked for. The content is a hash of the names,
sizes and modification times of all source files and of the format, so the cache of images that changed is another
directory. Building it removes the outdated ones of the same place, and the reason is logged.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from swad.testbed.data.cache_build import (
    IMAGES,
    INDEX,
    build_cache,
    content_hash,
    image_starts,
    images_per_block,
    index_checksum,
)
from swad.testbed.data.domains import ArrayDomain, ByteArray, Dataset, FileDomain, IntArray
from swad.util.files import FileLock, read_json
from swad.util.images import DataError
from swad.util.processes import available_cores
from swad.util.progress import Progress


@dataclass(frozen=True, eq=False)
class ImageCache:
    """All images of a dataset as one array; domains follow one another in the dataset's order."""

    images: ByteArray = field(repr=False)
    """Bytes, ``[images, height, width, channels]``, mapped read-only from the file."""
    sizes: IntArray = field(repr=False)
    """Original height and width of every image, ``[images, 2]``."""
    starts: Mapping[str, int]
    """Row of each domain's first image; its other images follow."""
    path: Path | None
    """The cache's directory; None if the dataset is in memory and needs no file."""

    @property
    def resized_to(self) -> tuple[int, int] | None:
        """Height and width of the cached images; None if all have their original size."""
        return self.images.shape[1:3] if self._n_resized else None

    @property
    def _n_resized(self) -> int:
        return int((self.sizes != self.images.shape[1:3]).any(1).sum())

    def describe(self) -> str:
        """Describe in one line how the cached images differ from the original ones."""
        height, width = self.images.shape[1:3]
        if resized := self._n_resized:
            return f"image cache: {resized:,} of {len(self.images):,} images were resized to {height} × {width}"
        return f"image cache: all {len(self.images):,} images have their original size of {height} × {width}"


def open_cache(
    dataset: Dataset,
    folder: Path | str | None = None,
    size: int | None = None,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    log: Callable[[str], object] = warnings.warn,
) -> ImageCache:
    """Open the image cache of a dataset, and build it first if there is none of these images.

    Opening reads the whole file once to verify its checksums, in parallel on all cores.

    Args:
        dataset: The dataset. If all its images are in memory at the requested size, no file is written.
        folder: Directory for caches. Default: ``$SWAD_CACHE``, or ``~/.cache/swad/images``.
        size: Resize images to ``size`` × ``size``. Default: keep them if they all have one size of at most 256, else
            resize them to 256 × 256.
        workers: Number of decoding threads. Default: one per core.
        progress: Progress callback for decoding.
        log: Called with one line that says why a cache is rebuilt, or that another process is building it.
    """
    if (in_memory := _in_memory(dataset, size)) is not None:
        return in_memory
    place = _place(dataset, folder, size)
    path = place.with_name(f"{place.name}-{content_hash(dataset)}")
    lock_path = place.with_name(f"{place.name}.lock")

    def on_wait() -> None:
        log(f"image cache {path}: waiting for another process that is building it")

    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _lock_for_reading(lock_path, on_wait):
            cache = _open(path)
        if isinstance(cache, ImageCache):
            return cache
        with FileLock(lock_path, on_wait=on_wait):
            cache = _open(path)  # another process may have built it in the meantime
            if isinstance(cache, ImageCache):
                return cache
            outdated = [entry for entry in place.parent.glob(f"{place.name}*") if entry.is_dir()]
            if outdated:
                log(f"image cache {path}: {cache or _why_outdated(outdated)}; rebuilding it")
                _load.cache_clear()  # so that the disk space of the old one can be freed
            workers = available_cores() if workers is None else max(1, workers)
            partial = path.with_name(f"{path.name}{PARTIAL}{os.getpid()}")
            try:
                partial.mkdir()
                build_cache(partial, path.name, dataset, size, workers, progress)
                if path.name != f"{place.name}-{content_hash(dataset)}":
                    raise DataError(f"image cache {path}: the images changed while it was being built; try again")
                for entry in outdated:  # one that somebody else owns may stay
                    shutil.rmtree(entry, ignore_errors=True)
                os.rename(partial, path)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
            cache = _open(path)
    except OSError as error:
        option = "--cache" if folder is not None else "--cache or SWAD_CACHE"
        raise DataError(
            f"cannot write image cache {path} ({error}); free disk space or choose another directory with {option}"
        ) from None
    if isinstance(cache, ImageCache):
        return cache
    raise DataError(f"image cache {path}: {cache or 'it was removed'} right after it was built; check the disk")


def _lock_for_reading(path: Path, on_wait: Callable[[], None]) -> AbstractContextManager[object]:
    """Lock a cache; a directory that cannot be written, and has no lock file, has no process that builds a cache."""
    try:
        return FileLock(path, shared=True, on_wait=on_wait)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        return nullcontext()


def default_folder() -> Path:
    """Return the default directory for caches: ``$SWAD_CACHE``, or ``~/.cache/swad/images``."""
    return Path(os.environ.get("SWAD_CACHE") or Path.home() / ".cache" / "swad" / "images")


def _in_memory(dataset: Dataset, size: int | None) -> ImageCache | None:
    """Wrap a dataset whose images are already in memory at the requested size; None for any other."""
    arrays = [domain.images for domain in dataset.domains if isinstance(domain, ArrayDomain)]
    shapes = {array.shape[1:] for array in arrays}
    if len(arrays) < len(dataset.domains) or len(shapes) > 1:
        return None
    height, width, _ = shapes.pop()
    if size is not None and (height, width) != (size, size):
        return None
    images = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    return ImageCache(images, np.tile(np.array([height, width]), (len(images), 1)), image_starts(dataset), None)


def _place(dataset: Dataset, folder: Path | str | None, size: int | None) -> Path:
    """Return the path that the caches of a dataset and size begin with."""
    roots = [str(d.root.resolve()) if isinstance(d, FileDomain) else None for d in dataset.domains]
    identity = json.dumps([dataset.name, dataset.domain_names, roots, size])
    name = re.sub(r"[^\w.-]+", "_", dataset.name)
    parent = Path(folder) if folder is not None else default_folder()
    return parent / f"{name}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"


PARTIAL = ".partial-"
"""What the name of a directory ends with while a process, whose number follows, builds it."""


def _why_outdated(directories: list[Path]) -> str:
    complete = [entry.name for entry in directories if PARTIAL not in entry.name]
    if complete:
        return f"the images or the format changed since {min(complete)} was built"
    return "the process that was building it was stopped"


MAX_OPENED = 8
"""Caches that a process keeps open for its next runs. They are mapped files and take no memory of their own."""


def _open(path: Path) -> ImageCache | str | None:
    """Return the cache, or the reason why it cannot be used, or None if there is none.

    The next run of a process finds the cache open. Its checksums are verified again only if its files changed.
    """
    if not path.exists():
        return None
    try:
        return _load(path, tuple(_file_state(path / name) for name in (INDEX, IMAGES)))
    except (OSError, ValueError, TypeError, LookupError, ArithmeticError) as error:
        return f"it cannot be read ({type(error).__name__}: {' '.join(str(error).split())[:200]})"


@lru_cache(MAX_OPENED)
def _load(path: Path, files: tuple[tuple[int, ...], ...]) -> ImageCache:
    """Read a cache whose files have these states, and verify all of it."""
    index = read_json(path / INDEX)
    if index["checksum"] != index_checksum(index):
        raise ValueError(f"wrong checksum of {INDEX}")
    if index["name"] != path.name:
        raise ValueError(f"it is the cache {index['name']}")
    images = np.memmap(path / IMAGES, np.uint8, "r", shape=tuple(index["shape"]))
    block, checksums = images_per_block(images.shape[1:]), index["sha256"]

    def is_intact(start: int) -> bool:
        with (path / IMAGES).open("rb") as file:  # a disk that fails is an exception here, and a signal when mapped
            file.seek(start * images[0].nbytes)
            return bool(hashlib.sha256(file.read(block * images[0].nbytes)).hexdigest() == checksums[start // block])

    starts = range(0, len(images), block)
    with ThreadPoolExecutor(available_cores()) as pool:  # hashing releases the GIL
        for start, intact in zip(starts, pool.map(is_intact, starts), strict=True):
            if not intact:
                raise ValueError(f"images {start:,} to {start + block - 1:,} are damaged, wrong checksum")
    sizes = np.array(index["sizes"], np.int64).reshape(len(images), 2)
    return ImageCache(images, sizes, index["starts"], path)


def _file_state(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
