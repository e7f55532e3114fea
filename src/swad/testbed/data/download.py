"""Downloading a dataset: fetch the files, unpack them, count the images, and move the result into place in one step.

Sources are tried in order, until one has the published numbers of images. One that fails does not stop the others; if
all do, one message has the reason of each.

The work is done in ``<root>/.fetch-<folder>``, so an interrupted download leaves no incomplete dataset, and running it
again resumes it. `pooch` keeps what was fetched and verifies published checksums (of MNIST's files and one list of
DomainNet). Of every other file, the checksum of the first download is kept in ``<root>/<folder>.fetched.json`` and
compared with those of later ones.
"""

from __future__ import annotations

import gzip
import lzma
import os
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from swad.testbed.data import hub, parquet
from swad.testbed.data.benchmark import Benchmark, Download, addresses
from swad.testbed.data.benchmarks import get
from swad.testbed.data.verify import CheckResult, check
from swad.util.files import FileLock, FileLockedError, read_json, write_json
from swad.util.images import DataError
from swad.util.names import listed, one_line
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
    if not benchmark.sources:
        embedded = benchmark.layout == "embedded"
        reason = (
            "it is made by code or part of a package" if embedded else "get its images yourself, and name their folder"
        )
        raise DataError(f"there is nothing to download for {benchmark.name}; {reason}")
    path = root / benchmark.folder
    if path.exists() and any(path.iterdir()):
        raise DataError(
            f"{path} already exists; run `swad datasets check {path}`, or move it away to download it again"
        )
    work = root / f".fetch-{benchmark.folder}"
    try:
        work.mkdir(parents=True, exist_ok=True)
        with FileLock(work / "lock"):
            files, dataset, checked = _first_complete(benchmark, path, work, progress, retries)
            record = root / f"{benchmark.folder}.fetched.json"
            first = _read_record(record)
            notes = _compare_with_record(record, first, files)
            kept = {**{file.url: asdict(file) for file in files}, **first}
            write_json(record, {"dataset": benchmark.name, "files": list(kept.values())})
            os.replace(dataset, path)
    except FileLockedError as error:
        raise DataError(f"process {error.owner} is already downloading into {work}; wait until it ends") from None
    except OSError as error:
        raise DataError(
            f"cannot write {benchmark.name} to {root} ({error}); free disk space or choose another folder"
        ) from error
    shutil.rmtree(work, ignore_errors=True)
    return DownloadResult(benchmark.name, path, files, notes, replace(checked, path=path))


def _first_complete(
    benchmark: Benchmark, path: Path, work: Path, progress: Progress | None, retries: int
) -> tuple[tuple[DownloadedFile, ...], Path, CheckResult]:
    """Return the files of the first source that has the whole dataset, its folder, and the counts of its images."""
    failures, unpacked = [], work / "unpacked"
    for source in benchmark.sources:
        shutil.rmtree(unpacked, ignore_errors=True)
        unpacked.mkdir()
        try:
            if isinstance(source, str):
                files = _unpack_from_hub(source, work, unpacked, progress)
            else:
                files = _unpack_files(source, work, unpacked, progress, retries)
            dataset = _find_dataset(benchmark, unpacked)
            checked = check(dataset, benchmark, decode=False)
            if checked.ok:
                return files, dataset, checked
            failures.append(f"{', '.join(addresses(source))}: {listed(checked.problems)}")
        except DataError as error:
            failures.append(f"{', '.join(addresses(source))}: {error}")
    shutil.rmtree(unpacked, ignore_errors=True)
    raise DataError(
        f"cannot download {benchmark.name}: {'; '.join(failures)}. Run the command again to resume (delete {work} to "
        f"start over); or save one of these files in {work} by hand and run it again; or put the images at "
        f"{path}/<domain>/<class>/<image> and run `swad datasets check {path}`"
    )


def _fetch(item: Download, work: Path, progress: Progress | None, retries: int) -> DownloadedFile:
    """Fetch a file, unless it is there, and verify its checksum, if one is published."""
    try:
        import gdown
        import pooch
        import requests
    except ImportError as error:
        raise DataError(f"downloading needs {error.name}: pip install 'swad[vision]'") from None

    def report(done: int, total: int | None) -> None:
        if progress:
            progress(f"downloading {item.filename}", done, total)

    def transfer(url: str, output: str, _: object) -> None:
        # gdown resumes what it received before, and can read Google Drive; pooch's own downloaders do neither.
        received = work / f"{item.filename}.received"
        gdown.download(
            url, str(received), quiet=True, use_cookies=False, resume=True, progress=report, timeout=60, retries=retries
        )
        os.replace(received, output)

    path = work / item.filename
    pooch.get_logger().setLevel("WARNING")  # the progress says what is downloaded
    try:
        pooch.retrieve(item.url, item.sha256, item.filename, work, downloader=transfer)
    except (gdown.exceptions.DownloadError, requests.RequestException) as error:
        raise DataError(f"cannot fetch {item.filename} ({one_line(error)})") from error
    except ValueError:  # pooch removed it: resuming from damaged bytes would never succeed
        raise DataError(
            f"{item.filename} must have the published checksum, expected {item.sha256}; removed it"
        ) from None
    return DownloadedFile(item.url, item.filename, path.stat().st_size, pooch.file_hash(path), item.sha256 is not None)


def _unpack_files(
    source: Sequence[Download], work: Path, into: Path, progress: Progress | None, retries: int
) -> tuple[DownloadedFile, ...]:
    """Fetch all files, then unpack them."""
    files = tuple(_fetch(item, work, progress, retries) for item in source)
    for item in source:
        file = work / item.filename
        if not item.unpack:
            shutil.copyfile(file, into / item.filename)
            continue
        try:
            unpack(file, into, progress)
        except DataError:
            file.unlink()  # resuming from bytes that do not unpack would never succeed
            raise
    return files


def _unpack_from_hub(address: str, work: Path, into: Path, progress: Progress | None) -> tuple[DownloadedFile, ...]:
    """Fetch the parquet files of a dataset at the Hugging Face Hub, then unpack them."""
    import pooch

    paths = hub.fetch(address, work / "hub")
    parquet.unpack(paths, into, progress=progress)
    names = [path.relative_to(work / "hub").as_posix() for path in paths]
    return tuple(
        DownloadedFile(f"{address}/{name}", name, path.stat().st_size, pooch.file_hash(path), verified=False)
        for name, path in zip(names, paths, strict=True)
    )


def _find_dataset(benchmark: Benchmark, unpacked: Path) -> Path:
    """Return the folder of the dataset among unpacked files: every archive has another one."""
    if benchmark.arrange is not None:
        return benchmark.arrange(unpacked)
    if benchmark.read is not None or not benchmark.domains:
        return unpacked
    for folder in chain([unpacked], *(unpacked.glob("*/" * depth) for depth in (1, 2, 3))):
        if set(benchmark.domains) <= {benchmark.aliases.get(entry.name, entry.name) for entry in folder.iterdir()}:
            return folder
    entries = ", ".join(sorted(entry.name for entry in unpacked.iterdir())) or "nothing"
    raise DataError(f"it must contain the folders {', '.join(benchmark.domains)}, got {entries}")


MAX_MEMBERS = 2_000_000
"""Most files in an archive; the largest archive of DomainNet has 173,000."""
MAX_EXTRA_BYTES = 2**30
"""Bytes that an archive may contain beyond 10 times its size: texts, such as annotations, compress well."""
MAX_HEADER = 2**20
"""Largest extended tar header, in bytes; it holds a long name, and tarfile reads it into memory."""


def unpack(archive: Path, into: Path, progress: Progress | None = None) -> None:
    """Unpack a zip or tar archive (of any compression).

    No entry can write outside of ``into``. An archive of images hardly compresses, so one that declares much more than
    its own size is refused before it fills the disk.
    """
    left = [MAX_MEMBERS, MAX_EXTRA_BYTES + 10 * archive.stat().st_size]

    def count(size: int) -> None:
        left[0] -= 1
        left[1] -= size
        if min(left) < 0:
            raise DataError(
                f"{archive.name} must unpack to at most {MAX_MEMBERS:,} files and {MAX_EXTRA_BYTES / 2**30:g} GiB more "
                f"than 10 times its size, but file {MAX_MEMBERS - left[0]:,} exceeds this; get it from another source"
            )

    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zip_file:
                entries = zip_file.infolist()
                for entry in entries:
                    count(entry.file_size)
                for done, entry in enumerate(entries, 1):
                    zip_file.extract(entry, into)  # removes absolute paths and ".." and writes links as plain files
                    if progress and (done % 200 == 0 or done == len(entries)):
                        progress(f"unpacking {archive.name}", done, len(entries))
        else:
            with tarfile.open(archive, tarinfo=_BoundedTarInfo) as tar_file:
                for done, member in enumerate(tar_file, 1):
                    count(member.size)
                    tar_file.extract(member, into, set_attrs=False, filter="data")
                    if progress and done % 200 == 0:
                        progress(f"unpacking {archive.name}", done, None)
    except (tarfile.FilterError, _HeaderError) as error:
        raise DataError(f"{archive.name} has an unsafe entry ({error}); get the archive from another source") from error
    except (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError) as error:
        raise DataError(f"{archive.name} is not a complete archive ({one_line(error)}); download it again") from error


class _HeaderError(Exception):
    """An entry of a tar archive has a header that is never needed and could fill the memory."""


class _BoundedTarInfo(tarfile.TarInfo):
    """A tar header that refuses to be large. tarfile would read any size into memory."""

    # Both methods are private, but the public ones are not called by every version of Python that tarfile comes with.
    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo | None:
        """Check the header before its extension is read."""
        extended = self.type in (*_EXTENDED_HEADERS, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
        if extended and self.size > MAX_HEADER:
            raise _HeaderError(f"a header of {self.size:,} bytes")
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise _HeaderError("a sparse file")
        member: tarfile.TarInfo | None = super()._proc_member(archive)  # type: ignore[misc]
        return member

    def _proc_gnusparse_10(self, *args: object) -> None:
        raise _HeaderError("a sparse file")


_EXTENDED_HEADERS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)


def _read_record(record: Path) -> dict[str, dict[str, Any]]:
    """Return what is recorded of the first download of each file, by its address."""
    try:
        entries = read_json(record)["files"]
        return {entry["url"]: entry for entry in entries if entry["sha256"]}
    except (OSError, ValueError, LookupError, TypeError):
        return {}


def _compare_with_record(
    record: Path, first: Mapping[str, Mapping[str, Any]], files: tuple[DownloadedFile, ...]
) -> tuple[str, ...]:
    """Return notes on files without a published checksum that are new or differ from the first download."""
    notes = []
    for file in files:
        if file.verified:
            continue
        if file.url not in first:
            notes.append(f"{file.filename}: no checksum is published; recorded it in {record.name}{_unencrypted(file)}")
        elif first[file.url]["sha256"] != file.sha256:
            notes.append(
                f"{file.filename}: the checksum differs from that of the first download, the one recorded in "
                f"{record.name}; if it is right, remove that file"
            )
    return tuple(notes)


def _unencrypted(file: DownloadedFile) -> str:
    if not file.url.startswith("http:"):
        return ""
    return (
        "; it came over http, which does not protect it from changes on the way: compare its sha256 "
        f"{file.sha256} with that of another copy"
    )
