"""The decoded images of a whole data set in one file: built once, then mapped into memory by every run that reads them.

    <data set>-<hash>/images.u8     bytes: images × height × width × channels, domain after domain
    <data set>-<hash>/index.json    format, resolution, decoder, the files they came from, sizes, checksums
    <data set>-<hash>.lock          held by one process while it builds, shared by those that open

The folder is made beside its place and moved there whole. It is used only if its format is this one's and every image
file still has the size and the time it had; otherwise it is built again, and a line says why.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from swad.cores import cores
from swad.datasets._progress import Progress
from swad.domains import ArrayDomain, ByteArray, DataError, Dataset, FileDomain, IntArray, read_image

# 2: deep grey images are no longer white, large images have smaller blocks.
FORMAT = 2
IMAGES, INDEX = "images.u8", "index.json"
# The largest images that are kept as they are, and what all others become.
LARGEST = 256
# Images decoded, written and summed together: at most so many, and so many bytes of them.
BLOCK = 64
BLOCK_BYTES = BLOCK * LARGEST * LARGEST * 3

Say = Callable[[str], None]
# An image to decode: a path, or the pixels of a domain in memory.
Source = str | ByteArray


@dataclass(frozen=True, eq=False)
class ImageCache:
    """All images of a data set as one array, mapped from a file; domains follow one another in the data set's order."""

    images: ByteArray = field(repr=False)
    sizes: IntArray = field(repr=False)
    """Height and width of every image before it came here."""
    starts: Mapping[str, int]
    decoder: str
    path: Path | None
    """Where it lies; None for a data set that is in memory anyway."""
    beyond_gpu: int = 0
    """JPEG files that the GPU's decoder could not read and the CPU's did."""

    @property
    def nbytes(self) -> int:
        """The size of all images."""
        return int(self.images.nbytes)

    def rows(self, domain: str) -> int:
        """The row of a domain's first image; the others follow."""
        if domain not in self.starts:
            raise DataError(f"the image cache has no domain {domain!r}; it has {', '.join(self.starts)}")
        return self.starts[domain]

    def describe(self) -> str:
        """What reading from here changes, in one line."""
        height, width = self.images.shape[1:3]
        changed = int((self.sizes != (height, width)).any(1).sum())
        if changed:
            line = f"{changed:,} of {len(self.images):,} images are resized to {height} × {width} first"
        else:
            origin = "in memory" if self.path is None else "as in the files"
            line = f"{height} × {width} {origin}: nothing is changed before augmentation"
        if self.decoder == "gpu":
            line += "; decoded on the GPU, a level of 255 from the CPU's on average and dozens at some edges"
        if self.beyond_gpu:
            line += f"; {self.beyond_gpu:,} JPEG files were beyond it and are the CPU's"
        return line


def open_cache(
    dataset: Dataset,
    folder: Path | str | None = None,
    size: int | None = None,
    *,
    decoder: str = "cpu",
    device: str = "cuda",
    workers: int | None = None,
    progress: Progress | None = None,
    say: Say | None = None,
) -> ImageCache:
    """The image cache of a data set, built first where there is none that can be used.

    ``folder`` is where caches lie (default: ``$SWAD_CACHE``, else ``~/.cache/swad/images``). Images become ``size`` ×
    ``size``; by default they stay as they are if all have one size of at most 256, else they become 256 × 256.
    ``decoder="gpu"`` decodes JPEG files on the GPU ``device`` where torchvision can. ``workers`` processes decode
    (default: one a core; 0 and 1: this one alone). ``say`` is told in one line why a cache is built again, or that
    another process is being waited for; without it the reason is a warning. Opening reads all bytes once and compares
    their checksums, on all cores.
    """
    if size is not None and size < 1:
        raise DataError(f"images are kept at 1 × 1 pixels or more, got size {size}")
    if decoder not in ("cpu", "gpu"):
        raise DataError(f"images are decoded by cpu or gpu, got {decoder!r}")
    if not any(len(domain) for domain in dataset.domains):
        raise DataError(f"data set {dataset.name} has no images; add some")
    if (held := _in_memory(dataset, size)) is not None:
        return held
    say_why = say or (lambda line: warnings.warn(line, stacklevel=3))
    if decoder == "gpu" and (missing := gpu_decoder_missing(device)):
        say_why(f"images are decoded on the CPU: {missing}")
        decoder = "cpu"
    place = _place(dataset, folder, size, decoder)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _locked(place, exclusive=False, say=say):
            found = _open(place, dataset)
        if isinstance(found, ImageCache):
            return found
        with _locked(place, exclusive=True, say=say):
            # Again: another process may have built it in the meantime.
            found = _open(place, dataset)
            if isinstance(found, ImageCache):
                return found
            if found:
                say_why(f"image cache {place}: {found}; it is built again")
            workers = cores() if workers is None else max(1, workers)
            _build(place, dataset, size, decoder, device, workers, progress)
            found = _open(place, dataset)
    except OSError as error:
        raise _explained(error, place, "--cache" if folder is not None else "--cache or SWAD_CACHE") from None
    if isinstance(found, ImageCache):
        return found
    raise DataError(f"image cache {place}, just built: {found or 'it is gone'}; leave the images alone and try again")


def default_folder() -> Path:
    """Where caches lie unless told otherwise."""
    return Path(os.environ.get("SWAD_CACHE") or Path.home() / ".cache" / "swad" / "images")


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


# --- opening --------------------------------------------------------------------------------------------------


def _in_memory(dataset: Dataset, size: int | None) -> ImageCache | None:
    """A data set that is in memory already and at the right size needs no file."""
    arrays = [domain.images for domain in dataset.domains if isinstance(domain, ArrayDomain)]
    shapes = {array.shape[1:] for array in arrays}
    if len(arrays) < len(dataset.domains) or len(shapes) > 1:
        return None
    height, width, _ = shapes.pop()
    if size is not None and (height, width) != (size, size):
        return None
    images = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    return ImageCache(images, np.tile(np.array([height, width]), (len(images), 1)), _starts(dataset), "cpu", None)


def _place(dataset: Dataset, folder: Path | str | None, size: int | None, decoder: str) -> Path:
    # Neither the format nor the list of files are part of the name: a cache they make useless is to be found and
    # replaced, not left behind.
    roots = [str(d.root.resolve()) if isinstance(d, FileDomain) else None for d in dataset.domains]
    identity = json.dumps([dataset.name, dataset.domain_names, roots, size, decoder])
    name = re.sub(r"[^\w.-]+", "_", dataset.name)
    place = Path(folder) if folder is not None else default_folder()
    return place / f"{name}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"


def _open(place: Path, dataset: Dataset) -> ImageCache | str | None:
    """The cache at its place; or why it cannot be used; or None where there is nothing."""
    if not place.exists():
        return "a process was stopped while it built it" if _leftovers(place) else None
    try:
        index = json.loads((place / INDEX).read_text(encoding="utf-8"))
        if index["format"] != FORMAT:
            return f"it has format {index['format']}, this version reads {FORMAT}"
        shape, data, sums = tuple(index["shape"]), place / IMAGES, index["sha256"]
        if (bytes_there := data.stat().st_size) != int(np.prod(shape)):
            return f"{IMAGES} has {bytes_there:,} bytes, expected {int(np.prod(shape)):,}"
        if change := _change(index["domains"], _fingerprint(dataset)):
            return change
        n, block = sum(map(len, dataset.domains)), _per_block(shape[1:])
        sizes = np.array(index["sizes"], np.int64)
        held = {"images": (shape[0], n), "sizes": (sizes.shape, (n, 2)), "checksums": (len(sums), -(-n // block))}
        if wrong := [f"{what} {got}, expected {due}" for what, (got, due) in held.items() if got != due]:
            return f"its index does not fit its images ({'; '.join(wrong)})"
        if damage := _damage(data, sums, int(np.prod(shape[1:])), block):
            return damage
        images = np.memmap(data, np.uint8, "r", shape=shape)
        return ImageCache(images, sizes, _starts(dataset), index["decoder"], place, int(index["beyond_gpu"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"it cannot be read ({type(error).__name__}: {' '.join(str(error).split())[:200]})"


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


def _change(then: list[dict[str, Any]], now: list[dict[str, Any]]) -> str | None:
    """What changed in the images since the cache was built."""
    for before, after in zip(then, now, strict=True):
        if before["files"] != after["files"]:
            gone, new = set(before["files"]) - set(after["files"]), set(after["files"]) - set(before["files"])
            example = f", e.g. {min(gone | new)}" if gone | new else ""
            return f"domain {after['name']} has {len(new)} new images and {len(gone)} fewer{example}"
        changed = [i for i, pair in enumerate(zip(before["stats"], after["stats"], strict=True)) if pair[0] != pair[1]]
        if changed:
            return f"{len(changed)} images of {after['name']} changed, e.g. {after['files'][changed[0]]}"
    return None


def _damage(data: Path, sums: Sequence[str], row: int, block: int) -> str | None:
    """The first block whose checksum is not what it was."""

    def intact(i: int) -> bool:
        with data.open("rb") as file:
            file.seek(i * block * row)
            return hashlib.sha256(file.read(block * row)).hexdigest() == sums[i]

    with ThreadPoolExecutor(cores()) as pool:  # hashing lets go of the interpreter
        for i, good in enumerate(pool.map(intact, range(len(sums)))):
            if not good:
                return f"images {i * block:,} to {(i + 1) * block - 1:,} are damaged (checksum)"
    return None


def _per_block(shape: Sequence[int]) -> int:
    """Images of this shape in a block.

    >>> _per_block((227, 227, 3)), _per_block((1024, 1024, 3)), _per_block((4096, 4096, 3))
    (64, 4, 1)
    """
    return max(1, min(BLOCK, BLOCK_BYTES // int(np.prod(shape))))


def _starts(dataset: Dataset) -> dict[str, int]:
    ends = np.cumsum([len(domain) for domain in dataset.domains]).tolist()
    return dict(zip(dataset.domain_names, [0, *ends[:-1]], strict=True))


def _leftovers(place: Path) -> list[Path]:
    return sorted(place.parent.glob(f"{place.name}.partial-*"))


@contextmanager
def _locked(place: Path, exclusive: bool, say: Say | None) -> Iterator[None]:
    """Hold the cache's lock; the kernel lets go of it if this process dies."""
    try:
        import fcntl
    except ImportError:  # no such lock on this system; a single user's folder does without
        yield
        return
    path = place.with_name(f"{place.name}.lock")
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:
        if exclusive or not path.exists():
            raise
        fd = os.open(path, os.O_RDONLY)  # someone else's cache may be read where it may not be written
    try:
        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if say:
                say(f"image cache {place}: waiting for another process that builds it")
            fcntl.flock(fd, kind)
        except OSError as error:
            # Some network file systems have no locks. Refusing to train there would be worse than going on.
            warnings.warn(f"cannot lock {path} ({error.strerror}): see to it that one run builds there", stacklevel=4)
        yield
    finally:
        os.close(fd)


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


def _explained(error: OSError, place: Path, option: str) -> DataError:
    reason = (error.strerror or str(error)).lower()
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    remedy = "make room there" if full else "see to it"
    return DataError(f"cannot write image cache {place}: {reason}; {remedy} or choose another folder ({option})")
