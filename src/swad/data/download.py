"""Downloading a dataset: fetch the files, verify them, unpack them, and move the result into place in one step.

The work is done in ``<root>/.fetch-<folder>``, so an interrupted download leaves no incomplete dataset, and running it
again resumes it. `gdown` transfers the files, also from Google Drive. Published checksums are verified. Other
checksums are recorded in ``<root>/<folder>.fetched.json`` and compared with those of later downloads.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import os
import shutil
import tarfile
import zipfile
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path

from swad.data.benchmark import Benchmark, Download
from swad.data.benchmarks import get
from swad.data.domains import DataError
from swad.data.verify import CheckResult, check
from swad.util.files import FileLock, FileLockedError, write_json
from swad.util.progress import Progress


@dataclass(frozen=True)
class DownloadedFile:
    """A downloaded file; ``verified`` if its checksum was published."""

    url: str
    filename: str
    size: int
    sha256: str
    verified: bool


@dataclass(frozen=True)
class DownloadResult:
    """A downloaded dataset: its folder, its files, notes on their checksums, and the counts of its images."""

    name: str
    path: Path
    files: tuple[DownloadedFile, ...]
    notes: tuple[str, ...]
    check: CheckResult


def download_dataset(
    name: str | Benchmark, root: Path | str, *, progress: Progress | None = None, retries: int = 4
) -> DownloadResult:
    """Download a dataset into its folder below ``root``, and count its images.

    Args:
        name: Name of the dataset.
        root: Folder for datasets.
        progress: Progress callback for downloading and unpacking.
        retries: How often to resume a broken connection.
    """
    benchmark = get(name) if isinstance(name, str) else name
    root = Path(root)
    if not benchmark.downloads:
        reason = "is part of an installed package" if benchmark.layout == "embedded" else "is read from your own folder"
        raise DataError(f"{benchmark.name} {reason}; there is nothing to download")
    path = root / benchmark.folder
    if path.exists() and any(path.iterdir()):
        raise DataError(
            f"{path} already exists; run `swad datasets check {path}`, or move it away to download it again"
        )
    work = root / f".fetch-{benchmark.folder}"
    try:
        work.mkdir(parents=True, exist_ok=True)
        with FileLock(work / "lock"):
            record = root / f"{benchmark.folder}.fetched.json"
            files = tuple(_download_file(item, work, progress, retries) for item in benchmark.downloads)
            notes = _compare_with_record(record, files)
            dataset = _assemble(benchmark, work, progress)
            write_json(record, {"dataset": benchmark.name, "files": [asdict(file) for file in files]})
            os.replace(dataset, path)
    except FileLockedError as error:
        raise DataError(f"process {error.owner} is already downloading into {work}; wait until it ends") from None
    except OSError as error:
        raise DataError(
            f"cannot write {benchmark.name} to {root} ({error}); free disk space or choose another folder"
        ) from error
    shutil.rmtree(work, ignore_errors=True)
    return DownloadResult(benchmark.name, path, files, notes, check(path, benchmark, decode=False))


def _download_file(item: Download, work: Path, progress: Progress | None, retries: int) -> DownloadedFile:
    path = work / item.filename
    if not path.exists():
        _transfer(item.url, path, progress, retries)
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if item.sha256 is not None and sha256 != item.sha256:
        path.unlink()  # resuming from damaged bytes would never succeed
        raise DataError(f"{item.filename} has sha256 {sha256}, expected {item.sha256}; removed it, download it again")
    return DownloadedFile(item.url, item.filename, path.stat().st_size, sha256, item.sha256 is not None)


def _transfer(url: str, path: Path, progress: Progress | None, retries: int) -> None:
    try:
        import gdown
        import requests
    except ImportError as error:
        raise DataError(f"downloading needs {error.name}: pip install 'swad[vision]'") from None

    def report(done: int, total: int | None) -> None:
        if progress:
            progress(f"downloading {path.name}", done, total)

    try:
        gdown.download(
            url,
            str(path),
            quiet=True,
            use_cookies=False,
            resume=True,
            progress=report,
            timeout=60,
            retries=retries,
        )
    except (gdown.exceptions.DownloadError, requests.RequestException) as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"cannot download {path.name} ({reason}); run the command again to resume, delete {path.parent} to start "
            f"over, or download {url} yourself and save it as {path}"
        ) from error


def _assemble(benchmark: Benchmark, work: Path, progress: Progress | None) -> Path:
    """Unpack all files into one new folder, and return the folder of the dataset in it."""
    unpacked = work / "unpacked"
    shutil.rmtree(unpacked, ignore_errors=True)
    unpacked.mkdir()
    for item in benchmark.downloads:
        file = work / item.filename
        if not item.unpack:
            shutil.copyfile(file, unpacked / item.filename)
            continue
        try:
            unpack(file, unpacked, progress)
        except DataError:
            file.unlink()  # resuming from bytes that do not unpack would never succeed
            raise
    if benchmark.arrange is not None:
        return benchmark.arrange(unpacked)
    dataset = unpacked / benchmark.archive_folder
    if not dataset.is_dir():
        entries = ", ".join(sorted(entry.name for entry in unpacked.iterdir())) or "nothing"
        raise DataError(
            f"the archive of {benchmark.name} must contain {benchmark.archive_folder}, got {entries}; unpack it "
            f"yourself to <root>/{benchmark.folder}/<domain>/<class>/<image>"
        )
    return dataset


def unpack(archive: Path, into: Path, progress: Progress | None = None) -> None:
    """Unpack a zip or tar archive (of any compression); no entry can write outside of ``into``."""
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zip_file:
                entries = zip_file.infolist()
                for done, entry in enumerate(entries, 1):
                    zip_file.extract(entry, into)  # removes absolute paths and ".." and writes links as plain files
                    if progress and (done % 200 == 0 or done == len(entries)):
                        progress(f"unpacking {archive.name}", done, len(entries))
        else:
            with tarfile.open(archive) as tar_file:
                for done, member in enumerate(tar_file, 1):
                    tar_file.extract(member, into, set_attrs=False, filter="data")
                    if progress and done % 200 == 0:
                        progress(f"unpacking {archive.name}", done, None)
    except tarfile.FilterError as error:
        raise DataError(f"{archive.name} has an unsafe entry ({error}); get the archive from another source") from error
    except (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{archive.name} is not a complete archive ({reason}); download it again") from error


def _compare_with_record(record: Path, files: tuple[DownloadedFile, ...]) -> tuple[str, ...]:
    """Return notes on files without a published checksum that are new or differ from an earlier download."""
    try:
        before = {entry["url"]: entry["sha256"] for entry in json.loads(record.read_text("utf-8"))["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        before = {}
    notes = []
    for file in files:
        if file.verified:
            continue
        if file.url not in before:
            notes.append(f"{file.filename}: no checksum is published; recorded it in {record.name}")
        elif before[file.url] != file.sha256:
            notes.append(f"{file.filename}: the checksum differs from the one recorded in {record.name}")
    return tuple(notes)
