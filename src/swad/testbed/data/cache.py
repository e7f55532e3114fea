"""All decoded images of a dataset in one file, which is built once and then memory-mapped by every run.

    <dataset>-<hash>/images.u8     bytes: images × height × width × channels, one domain after another
    <dataset>-<hash>/index.json    format, shape, source files, original sizes, checksums of the images and of itself
    <dataset>-<hash>.lock          exclusive for the process that builds the cache, shared for readers

The cache is built in a temporary directory and moved into place when it is complete. It is used only if its format is
current and every source file still has the recorded size and modification time. Otherwise it is rebuilt, and the
reason is logged.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from swad.testbed.data.cache_build import (
    FORMAT,
    IMAGES,
    INDEX,
    build_cache,
    fingerprint,
    images_per_block,
    index_checksum,
    partial_directories,
)
from swad.testbed.data.domains import ArrayDomain, ByteArray, Dataset, FileDomain, IntArray
from swad.util.cpu import available_cores
from swad.util.files import FileLock, read_json
from swad.util.images import DataError
from swad.util.names import counted
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
    """Open the image cache of a dataset, and build it first if there is none or it is outdated.

    Opening reads the whole file once to verify its checksums, in parallel on all cores.

    Args:
        dataset: The dataset. If all its images are in memory at the requested size, no file is written.
        folder: Directory for caches. Default: ``$SWAD_CACHE``, or ``~/.cache/swad/images``.
        size: Resize images to ``size`` × ``size``. Default: keep them if they all have one size of at most 256, else
            resize them to 256 × 256.
        workers: Number of decoding processes. Default: one per core; 0 and 1 decode in this process.
        progress: Progress callback for decoding.
        log: Called with one line that says why a cache is rebuilt, or that another process is building it.
    """
    if (in_memory := _in_memory(dataset, size)) is not None:
        return in_memory
    path = _cache_path(dataset, folder, size)
    lock_path = path.with_name(f"{path.name}.lock")

    def on_wait() -> None:
        log(f"image cache {path}: waiting for another process that is building it")

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock_for_reading(lock_path, on_wait):
            cache = _open(path, dataset)
        if isinstance(cache, ImageCache):
            return cache
        with FileLock(lock_path, on_wait=on_wait):
            # Check again: another process may have built it in the meantime.
            cache = _open(path, dataset)
            if isinstance(cache, ImageCache):
                return cache
            if cache:
                log(f"image cache {path}: {cache}; rebuilding it")
                _verify.cache_clear()  # so that the disk space of the old one can be freed
            build_cache(path, dataset, size, available_cores() if workers is None else max(1, workers), progress)
            cache = _open(path, dataset)
    except OSError as error:
        option = "--cache" if folder is not None else "--cache or SWAD_CACHE"
        raise DataError(
            f"cannot write image cache {path} ({error}); free disk space or choose another directory with {option}"
        ) from None
    if isinstance(cache, ImageCache):
        return cache
    raise DataError(
        f"image cache {path}: the images changed while the cache was being built ({cache or 'it was removed'}); "
        "try again"
    )


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
    return ImageCache(images, np.tile(np.array([height, width]), (len(images), 1)), _starts(dataset), None)


def _cache_path(dataset: Dataset, folder: Path | str | None, size: int | None) -> Path:
    # The format and the list of files are not part of the name, so that an outdated cache is found and replaced
    # instead of being left behind.
    roots = [str(d.root.resolve()) if isinstance(d, FileDomain) else None for d in dataset.domains]
    identity = json.dumps([dataset.name, dataset.domain_names, roots, size])
    name = re.sub(r"[^\w.-]+", "_", dataset.name)
    parent = Path(folder) if folder is not None else default_folder()
    return parent / f"{name}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"


MAX_OPENED = 8
"""Caches that a process keeps open for its next runs. They are mapped files and take no memory of their own."""


def _file_state(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _open(path: Path, dataset: Dataset) -> ImageCache | str | None:
    """Return the cache, or the reason why it cannot be used, or None if there is none.

    The next run of a process finds the cache open. Its checksums are verified again only if its files changed; whether
    the source images changed is asked every time.
    """
    if not path.exists():
        return "the process that was building it was stopped" if partial_directories(path) else None
    try:
        files = (_file_state(path / INDEX), _file_state(path / IMAGES))
        index = _read_index(path, files)
        if index["format"] != FORMAT:
            return f"it has format {index['format']}, this version reads {FORMAT}"
        if change := _describe_change(index["domains"], fingerprint(dataset)):
            return change
        return _verify(path, files, tuple(_starts(dataset).items()), sum(map(len, dataset.domains)))
    except (OSError, ValueError, TypeError, LookupError, ArithmeticError) as error:
        return f"it cannot be read ({type(error).__name__}: {' '.join(str(error).split())[:200]})"


FileStates = tuple[tuple[int, ...], ...]


@lru_cache(MAX_OPENED)
def _read_index(path: Path, files: FileStates) -> Any:
    index = read_json(path / INDEX)
    if index["format"] == FORMAT and index["checksum"] != index_checksum(index):
        raise ValueError(f"wrong checksum of {INDEX}")
    return index


@lru_cache(MAX_OPENED)
def _verify(path: Path, files: FileStates, starts: tuple[tuple[str, int], ...], n: int) -> ImageCache | str:
    """Return the cache of `n` images, or how it is damaged."""
    index, data = _read_index(path, files), path / IMAGES
    shape, checksums, sizes = tuple(index["shape"]), index["sha256"], np.array(index["sizes"], np.int64)
    block = images_per_block(shape[1:])
    lengths = {
        "bytes": (data.stat().st_size, int(np.prod(shape))),
        "images": (shape[0], n),
        "sizes": (sizes.shape, (n, 2)),
        "checksums": (len(checksums), -(-n // block)),
    }
    if wrong := [f"{what} {got}, expected {want}" for what, (got, want) in lengths.items() if got != want]:
        return f"its index does not match its images ({'; '.join(wrong)})"
    if damage := _find_damage(data, checksums, int(np.prod(shape[1:])), block):
        return damage
    return ImageCache(np.memmap(data, np.uint8, "r", shape=shape), sizes, dict(starts), path)


def _describe_change(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> str | None:
    """Describe how the source images changed since the cache was built."""
    for old, new in zip(before, now, strict=True):
        if old["files"] != new["files"]:
            removed, added = set(old["files"]) - set(new["files"]), set(new["files"]) - set(old["files"])
            example = f", e.g. {min(removed | added)}" if removed | added else ""
            return f"domain {new['name']} has {len(added)} added and {len(removed)} removed images{example}"
        changed = [i for i, stats in enumerate(zip(old["stats"], new["stats"], strict=True)) if stats[0] != stats[1]]
        if changed:
            return f"{counted(len(changed), 'image')} of {new['name']} changed, e.g. {new['files'][changed[0]]}"
    return None


def _find_damage(data: Path, checksums: Sequence[str], bytes_per_image: int, block: int) -> str | None:
    """Describe the first block whose checksum is wrong."""

    def is_intact(i: int) -> bool:
        with data.open("rb") as file:
            file.seek(i * block * bytes_per_image)
            return hashlib.sha256(file.read(block * bytes_per_image)).hexdigest() == checksums[i]

    with ThreadPoolExecutor(available_cores()) as pool:  # hashing releases the GIL
        for i, intact in enumerate(pool.map(is_intact, range(len(checksums)))):
            if not intact:
                return f"images {i * block:,} to {(i + 1) * block - 1:,} are damaged (wrong checksum)"
    return None


def _starts(dataset: Dataset) -> dict[str, int]:
    ends = np.cumsum([len(domain) for domain in dataset.domains]).tolist()
    return dict(zip(dataset.domain_names, [0, *ends[:-1]], strict=True))
