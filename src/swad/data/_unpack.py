"""Unpacking an archive that nobody vouches for: files and folders below one folder, and nothing else.

An archive with an absolute path, a ``..``, a link or a device is refused whole, since an honest set of images has
none; so is one that grows beyond the stated size.
"""

from __future__ import annotations

import lzma
import stat
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath, PureWindowsPath

from swad.data.domains import DataError
from swad.util.progress import Progress

CHUNK = 2**20
MAX_ENTRIES = 2_000_000


def unpack(archive: Path, into: Path, *, max_bytes: int, progress: Progress | None = None) -> int:
    """Unpack a zip or tar (of any compression) into a folder; returns the bytes written."""
    into.mkdir(parents=True, exist_ok=True)
    with archive.open("rb") as stream:
        zipped = stream.read(4) == b"PK\x03\x04"
    try:
        return (_unzip if zipped else _untar)(archive, into, max_bytes, progress)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, RuntimeError) as error:
        reason = str(error) or type(error).__name__
        raise DataError(f"{archive.name} is not a whole archive ({reason}); fetch it again") from error
    except FileExistsError as error:
        raise _refused(archive, Path(error.filename).name, "occurs twice") from error
    except OSError as error:
        if error.errno is not None:
            raise
        # gzip and bz2 report damage as an OSError without a number.
        raise DataError(f"{archive.name} is not a whole archive ({error}); fetch it again") from error


def _unzip(archive: Path, into: Path, max_bytes: int, progress: Progress | None) -> int:
    written = 0
    with zipfile.ZipFile(archive) as source:
        entries = source.infolist()
        for done, entry in enumerate(entries, 1):
            kind = stat.S_IFMT(entry.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _refused(archive, entry.filename, "is a link or a device")
            path = into / _safe(archive, entry.filename, done)
            if entry.is_dir():
                path.mkdir(parents=True, exist_ok=True)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            # Counted as it comes out: the size an entry declares may be a lie.
            with source.open(entry) as inside, path.open("xb") as out:
                while chunk := inside.read(CHUNK):
                    written = _within(archive, written + len(chunk), max_bytes)
                    out.write(chunk)
            if progress and (done % 200 == 0 or done == len(entries)):
                progress(f"unpacking {archive.name}", done, len(entries))
    return written


def _untar(archive: Path, into: Path, max_bytes: int, progress: Progress | None) -> int:
    written = 0
    with tarfile.open(archive, "r:*") as source:
        for done, entry in enumerate(source, 1):
            if not (entry.isreg() or entry.isdir()):
                raise _refused(archive, entry.name, "is a link or a device")
            _safe(archive, entry.name, done)
            written = _within(archive, written + entry.size, max_bytes)
            source.extract(entry, into, set_attrs=False, filter="data")
            if progress and done % 200 == 0:
                progress(f"unpacking {archive.name}", done, None)
    return written


def _safe(archive: Path, name: str, entries: int) -> PurePosixPath:
    posix, windows = PurePosixPath(name), PureWindowsPath(name)
    if posix.is_absolute() or windows.drive or windows.root or ".." in {*posix.parts, *windows.parts} or "\0" in name:
        raise _refused(archive, name, "leads out of its folder")
    if entries > MAX_ENTRIES:
        raise _refused(archive, name, f"is one of more than {MAX_ENTRIES:,} entries")
    return posix


def _within(archive: Path, size: int, most: int) -> int:
    if size > most:
        raise DataError(
            f"{archive.name} unpacks to more than {most:,} bytes; refused, since no such dataset is so large"
        )
    return size


def _refused(archive: Path, name: str, why: str) -> DataError:
    return DataError(f"{archive.name} is refused: its entry {name!r} {why}; get the archive from another source")
