"""Is this folder the dataset it should be? Counts against the published ones, every image decoded, faults named."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from swad.data import image_folder
from swad.data.benchmark import Benchmark, Options
from swad.data.benchmarks import _mnist, get, names
from swad.data.domains import DataError, read_image
from swad.util.cpu import available_cores
from swad.util.progress import Progress

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class DomainCount:
    """Images found and expected (None where any number is right)."""

    name: str
    found: int
    expected: int | None
    classes: int


@dataclass(frozen=True)
class BadImage:
    """An image that does not decode, and why."""

    path: Path
    reason: str


@dataclass(frozen=True)
class CheckResult:
    """What a check found. ``problems`` are faults, ``notes`` are worth knowing; ``ok`` means no fault at all."""

    name: str
    path: Path
    domains: tuple[DomainCount, ...]
    classes: int
    expected_classes: int | None
    decoded: int
    seconds: float
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    bad: tuple[BadImage, ...] = field(default=())

    @property
    def images(self) -> int:
        """Images found."""
        return sum(domain.found for domain in self.domains)

    @property
    def ok(self) -> bool:
        """Whether the dataset is as it should be."""
        return not self.problems and not self.bad


def check(
    path: Path | str,
    name: str | Benchmark | None = None,
    *,
    decode: bool = True,
    progress: Progress | None = None,
    workers: int | None = None,
    **options: object,
) -> CheckResult:
    """Check the dataset at ``path``; which one it is, is seen from its folders unless ``name`` says it."""
    started = time.perf_counter()
    path = Path(path)
    if not path.is_dir():
        raise DataError(f"{path} is not a folder; give the one that holds the dataset")
    benchmark = name if isinstance(name, Benchmark) else get(name) if name else recognize(path)
    if benchmark.kind == "embedded":
        raise DataError(f"{benchmark.name} comes with the package; there is no folder to check")
    examine = _check_idx if benchmark.kind == "idx" else _check_tree
    return examine(benchmark, path, decode, progress, workers, options, started)


def recognize(path: Path) -> Benchmark:
    """The benchmark whose folder this is: by its name, else by holding all the domains of one; else any folder."""
    known = [get(name) for name in names()]
    trees = [b for b in known if b.kind == "tree" and b.domains]
    below = {entry.name for entry in os.scandir(path) if entry.is_dir()}
    for benchmark in trees:
        if path.resolve().name.lower() in {benchmark.folder.lower(), benchmark.name.lower()}:
            return benchmark
    for benchmark in trees:
        if set(benchmark.domains) <= {benchmark.aliases.get(folder, folder) for folder in below}:
            return benchmark
    if _mnist.find(path) is not None:
        return next(b for b in known if b.kind == "idx")
    inside = [b for b in trees if b.folder in below]
    if len(inside) == 1:
        return inside[0]
    if len(inside) > 1:
        raise DataError(f"{path} holds {', '.join(b.folder for b in inside)}; check one of them at a time")
    return get("folder")


def show_check(result: CheckResult, console: Console | None = None, most: int = 20) -> None:
    """Print a check as a table, then every fault."""
    from rich.console import Console
    from rich.table import Table

    console = console or Console()
    console.print(f"{result.name} at {result.path}", style="bold", markup=False, soft_wrap=True)
    table = Table()
    for heading in ("domain", "images", "expected", "classes"):
        table.add_column(heading, justify="left" if heading == "domain" else "right")
    for domain in result.domains:
        wrong = domain.expected is not None and domain.found != domain.expected
        expected = "any" if domain.expected is None else f"{domain.expected:,}"
        table.add_row(domain.name, f"{domain.found:,}", expected, str(domain.classes), style="red" if wrong else "")
    console.print(table)
    for note in result.notes:
        console.print(f"note: {note}", style="yellow", markup=False, soft_wrap=True)
    lines = [*result.problems, *(f"{bad.path}: {bad.reason}" for bad in result.bad)]
    for line in lines[:most]:
        console.print(f"fault: {line}", style="red", markup=False, soft_wrap=True)
    if len(lines) > most:
        console.print(f"fault: and {len(lines) - most:,} more", style="red")
    verdict = "as it should be" if result.ok else f"{len(lines):,} fault{'s' if lines[1:] else ''}"
    console.print(
        f"{result.images:,} images, {result.classes} classes, {result.decoded:,} decoded in {result.seconds:.1f} s: "
        f"{verdict}",
        style="green" if result.ok else "red",
        soft_wrap=True,
    )


def _check_tree(
    benchmark: Benchmark,
    path: Path,
    decode: bool,
    progress: Progress | None,
    workers: int | None,
    options: Options,
    started: float,
) -> CheckResult:
    path = image_folder.locate(benchmark, path)
    tree = image_folder.scan(benchmark, path, options)
    problems = image_folder.problems(benchmark, tree, options) + image_folder.count_problems(benchmark, tree)
    bad = _decode([path / name for name in tree.relative()], progress, workers) if decode else ()
    return CheckResult(
        name=benchmark.name,
        path=path,
        domains=tuple(
            DomainCount(d, tree.count(d), benchmark.counts.get(d), sum(1 for files in tree.files[d].values() if files))
            for d in tree.files
        ),
        classes=len(tree.classes),
        expected_classes=benchmark.n_classes,
        decoded=sum(tree.count(d) for d in tree.files) - len(bad) if decode else 0,
        seconds=time.perf_counter() - started,
        problems=tuple(problems),
        notes=tuple(_notes(benchmark, tree)),
        bad=bad,
    )


def _notes(benchmark: Benchmark, tree: image_folder.Tree) -> Iterator[str]:
    for name in tree.stray:
        yield f"folder {name} is none of the domains and is not read"
    yield from image_folder.others_note(tree)
    for name in tree.classes:
        without = [d for d in tree.files if not tree.files[d].get(name)]
        if without:
            yield f"class {name} has no image in {', '.join(without)}; its label stays its own"
    total = sum(tree.count(d) for d in tree.files)
    if total in benchmark.other_totals and total != benchmark.total:
        yield f"{total:,} images rather than {benchmark.total:,}: a later edition of the dataset, also right"
    if benchmark.excluded is not None and benchmark.total is not None and total > benchmark.total:
        yield "more images than expected: is the list of duplicates beside the domains?"


def _decode(paths: list[Path], progress: Progress | None, workers: int | None) -> tuple[BadImage, ...]:
    """Decode all images with threads (Pillow lets go of the interpreter while it decodes)."""

    def fault(path: Path) -> BadImage | None:
        try:
            read_image(path)
        except DataError as error:
            cause = error.__cause__
            reason = " ".join(str(cause).split()) or type(cause).__name__
            return BadImage(path, reason.replace(str(path), path.name))
        return None

    bad: list[BadImage] = []
    with ThreadPoolExecutor(workers or min(16, available_cores())) as pool:
        for start in range(0, len(paths), 512):  # in slices: half a million futures would only cost memory
            batch = paths[start : start + 512]
            bad += [found for found in pool.map(fault, batch) if found is not None]
            if progress:
                progress("decoding images", start + len(batch), len(paths))
    return tuple(bad)


def _check_idx(
    benchmark: Benchmark,
    path: Path,
    decode: bool,
    progress: Progress | None,
    workers: int | None,
    options: Options,
    started: float,
) -> CheckResult:
    files = _mnist.find(path)
    problems: list[str] = []
    images = 0
    if files is None:
        problems.append(f"the four idx files of MNIST ({', '.join(_mnist.FILES)}) are not in {path}")
    else:
        try:
            arrays = {name: _mnist.read(file) for name, file in files.items()}
            images = sum(len(array) for name, array in arrays.items() if "images" in name)
            labels = sum(len(array) for name, array in arrays.items() if "labels" in name)
            if images != _mnist.TOTAL or labels != _mnist.TOTAL:
                problems.append(f"{images} images and {labels} labels found, expected {_mnist.TOTAL} of both")
        except DataError as error:
            problems.append(str(error))
    return CheckResult(
        name="MNIST",
        path=path,
        domains=(DomainCount("all digits", images, _mnist.TOTAL, 10),),
        classes=10,
        expected_classes=10,
        decoded=images,
        seconds=time.perf_counter() - started,
        problems=tuple(problems),
    )
