"""Verifying a dataset on disk: compare image counts with the published ones and decode every image."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from swad.testbed.data import image_folder, mnist
from swad.testbed.data.benchmark import Benchmark
from swad.testbed.data.benchmarks import get, names, read
from swad.testbed.data.domains import Domain, FileDomain
from swad.testbed.data.parquet import as_folder
from swad.testbed.data.shards import ShardDomain
from swad.util.data_path import is_csv
from swad.util.images import DataError
from swad.util.processes import available_cores
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
    """An image that cannot be decoded, and the line that says why and what to do."""

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
        path: Folder of the dataset or of parquet files, CSV file of its images, or ``hub:owner/name``.
        name: Name of the dataset. Default: recognize it from its folders.
        decode: Decode every image.
        progress: Progress callback for decoding.
    """
    started = time.perf_counter()
    path = Path(path)
    if name is None or _benchmark(name).read is None:
        path = as_folder(path)
    if not path.is_dir() and not (is_csv(path) and path.is_file()):
        raise DataError(f"{path} is not a folder; give the folder of the dataset, or a CSV file of its images")
    benchmark = _benchmark(name) if name else recognize(path)
    if benchmark.layout == "embedded":
        raise DataError(
            f"{benchmark.name} is made by code or part of an installed package; there is no folder to check"
        )
    if benchmark.read is None and path.is_dir():
        path = image_folder.locate(benchmark, path)
        tree = image_folder.scan(benchmark, path, benchmark.options)
        domains: Sequence[Domain] = image_folder.read_domains(tree)
        classes, notes = tree.classes, tuple(_notes(benchmark, tree))
        problems = image_folder.layout_problems(benchmark, tree)
    else:
        dataset = read(benchmark, path, False, benchmark.options)
        domains, classes, notes, problems = dataset.domains, dataset.classes, dataset.notes, []
    counts = {domain.name: len(domain) for domain in domains}
    files = [domain for domain in domains if isinstance(domain, FileDomain | ShardDomain)]
    bad = find_bad_images(files, progress) if decode else ()
    return CheckResult(
        name=benchmark.name,
        path=path,
        domains=tuple(
            DomainCount(domain.name, len(domain), benchmark.counts.get(domain.name), len(set(domain.labels.tolist())))
            for domain in domains
        ),
        classes=len(classes),
        decoded=sum(counts.values()) - len(bad) if decode else 0,
        problems=(*problems, *image_folder.count_problems(benchmark, counts)),
        notes=notes,
        bad=bad,
        seconds=time.perf_counter() - started,
    )


def _benchmark(name: str | Benchmark) -> Benchmark:
    return name if isinstance(name, Benchmark) else get(name)


def recognize(path: Path) -> Benchmark:
    """Return the benchmark that a folder contains, by the folder's name, else by its domains; else ``folder``."""
    if is_csv(path):
        return get("folder")
    known = []
    for name in names():
        with suppress(DataError):  # a broken file of the user's own must not stop the check of another dataset
            known.append(get(name))
    with_domains = [b for b in known if b.domains and b.read is None]
    subfolders = {entry.name for entry in os.scandir(path) if entry.is_dir()}
    for benchmark in (b for b in known if b.domains and b.layout == "folders"):
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


def _notes(benchmark: Benchmark, tree: image_folder.Tree) -> Iterator[str]:
    yield from image_folder.notes(tree)
    total = sum(tree.count(d) for d in tree.files)
    if total in benchmark.other_totals and total != benchmark.total:
        yield f"{total:,} images instead of {benchmark.total:,}: a later version of the dataset, also correct"
    if benchmark.excluded is not None and benchmark.total is not None and total > benchmark.total:
        yield "more images than expected; the list of duplicates may be missing next to the domains"


def find_bad_images(
    domains: Sequence[FileDomain | ShardDomain], progress: Progress | None = None, workers: int | None = None
) -> tuple[BadImage, ...]:
    """Decode all images and return those that cannot be; with threads, as Pillow releases the GIL while it decodes.

    Args:
        domains: The images.
        progress: Progress callback.
        workers: Number of threads. Default: one per core, at most 16.
    """

    def check_image(image: tuple[FileDomain | ShardDomain, int]) -> BadImage | None:
        domain, i = image
        try:
            domain.image(i)
        except DataError as error:
            return BadImage(domain.path(i), str(error))
        return None

    images = [(domain, i) for domain in domains for i in range(len(domain))]
    bad: list[BadImage] = []
    with ThreadPoolExecutor(workers or min(16, available_cores())) as pool:
        for start in range(0, len(images), 512):  # in slices, so that half a million futures do not fill the memory
            batch = images[start : start + 512]
            bad += [image for image in pool.map(check_image, batch) if image is not None]
            if progress:
                progress("decoding images", start + len(batch), len(images))
    return tuple(bad)
