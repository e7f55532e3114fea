"""Building an image cache: decode every image, resize it, and write it to its row of one file, on all cores.

The directory is moved to its final path when it is complete, so a process that is killed leaves a partial directory and
never an incomplete cache. `swad.testbed.data.cache` decides when to build and reads the result.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from swad.testbed.data.domains import ArrayDomain, ByteArray, Dataset, FileDomain
from swad.util.images import DataError, open_image, read_image
from swad.util.progress import Progress

FORMAT = 5
"""Version of the file format."""
IMAGES, INDEX = "images.u8", "index.json"
DEFAULT_SIZE = 256
"""Images that share one size of at most this are stored as they are; all others are resized to this square."""

# A block is the unit of work and of checksums: at most this many images, and at most this many bytes of them.
BLOCK = 64
BLOCK_BYTES = BLOCK * DEFAULT_SIZE * DEFAULT_SIZE * 3

Source = str | ByteArray
"""An image to store: the path of a file, or the pixels of an image in memory."""


def build_cache(
    directory: Path, name: str, dataset: Dataset, size: int | None, workers: int, progress: Progress | None
) -> None:
    """Build the cache of a dataset in a new directory; `name` is that of its final path."""
    sources = _sources(dataset)
    # Threads, as Pillow releases the GIL while it decodes. `map` cancels what is waiting when its iterator is left.
    with ThreadPoolExecutor(workers) as pool:
        height, width = (size, size) if size is not None else _common_size(pool, _chunks(sources, BLOCK), progress)
        shape = (height, width, _channels(dataset))
        data, n = directory / IMAGES, images_per_block(shape)
        _allocate(data, len(sources) * int(np.prod(shape)))
        sizes: list[tuple[int, int]] = []
        checksums: list[str] = []

        def write(start: int) -> tuple[list[tuple[int, int]], str]:
            return _write_block(data, start, sources[start : start + n], shape)

        for block_sizes, checksum in pool.map(write, range(0, len(sources), n)):
            sizes += block_sizes
            checksums.append(checksum)
            if progress:
                progress("decoding images", len(sizes), len(sources))
    index = {
        "name": name,
        "shape": [len(sources), *shape],
        "starts": image_starts(dataset),
        "sizes": sizes,
        "sha256": checksums,
    }
    (directory / INDEX).write_text(json.dumps({**index, "checksum": index_checksum(index)}), encoding="utf-8")
    for file in (data, directory / INDEX):
        with file.open("rb") as written:
            os.fsync(written.fileno())


def index_checksum(index: Mapping[str, Any]) -> str:
    """Return the SHA-256 of an index without its checksum."""
    content = {name: value for name, value in index.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def content_hash(dataset: Dataset) -> str:
    """Return a hash of the format and of the names, sizes and modification times of a dataset's files."""
    digest = hashlib.sha256(f"{FORMAT}".encode())
    for domain in dataset.domains:
        digest.update(f"\0\0{domain.name}\0".encode())
        if isinstance(domain, FileDomain):
            for file in domain.files:
                state = _size_and_time(os.path.join(domain.root, file))
                digest.update(f"{file}\0{state}\0".encode(errors="surrogateescape"))
        elif isinstance(domain, ArrayDomain):
            digest.update(f"{domain.images.shape}".encode())
            digest.update(np.ascontiguousarray(domain.images).data)
        else:
            raise DataError(
                f"domain {domain.name}: only a FileDomain or an ArrayDomain can be cached, got {type(domain).__name__}"
            )
    return digest.hexdigest()[:12]


def image_starts(dataset: Dataset) -> dict[str, int]:
    """Return the row of each domain's first image."""
    ends = np.cumsum([len(domain) for domain in dataset.domains]).tolist()
    return dict(zip(dataset.domain_names, [0, *ends[:-1]], strict=True))


def images_per_block(shape: Sequence[int]) -> int:
    """Return the number of images of this shape in a block.

    >>> images_per_block((227, 227, 3)), images_per_block((1024, 1024, 3)), images_per_block((4096, 4096, 3))
    (64, 4, 1)
    """
    return max(1, min(BLOCK, BLOCK_BYTES // int(np.prod(shape))))


def _write_block(
    data: Path, start: int, sources: Sequence[Source], shape: tuple[int, ...]
) -> tuple[list[tuple[int, int]], str]:
    """Decode images and write them from row ``start`` on; return their original sizes and the checksum of the block."""
    pixels = np.empty((len(sources), *shape), np.uint8)
    sizes: list[tuple[int, int]] = []
    for i, source in enumerate(sources):
        image = np.asarray(read_image(Path(source))) if isinstance(source, str) else source
        sizes.append((image.shape[0], image.shape[1]))
        pixels[i] = _resize(image, shape[0], shape[1])
    # Written rather than mapped: where space cannot be reserved, a full disk is then an exception and not a SIGBUS.
    with data.open("r+b", buffering=0) as file:
        remaining, offset = pixels.data.cast("B"), start * int(np.prod(shape))
        while remaining:
            written = os.pwrite(file.fileno(), remaining, offset)
            remaining, offset = remaining[written:], offset + written
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


def _common_size(pool: ThreadPoolExecutor, chunks: list[list[Source]], progress: Progress | None) -> tuple[int, int]:
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


def _size_and_time(path: str) -> list[int]:
    try:
        stat = os.stat(path)
    except OSError:
        return [-1, -1]  # counts as a change; decoding then names the missing file
    return [stat.st_size, stat.st_mtime_ns]
