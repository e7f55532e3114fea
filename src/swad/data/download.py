"""Getting a dataset: download, check, unpack beside the goal, then move it into place in one step.

Work happens in ``<root>/.fetch-<folder>``, so an interrupted fetch leaves no half dataset behind, and running it
again goes on where it stopped. Checksums that are known are compared; the others are recorded in
``<root>/<folder>.fetched.json``, compared the next time, and said to be unverified.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from swad.data._http import download, sha256
from swad.data._unpack import unpack
from swad.data.benchmark import Benchmark, Download
from swad.data.benchmarks import get
from swad.data.domains import DataError
from swad.data.verify import CheckResult, check, show_check
from swad.util.progress import Progress

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class FetchedFile:
    """One file as it arrived; ``verified`` says that its checksum was known beforehand."""

    url: str
    filename: str
    size: int
    sha256: str
    verified: bool


@dataclass(frozen=True)
class Fetched:
    """What a fetch did: where the dataset lies, what arrived, and what there is to say about it."""

    name: str
    path: Path
    files: tuple[FetchedFile, ...]
    notes: tuple[str, ...]
    check: CheckResult


def fetch(
    name: str | Benchmark,
    root: Path | str,
    *,
    progress: Progress | None = None,
    attempts: int = 5,
    pause: float = 1.0,
) -> Fetched:
    """Download a dataset into its folder below ``root`` and count its images."""
    benchmark = get(name) if isinstance(name, str) else name
    root = Path(root)
    if not benchmark.downloads:
        what = "comes with the package" if benchmark.kind == "embedded" else "is read from a folder of yours"
        raise DataError(f"{benchmark.name} {what}; there is nothing to fetch")
    goal = root / benchmark.folder
    if goal.exists() and any(goal.iterdir()):
        raise DataError(f"{goal} exists already; run `swad datasets check {goal}`, or move it away to fetch it again")
    work = root / f".fetch-{benchmark.folder}"
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot write in {root}: {error.strerror}; choose another folder") from error
    with _alone(work):
        record = root / f"{benchmark.folder}.fetched.json"
        files = tuple(_bring(item, work, progress, attempts, pause) for item in benchmark.downloads)
        notes = _compare(record, files)
        tree = _assemble(benchmark, work, progress)
        text = json.dumps({"dataset": benchmark.name, "files": [asdict(file) for file in files]}, indent=2)
        _write(record, text + "\n")
        os.replace(tree, goal)
    shutil.rmtree(work, ignore_errors=True)
    return Fetched(benchmark.name, goal, files, notes, check(goal, benchmark, decode=False))


def show_fetched(result: Fetched, console: Console | None = None) -> None:
    """Print what arrived, and the count."""
    from rich.console import Console

    console = console or Console()
    for file in result.files:
        how = "as expected" if file.verified else "recorded (no checksum was published)"
        console.print(f"{file.filename}  {file.size:,} bytes  sha256 {file.sha256[:16]}… {how}", soft_wrap=True)
    for note in result.notes:
        console.print(note, style="yellow", soft_wrap=True, markup=False)
    show_check(result.check, console)
    console.print(str(result.path), soft_wrap=True, markup=False)


def _bring(item: Download, work: Path, progress: Progress | None, attempts: int, pause: float) -> FetchedFile:
    file = work / item.filename
    if not file.exists():
        download(item.url, file, progress=progress, attempts=attempts, pause=pause)
    found = sha256(file, progress)
    if item.sha256 is not None and found != item.sha256:
        file.unlink()  # going on from damaged bytes would never end well
        raise DataError(f"{item.filename} has sha256 {found}, expected {item.sha256}; it is removed, fetch it again")
    return FetchedFile(item.url, item.filename, file.stat().st_size, found, item.sha256 is not None)


def _assemble(benchmark: Benchmark, work: Path, progress: Progress | None) -> Path:
    """Unpack everything into one fresh folder and give the folder that is the dataset."""
    unpacked = work / "unpacked"
    shutil.rmtree(unpacked, ignore_errors=True)
    unpacked.mkdir()
    room = benchmark.max_unpacked
    for item in benchmark.downloads:
        file = work / item.filename
        if not item.unpack:
            shutil.copyfile(file, unpacked / item.filename)
            continue
        try:
            room -= unpack(file, unpacked, max_bytes=room, progress=progress)
        except DataError:
            # Bytes that do not unpack are not worth going on from.
            file.unlink()
            shutil.rmtree(unpacked, ignore_errors=True)
            raise
    if benchmark.arrange is not None:
        return benchmark.arrange(unpacked)
    tree = unpacked / benchmark.inner
    if not tree.is_dir():
        inside = ", ".join(sorted(entry.name for entry in unpacked.iterdir())) or "nothing"
        raise DataError(
            f"the archive of {benchmark.name} holds {inside} rather than {benchmark.inner}; "
            f"unpack it by hand to <root>/{benchmark.folder}/<domain>/<class>/<image>"
        )
    return tree


def _compare(record: Path, files: tuple[FetchedFile, ...]) -> tuple[str, ...]:
    """Notes on files without a published checksum: first seen, the same as before, or different."""
    try:
        before = {entry["url"]: entry["sha256"] for entry in json.loads(record.read_text("utf-8"))["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        before = {}
    notes = []
    for file in files:
        if file.verified:
            continue
        if file.url not in before:
            notes.append(
                f"{file.filename}: no checksum is published; the one that arrived is recorded in {record.name}"
            )
        elif before[file.url] != file.sha256:
            notes.append(f"{file.filename}: the checksum differs from the one recorded before in {record.name}")
    return tuple(notes)


def _write(file: Path, text: str) -> None:
    part = file.with_name(file.name + ".part")
    part.write_text(text, "utf-8")
    os.replace(part, file)


@contextmanager
def _alone(work: Path) -> Iterator[None]:
    """Refuse a second fetch into the same folder: two would write the same part."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield
        return
    with (work / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DataError(f"another fetch works in {work}; wait for it to end") from error
        yield
