"""The decoded images of a whole dataset in one file: built once, then mapped into memory by every run that reads them.

    <dataset>-<hash>/images.u8     bytes: images × height × width × channels, domain after domain
    <dataset>-<hash>/index.json    format, resolution, decoder, the files they came from, sizes, checksums
    <dataset>-<hash>.lock          held by one process while it builds, shared by those that open

The folder is made beside its place and moved there whole. It is used only if its format is this one's and every image
file still has the size and the time it had; otherwise it is built again, and a line says why.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from swad.data.cache_build import (
    FORMAT,
    IMAGES,
    INDEX,
    _build,
    _fingerprint,
    _leftovers,
    _per_block,
    gpu_decoder_missing,
)
from swad.data.domains import ArrayDomain, ByteArray, DataError, Dataset, FileDomain, IntArray
from swad.util.cores import cores
from swad.util.progress import Progress

Log = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class ImageCache:
    """All images of a dataset as one array, mapped from a file; domains follow one another in the dataset's order."""

    images: ByteArray = field(repr=False)
    sizes: IntArray = field(repr=False)
    """Height and width of every image before it came here."""
    starts: Mapping[str, int]
    decoder: str
    path: Path | None
    """Where it lies; None for a dataset that is in memory anyway."""
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
    log: Log | None = None,
) -> ImageCache:
    """The image cache of a dataset, built first where there is none that can be used.

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
        raise DataError(f"dataset {dataset.name} has no images; add some")
    if (held := _in_memory(dataset, size)) is not None:
        return held
    say_why = log or (lambda line: warnings.warn(line, stacklevel=3))
    if decoder == "gpu" and (missing := gpu_decoder_missing(device)):
        say_why(f"images are decoded on the CPU: {missing}")
        decoder = "cpu"
    place = _place(dataset, folder, size, decoder)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _locked(place, exclusive=False, log=log):
            found = _open(place, dataset)
        if isinstance(found, ImageCache):
            return found
        with _locked(place, exclusive=True, log=log):
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


# --- opening --------------------------------------------------------------------------------------------------


def _in_memory(dataset: Dataset, size: int | None) -> ImageCache | None:
    """A dataset that is in memory already and at the right size needs no file."""
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


def _starts(dataset: Dataset) -> dict[str, int]:
    ends = np.cumsum([len(domain) for domain in dataset.domains]).tolist()
    return dict(zip(dataset.domain_names, [0, *ends[:-1]], strict=True))


@contextmanager
def _locked(place: Path, exclusive: bool, log: Log | None) -> Iterator[None]:
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
            if log:
                log(f"image cache {place}: waiting for another process that builds it")
            fcntl.flock(fd, kind)
        except OSError as error:
            # Some network file systems have no locks. Refusing to train there would be worse than going on.
            warnings.warn(f"cannot lock {path} ({error.strerror}): see to it that one run builds there", stacklevel=4)
        yield
    finally:
        os.close(fd)


def _explained(error: OSError, place: Path, option: str) -> DataError:
    reason = (error.strerror or str(error)).lower()
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    remedy = "make room there" if full else "see to it"
    return DataError(f"cannot write image cache {place}: {reason}; {remedy} or choose another folder ({option})")
