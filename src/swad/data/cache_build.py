"""TODO."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from swad.data.domains import ArrayDomain, ByteArray, DataError, Dataset, FileDomain, read_image
from swad.util.progress import Progress


def gpu_decoder_missing(device: str = "cuda") -> str | None:
    """Why JPEG files cannot be decoded on a GPU here; None where they can."""
    try:
        import torch
        from torchvision.io import decode_jpeg, encode_jpeg
    except ImportError as error:
        return f"{error.name} is not installed"
    if not torch.cuda.is_available():
        return "there is no GPU"
    try:
        decode_jpeg([encode_jpeg(torch.zeros(3, 16, 16, dtype=torch.uint8))], device=device)
    except Exception as error:  # torchvision built without nvJPEG, or one that does not fit the driver
        return f"torchvision cannot ({' '.join(str(error).split())[:200]})"
    return None


# --- building -------------------------------------------------------------------------------------------------


class _Written(NamedTuple):
    """What became of a block: sizes before, the checksum of what was written, JPEG files the GPU could not decode."""

    sizes: list[tuple[int, int]]
    checksum: str
    beyond_gpu: int


class _Block(NamedTuple):
    """Work for one worker: decode these images and write them from this row on."""

    data: str
    start: int
    sources: Sequence[Source]
    shape: tuple[int, ...]
    gpu: str | None
    """The device that decodes JPEG files; None where the CPU does."""


def _build(
    place: Path,
    dataset: Dataset,
    size: int | None,
    decoder: str,
    device: str,
    workers: int,
    progress: Progress | None,
) -> None:
    """Make the cache beside its place and move it there, whole; on an error nothing is left."""
    for left in _leftovers(place):
        shutil.rmtree(left)
    partial = place.with_name(f"{place.name}.partial-{os.getpid()}")
    try:
        partial.mkdir()
        # Before reading: what changes while it is read is noticed when the cache is opened.
        domains = _fingerprint(dataset)
        sources = _sources(dataset)
        on_gpu = device if decoder == "gpu" else None
        with _pool(1 if on_gpu else min(workers, -(-len(sources) // BLOCK))) as pool:
            height, width = (size, size) if size is not None else _common_size(pool, _cut(sources, BLOCK), progress)
            shape = (height, width, _channels(dataset))
            data = partial / IMAGES
            _allocate(data, len(sources) * int(np.prod(shape)))
            n = _per_block(shape)
            tasks = [_Block(str(data), i * n, block, shape, on_gpu) for i, block in enumerate(_cut(sources, n))]
            sizes: list[tuple[int, int]] = []
            sums: list[str] = []
            beyond_gpu = 0
            for written in pool.map(_write_block, tasks):
                sizes += written.sizes
                sums.append(written.checksum)
                beyond_gpu += written.beyond_gpu
                if progress:
                    progress("decoding images", len(sizes), len(sources))
        index = {
            "format": FORMAT,
            "dataset": dataset.name,
            "decoder": decoder,
            "beyond_gpu": beyond_gpu,
            "shape": [len(sources), *shape],
            "domains": domains,
            "sizes": sizes,
            "sha256": sums,
        }
        (partial / INDEX).write_text(json.dumps(index), encoding="utf-8")
        for file in (data, partial / INDEX):
            _force_to_disk(file)
        if place.exists():
            shutil.rmtree(place)
        os.rename(partial, place)
    except BrokenProcessPool:
        raise DataError(
            f"image cache {place}: a process that decoded images was ended, perhaps for want of memory; "
            "use fewer workers (1 starts no process)"
        ) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _sources(dataset: Dataset) -> list[Source]:
    sources: list[Source] = []
    for domain in dataset.domains:
        if isinstance(domain, FileDomain):
            sources += [os.path.join(domain.root, file) for file in domain.files]
        elif isinstance(domain, ArrayDomain):
            sources += list(domain.images)
    return sources


def _cut(sources: list[Source], n: int) -> list[list[Source]]:
    return [sources[i : i + n] for i in range(0, len(sources), n)]


def _channels(dataset: Dataset) -> int:
    found = {d.images.shape[-1] if isinstance(d, ArrayDomain) else 3 for d in dataset.domains}
    if len(found) > 1:
        raise DataError(
            f"the images of {dataset.name} must have one number of channels, got {sorted(found)}; files have 3"
        )
    return int(found.pop())


@contextmanager
def _pool(workers: int) -> Iterator[Executor]:
    """Processes that decode; for one worker a thread, which needs no start."""
    from multiprocessing import current_process, get_context

    if workers == 1 or current_process().daemon:  # which may not start processes
        pool: Executor = ThreadPoolExecutor(1)
    else:
        # Forking a process that holds a GPU or threads is not safe.
        pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_begin_worker)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _begin_worker() -> None:
    """Leave Ctrl-C to the parent, and go when it is gone: killed, it cannot say so."""
    from multiprocessing import parent_process

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _common_size(pool: Executor, blocks: list[list[Source]], progress: Progress | None) -> tuple[int, int]:
    """The one size of all images if it is small enough, from their headers; else the largest square kept."""
    seen: set[tuple[int, int]] = set()
    for i, found in enumerate(pool.map(_header_sizes, blocks)):
        seen |= found
        settled = len(seen) > 1 or max(max(seen)) > LARGEST
        if progress:
            progress("reading image headers", len(blocks) if settled else i + 1, len(blocks))
        if settled:
            return LARGEST, LARGEST
    return seen.pop()


def _header_sizes(sources: Sequence[Source]) -> set[tuple[int, int]]:
    from PIL import Image

    seen: set[tuple[int, int]] = set()
    for source in sources:
        if not isinstance(source, str):
            seen.add((source.shape[0], source.shape[1]))
            continue
        try:
            with Image.open(source) as image:
                seen.add((image.height, image.width))
        except Exception:  # whatever Pillow raises, this raises the same with the image's name
            seen.add(read_image(Path(source)).size[::-1])
    return seen


def _write_block(block: _Block) -> _Written:
    """Decode a block's images and write them."""
    jpegs = [source for source in block.sources if isinstance(source, str) and _is_jpeg(source)] if block.gpu else []
    on_gpu = _decode_on_gpu(jpegs, block.gpu) if block.gpu else {}
    pixels = np.empty((len(block.sources), *block.shape), np.uint8)
    sizes: list[tuple[int, int]] = []
    for i, image in enumerate(_decoded(block.sources, on_gpu)):
        sizes.append((image.shape[0], image.shape[1]))
        pixels[i] = _fitted(image, block.shape[0], block.shape[1])
    # Written, not mapped: a full disk is then an error and no signal.
    fd = os.open(block.data, os.O_WRONLY)
    try:
        left, offset = pixels.data.cast("B"), block.start * int(np.prod(block.shape))
        while left:
            written = os.pwrite(fd, left, offset)
            left, offset = left[written:], offset + written
    finally:
        os.close(fd)
    return _Written(sizes, hashlib.sha256(pixels.data).hexdigest(), len(jpegs) - len(on_gpu))


def _decoded(sources: Sequence[Source], on_gpu: Mapping[str, ByteArray]) -> Iterator[ByteArray]:
    for source in sources:
        if not isinstance(source, str):
            yield source
        elif source in on_gpu:
            yield on_gpu[source]
        else:
            yield np.asarray(read_image(Path(source)))


def _is_jpeg(path: str) -> bool:
    return path.lower().endswith((".jpg", ".jpeg"))


def _decode_on_gpu(paths: Sequence[str], device: str) -> dict[str, ByteArray]:
    """JPEG files decoded together; one by one where some are beyond the GPU's decoder, which does not say which."""
    if not paths:
        return {}
    from torchvision.io import ImageReadMode, decode_jpeg, read_file

    try:
        images = decode_jpeg([read_file(path) for path in paths], mode=ImageReadMode.RGB, device=device)
        return {path: image.permute(1, 2, 0).cpu().numpy() for path, image in zip(paths, images, strict=True)}
    except (RuntimeError, OSError):
        alone = [_decode_on_gpu([path], device) for path in paths] if len(paths) > 1 else []
        return {path: image for found in alone for path, image in found.items()}


def _fitted(image: ByteArray, height: int, width: int) -> ByteArray:
    """An image at the cache's size: bilinear, antialiased."""
    if image.shape[:2] == (height, width):
        return image
    from PIL import Image

    def resized(pixels: ByteArray) -> ByteArray:
        return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR))

    if image.shape[2] == 3:
        return resized(image)
    return np.stack([resized(image[..., channel]) for channel in range(image.shape[2])], -1)


def _allocate(data: Path, size: int) -> None:
    """Ask for all the room at once, so that a full disk shows before the work."""
    with data.open("wb") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            file.truncate(size)


def _force_to_disk(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


# 2: deep gray images are no longer white, large images have smaller blocks.
FORMAT = 2
IMAGES, INDEX = "images.u8", "index.json"
# The largest images that are kept as they are, and what all others become.
LARGEST = 256
# Images decoded, written and summed together: at most so many, and so many bytes of them.
BLOCK = 64
BLOCK_BYTES = BLOCK * LARGEST * LARGEST * 3
# An image to decode: a path, or the pixels of a domain in memory.
Source = str | ByteArray


def _fingerprint(dataset: Dataset) -> list[dict[str, Any]]:
    """What the images are now, as far as can be told without reading files: names, sizes, times."""
    found: list[dict[str, Any]] = []
    for domain in dataset.domains:
        if isinstance(domain, FileDomain):
            stats = [_stat(os.path.join(domain.root, file)) for file in domain.files]
            found.append({"name": domain.name, "files": list(domain.files), "stats": stats})
        elif isinstance(domain, ArrayDomain):
            data = np.ascontiguousarray(domain.images)
            files = [f"array {data.shape} {hashlib.sha256(data.data).hexdigest()}"]
            found.append({"name": domain.name, "files": files, "stats": []})
        else:
            raise DataError(f"domain {domain.name}: images come from files or one array, got {type(domain).__name__}")
    return found


def _stat(path: str) -> list[int]:
    try:
        stat = os.stat(path)
    except OSError:
        return [-1, -1]  # as any other change; reading the image will name it
    return [stat.st_size, stat.st_mtime_ns]


def _per_block(shape: Sequence[int]) -> int:
    """Images of this shape in a block.

    >>> _per_block((227, 227, 3)), _per_block((1024, 1024, 3)), _per_block((4096, 4096, 3))
    (64, 4, 1)
    """
    return max(1, min(BLOCK, BLOCK_BYTES // int(np.prod(shape))))


def _leftovers(place: Path) -> list[Path]:
    return sorted(place.parent.glob(f"{place.name}.partial-*"))
