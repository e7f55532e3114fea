"""Building an image cache: decode every image in parallel, resize it, and write it to its row of one file.

The cache is built next to its final path and moved there in one step, so a process that is killed leaves a partial
directory and never an incomplete cache. `swad.testbed.data.cache` decides when to build and reads the result.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from swad.testbed.data.domains import ArrayDomain, ByteArray, Dataset, FileDomain
from swad.util.images import DataError, open_image, read_image
from swad.util.progress import Progress

FORMAT = 4
"""Version of the file format. 2: 16-bit gray images are scaled to 8 bits; blocks of large images are smaller.
3: 16-bit TIFF files in which 0 is white are inverted. 4: the index has a checksum of its own."""
IMAGES, INDEX = "images.u8", "index.json"
DEFAULT_SIZE = 256
"""Images that share one size of at most this are stored as they are; all others are resized to this square."""

# A block is the unit of work and of checksums: at most this many images, and at most this many bytes of them.
BLOCK = 64
BLOCK_BYTES = BLOCK * DEFAULT_SIZE * DEFAULT_SIZE * 3

Source = str | ByteArray
"""An image to store: the path of a file, or the pixels of an image in memory."""


def build_cache(path: Path, dataset: Dataset, size: int | None, workers: int, progress: Progress | None) -> None:
    """Build the cache of a dataset at ``path``, replacing an old one; on an error nothing is left behind."""
    for leftover in partial_directories(path):
        shutil.rmtree(leftover)
    partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
    try:
        partial.mkdir()
        # Taken before reading: images that change in the meantime are noticed when the cache is opened.
        domains = fingerprint(dataset)
        sources = _sources(dataset)
        with _pool(min(workers, -(-len(sources) // BLOCK))) as pool:
            height, width = (size, size) if size is not None else _common_size(pool, _chunks(sources, BLOCK), progress)
            shape = (height, width, _channels(dataset))
            data = partial / IMAGES
            _allocate(data, len(sources) * int(np.prod(shape)))
            n = images_per_block(shape)
            blocks = [_Block(str(data), i * n, chunk, shape) for i, chunk in enumerate(_chunks(sources, n))]
            sizes: list[tuple[int, int]] = []
            checksums: list[str] = []
            for block_sizes, checksum in pool.map(_write_block, blocks):
                sizes += block_sizes
                checksums.append(checksum)
                if progress:
                    progress("decoding images", len(sizes), len(sources))
        index = {
            "format": FORMAT,
            "dataset": dataset.name,
            "shape": [len(sources), *shape],
            "domains": domains,
            "sizes": sizes,
            "sha256": checksums,
        }
        index["checksum"] = index_checksum(index)
        (partial / INDEX).write_text(json.dumps(index), encoding="utf-8")
        for file in (data, partial / INDEX):
            _flush_to_disk(file)
        if path.exists():
            shutil.rmtree(path)
        os.rename(partial, path)
    except BrokenProcessPool:
        raise DataError(
            f"image cache {path}: a decoding process was killed, perhaps because memory ran out; use fewer workers "
            "(1 starts no processes)"
        ) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def index_checksum(index: Mapping[str, Any]) -> str:
    """Return the SHA-256 of an index without its checksum."""
    content = {name: value for name, value in index.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def fingerprint(dataset: Dataset) -> list[dict[str, Any]]:
    """Return the names, sizes and modification times of a dataset's files, which tell whether a cache is current."""
    domains: list[dict[str, Any]] = []
    for domain in dataset.domains:
        if isinstance(domain, FileDomain):
            stats = [_size_and_time(os.path.join(domain.root, file)) for file in domain.files]
            domains.append({"name": domain.name, "files": list(domain.files), "stats": stats})
        elif isinstance(domain, ArrayDomain):
            data = np.ascontiguousarray(domain.images)
            files = [f"array {data.shape} {hashlib.sha256(data.data).hexdigest()}"]
            domains.append({"name": domain.name, "files": files, "stats": []})
        else:
            raise DataError(
                f"domain {domain.name}: only a FileDomain or an ArrayDomain can be cached, got {type(domain).__name__}"
            )
    return domains


def images_per_block(shape: Sequence[int]) -> int:
    """Return the number of images of this shape in a block.

    >>> images_per_block((227, 227, 3)), images_per_block((1024, 1024, 3)), images_per_block((4096, 4096, 3))
    (64, 4, 1)
    """
    return max(1, min(BLOCK, BLOCK_BYTES // int(np.prod(shape))))


def partial_directories(path: Path) -> list[Path]:
    """Return what interrupted builds of the cache at ``path`` left behind."""
    return sorted(path.parent.glob(f"{path.name}.partial-*"))


class _Block(NamedTuple):
    """Work for one worker: decode these images and write them from row ``start`` on."""

    data: str
    start: int
    sources: Sequence[Source]
    shape: tuple[int, ...]


def _write_block(block: _Block) -> tuple[list[tuple[int, int]], str]:
    """Decode and write a block; return the original sizes of its images and the checksum of its bytes."""
    pixels = np.empty((len(block.sources), *block.shape), np.uint8)
    sizes: list[tuple[int, int]] = []
    for i, source in enumerate(block.sources):
        image = np.asarray(read_image(Path(source))) if isinstance(source, str) else source
        sizes.append((image.shape[0], image.shape[1]))
        pixels[i] = _resize(image, block.shape[0], block.shape[1])
    # Written rather than mapped: a full disk is then an exception and not a SIGBUS.
    fd = os.open(block.data, os.O_WRONLY)
    try:
        remaining, offset = pixels.data.cast("B"), block.start * int(np.prod(block.shape))
        while remaining:
            written = os.pwrite(fd, remaining, offset)
            remaining, offset = remaining[written:], offset + written
    finally:
        os.close(fd)
    return sizes, hashlib.sha256(pixels.data).hexdigest()


def _resize(image: ByteArray, height: int, width: int) -> ByteArray:
    """Resize an image by bilinear interpolation with antialiasing."""
    if image.shape[:2] == (height, width):
        return image
    from PIL import Image

    def resize(pixels: ByteArray) -> ByteArray:
        return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR))

    if image.shape[2] == 3:
        return resize(image)
    return np.stack([resize(image[..., channel]) for channel in range(image.shape[2])], -1)


def _common_size(pool: Executor, chunks: list[list[Source]], progress: Progress | None) -> tuple[int, int]:
    """Return the size that all images share if it is small enough, else the default square. Reads headers only."""
    sizes: set[tuple[int, int]] = set()
    for i, chunk_sizes in enumerate(pool.map(_header_sizes, chunks)):
        sizes |= chunk_sizes
        decided = len(sizes) > 1 or max(max(sizes)) > DEFAULT_SIZE
        if progress:
            progress("reading image headers", len(chunks) if decided else i + 1, len(chunks))
        if decided:
            return DEFAULT_SIZE, DEFAULT_SIZE
    return sizes.pop()


def _header_sizes(sources: Sequence[Source]) -> set[tuple[int, int]]:
    sizes: set[tuple[int, int]] = set()
    for source in sources:
        if not isinstance(source, str):
            sizes.add((source.shape[0], source.shape[1]))
            continue
        try:
            with open_image(Path(source)) as image:
                sizes.add((image.height, image.width))
        except Exception:  # Pillow raises many types; read_image turns them into an error that names the file
            sizes.add(read_image(Path(source)).size[::-1])
    return sizes


class _Process(SpawnProcess):
    """A process that does not import the main module: a script without a main guard would run once more in it."""

    def start(self) -> None:
        """Start the process, which takes what to import from the main module of this one."""
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            super().start()
        finally:
            sys.modules["__main__"] = main


class _Context(SpawnContext):
    """Spawned processes: forking is unsafe in a process that uses CUDA or threads."""

    Process = _Process


@contextmanager
def _pool(workers: int) -> Iterator[Executor]:
    """Start decoding processes, or a single thread for one worker."""
    from multiprocessing import current_process

    if workers == 1 or current_process().daemon:  # daemonic processes may not start children
        pool: Executor = ThreadPoolExecutor(1)
    else:
        pool = ProcessPoolExecutor(workers, mp_context=_Context(), initializer=_start_worker)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    """Ignore Ctrl-C, which the parent handles, and exit when the parent dies, even if it was killed."""
    from multiprocessing import parent_process

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None

    def exit_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=exit_with_parent, daemon=True).start()


def _sources(dataset: Dataset) -> list[Source]:
    sources: list[Source] = []
    for domain in dataset.domains:
        if isinstance(domain, FileDomain):
            sources += [os.path.join(domain.root, file) for file in domain.files]
        elif isinstance(domain, ArrayDomain):
            sources += list(domain.images)
    return sources


def _chunks(sources: list[Source], n: int) -> list[list[Source]]:
    return [sources[i : i + n] for i in range(0, len(sources), n)]


def _channels(dataset: Dataset) -> int:
    channels = {d.images.shape[-1] if isinstance(d, ArrayDomain) else 3 for d in dataset.domains}
    if len(channels) > 1:
        raise DataError(
            f"all domains of {dataset.name} must have the same number of channels, got {sorted(channels)}; image files "
            "have 3"
        )
    return int(channels.pop())


def _allocate(data: Path, size: int) -> None:
    """Reserve all disk space up front, so that a full disk fails before any decoding."""
    with data.open("wb") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            file.truncate(size)


def _flush_to_disk(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _size_and_time(path: str) -> list[int]:
    try:
        stat = os.stat(path)
    except OSError:
        return [-1, -1]  # counts as a change; decoding then names the missing file
    return [stat.st_size, stat.st_mtime_ns]
