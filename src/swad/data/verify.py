"""Verifying a dataset on disk: compare image counts with the published ones and decode every image."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from swad.data import image_folder, mnist
from swad.data.benchmark import Benchmark
from swad.data.benchmarks import get, names
from swad.data.domains import DataError, FileDomain, read_image
from swad.data.shards import ShardDomain
from swad.util.cpu import available_cores
from swad.util.names import one_line
from swad.util.progress import Progress


@dataclass(frozen=True)
class DomainCount:
    """Number of images and classes of a domain; ``expected`` is None if any number of images is correct."""

    name: str
    found: int
    expected: int | None
    classes: int


@dataclass(frozen=True)
class BadImage:
    """An image that cannot be decoded, and the reason."""

    path: Path
    reason: str


@dataclass(frozen=True)
class CheckResult:
    """Result of a check: ``problems`` and ``bad`` images are errors, ``notes`` are for information."""

    name: str
    path: Path
    domains: tuple[DomainCount, ...]
    classes: int
    decoded: int = 0
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    bad: tuple[BadImage, ...] = ()
    seconds: float = 0.0

    @property
    def images(self) -> int:
        """Number of images."""
        return sum(domain.found for domain in self.domains)

    @property
    def ok(self) -> bool:
        """Whether there are no errors."""
        return not self.problems and not self.bad


def check(
    path: Path | str,
    name: str | Benchmark | None = None,
    *,
    decode: bool = True,
    progress: Progress | None = None,
) -> CheckResult:
    """Check the dataset in a folder.

    Args:
        path: Folder of the dataset.
        name: Name of the dataset. Default: recognize it from its folders.
        decode: Decode every image.
        progress: Progress callback for decoding.
    """
    started = time.perf_counter()
    path = Path(path)
    if not path.is_dir():
        raise DataError(f"{path} is not a folder; give the folder of the dataset")
    benchmark = name if isinstance(name, Benchmark) else get(name) if name else recognize(path)
    if benchmark.layout == "embedded":
        raise DataError(f"{benchmark.name} is part of an installed package; there is no folder to check")
    find_bad = partial(find_bad_images, progress=progress) if decode else None
    if benchmark.layout == "idx":
        result = _check_idx(path)
    else:
        check_files = _check_image_folder if benchmark.read is None else _check_by_reading
        result = check_files(benchmark, path, find_bad)
        result = replace(result, decoded=result.images - len(result.bad) if decode else 0)
    return replace(result, seconds=time.perf_counter() - started)


def recognize(path: Path) -> Benchmark:
    """Return the benchmark that a folder contains, by the folder's name, else by its domains; else ``folder``."""
    known = []
    for name in names():
        with suppress(DataError):  # a broken file of the user's own must not stop the check of another dataset
            known.append(get(name))
    with_domains = [b for b in known if b.layout == "folders" and b.domains and b.read is None]
    subfolders = {entry.name for entry in os.scandir(path) if entry.is_dir()}
    for benchmark in with_domains:
        if path.resolve().name.lower() in {benchmark.folder.lower(), benchmark.name.lower()}:
            return benchmark
    for benchmark in with_domains:
        if set(benchmark.domains) <= {benchmark.aliases.get(folder, folder) for folder in subfolders}:
            return benchmark
    if mnist.find(path) is not None:
        return next(b for b in known if b.layout == "idx")
    inside = [b for b in with_domains if b.folder in subfolders]
    if len(inside) == 1:
        return inside[0]
    if len(inside) > 1:
        raise DataError(f"{path} contains {', '.join(b.folder for b in inside)}; check one of them at a time")
    return get("folder")


FindBad = Callable[..., tuple[BadImage, ...]] | None
"""`find_bad_images` with its progress; None to decode nothing."""


def _check_image_folder(benchmark: Benchmark, path: Path, find_bad: FindBad) -> CheckResult:
    path = image_folder.locate(benchmark, path)
    tree = image_folder.scan(benchmark, path)
    return CheckResult(
        name=benchmark.name,
        path=path,
        domains=tuple(
            DomainCount(d, tree.count(d), benchmark.counts.get(d), sum(1 for files in tree.files[d].values() if files))
            for d in tree.files
        ),
        classes=len(tree.classes),
        problems=(
            *image_folder.layout_problems(benchmark, tree),
            *image_folder.count_problems(benchmark, tree),
        ),
        notes=tuple(_notes(benchmark, tree)),
        bad=find_bad([path / name for name in tree.paths()]) if find_bad is not None else (),
    )


def _notes(benchmark: Benchmark, tree: image_folder.Tree) -> Iterator[str]:
    for name in tree.unknown_folders:
        yield f"folder {name} is not a domain of {benchmark.name} and is ignored"
    yield from image_folder.notes(tree)
    total = sum(tree.count(d) for d in tree.files)
    if total in benchmark.other_totals and total != benchmark.total:
        yield f"{total:,} images instead of {benchmark.total:,}: a later version of the dataset, also correct"
    if benchmark.excluded is not None and benchmark.total is not None and total > benchmark.total:
        yield "more images than expected; the list of duplicates may be missing next to the domains"


def find_bad_images(
    paths: list[Path],
    progress: Progress | None = None,
    workers: int | None = None,
    read: Callable[[int], object] | None = None,
) -> tuple[BadImage, ...]:
    """Decode all images and return those that cannot be; with threads, as Pillow releases the GIL while it decodes.

    Args:
        paths: The paths of the images.
        progress: Progress callback.
        workers: Number of threads. Default: one per core, at most 16.
        read: Decodes an image by its number, if images are not files of their own.
    """

    def check_image(number: int) -> BadImage | None:
        path = paths[number]
        try:
            read_image(path) if read is None else read(number)
        except DataError as error:
            cause = error.__cause__ or error
            reason = one_line(cause)
            return BadImage(path, reason.replace(str(path), path.name))
        return None

    bad: list[BadImage] = []
    with ThreadPoolExecutor(workers or min(16, available_cores())) as pool:
        for start in range(0, len(paths), 512):  # in slices, so that half a million futures do not fill the memory
            batch = range(start, min(start + 512, len(paths)))
            bad += [image for image in pool.map(check_image, batch) if image is not None]
            if progress:
                progress("decoding images", start + len(batch), len(paths))
    return tuple(bad)


def _check_by_reading(benchmark: Benchmark, path: Path, find_bad: FindBad) -> CheckResult:
    """Read a dataset that has a reader of its own, count its images, and decode those that are in files."""
    assert benchmark.read is not None
    dataset = benchmark.read(benchmark, path, False, benchmark.options)
    counts = tuple(
        DomainCount(domain.name, len(domain), benchmark.counts.get(domain.name), len(set(domain.labels.tolist())))
        for domain in dataset.domains
    )
    bad: list[BadImage] = []
    for domain in dataset.domains:
        if find_bad is not None and isinstance(domain, FileDomain | ShardDomain):
            bad += find_bad([domain.path(i) for i in range(len(domain))], read=domain.image)
    return CheckResult(
        name=benchmark.name,
        path=path,
        domains=counts,
        classes=len(dataset.classes),
        problems=tuple(
            f"domain {count.name} has {count.found} images, expected {count.expected}"
            for count in counts
            if count.expected not in (None, count.found)
        ),
        notes=dataset.notes,
        bad=tuple(bad),
    )


def _check_idx(path: Path) -> CheckResult:
    files = mnist.find(path)
    problems: list[str] = []
    images = 0
    if files is None:
        problems.append(f"the four idx files of MNIST ({', '.join(mnist.FILES)}) are not in {path}")
    else:
        try:
            arrays = {name: mnist.read_idx(file) for name, file in files.items()}
            images = sum(len(array) for name, array in arrays.items() if "images" in name)
            labels = sum(len(array) for name, array in arrays.items() if "labels" in name)
            if images != mnist.TOTAL or labels != mnist.TOTAL:
                problems.append(f"found {images} images and {labels} labels, expected {mnist.TOTAL} of each")
        except DataError as error:
            problems.append(str(error))
    return CheckResult(
        name="MNIST",
        path=path,
        domains=(DomainCount("all digits", images, mnist.TOTAL, 10),),
        classes=10,
        decoded=images,
        problems=tuple(problems),
    )
