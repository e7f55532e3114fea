"""JSON lines in a file that is only appended to: every line is written completely or not at all.

A reader takes the complete lines and ignores a torn last one, so a file can be read while another process writes it.

>>> import tempfile
>>> path = Path(tempfile.mkdtemp()) / "rows.jsonl"
>>> with JsonlWriter(path) as writer:
...     writer.write('{"a": 1}')
...     offset = writer.offset()
...     writer.write('{"a": 2}', '{"a": 3}')
...     writer.truncate(offset)
>>> list(read_lines(path))
[(1, b'{"a": 1}')]
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import math
import os
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from swad.util.files import (
    MAX_BYTES,
    FileLock,
    atomic_write,
    is_file_at,
    open_without_link,
    read_bytes,
    require_regular,
    require_writable,
)


def json_values(value: Any) -> Any:
    """Replace numbers that are not finite, which JSON lacks, by text that `float` reads back.

    >>> json_values({"loss": [0.5, math.inf]})
    {'loss': [0.5, 'inf']}
    """
    if isinstance(value, dict):
        return {key: json_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_values(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


class JsonlWriter:
    """Appends lines to a file; the caller makes sure that there is one writer at a time, e.g. by a lock.

    Each `write` is one system call on a file opened for appending. If it fails half way (a full disk), the part that
    was written is removed before the error is raised. If the process dies half way, the torn line has no newline;
    readers ignore it, and the next writer removes it. Lines are forced to disk by `offset` and `close`, so a crash of
    the machine never loses a line that comes before the offset in a checkpoint.

    An editor, `sed -i` or a tool that copies and renames puts another file at the path, and lines would go into one
    that nobody can read any more; other editors and tools overwrite the file in its place. So the writer keeps the
    lines in memory. Where the path or the size is another before a write, or the content at an offset, the lines are
    put back at the path, and what was there is kept beside it, with a warning.

    Args:
        path: The file. It is created if it does not exist. A symbolic link in its place is an error.
        lock: A lock that is released by `close`. If it was lost, nothing is written: another process may write now.
    """

    def __init__(self, path: str | os.PathLike[str], lock: FileLock | None = None) -> None:
        self.path, self._lock = Path(path), lock
        self.warn: Callable[[str], None] = warnings.warn
        """Called with a warning."""
        self._fd: int | None = None
        try:
            if self.path.exists():
                require_regular(self.path, MAX_BYTES)
            self._fd = open_without_link(self.path, os.O_CREAT | os.O_APPEND)
            self._has_number = is_file_at(self._fd, self.path)  # not on some network file systems
            self._remove_torn_line()
            self._content = bytearray(self._read(self._fd))
        except BaseException:
            self.close()
            raise

    def write(self, *lines: str) -> None:
        """Write the lines together: all of them or, with an error, none."""
        require_writable()
        data = "".join(f"{line}\n" for line in lines).encode()
        fd = self._fd_at_path()
        before, done = len(self._content), 0
        try:
            while done < len(data):  # a nearly full disk accepts part of a write and refuses the rest
                done += os.write(fd, data[done:])
        except OSError as error:
            try:
                os.ftruncate(fd, before)
            except OSError:
                # The torn part stays, and another line would be glued to it: leave it for the next writer to remove.
                self._close_file()
            error.filename = str(self.path)
            raise
        self._content += data

    def offset(self) -> int:
        """Force everything to disk and return the size in bytes, for a checkpoint to store."""
        fd = self._fd_at_path()
        if self._read(fd) != self._content:
            fd = self._put_back(fd)
        os.fsync(fd)
        return len(self._content)

    def lines(self) -> list[bytes]:
        """Return the lines of the file, whatever is at the path."""
        return bytes(self._content).splitlines()

    def sha256(self, size: int) -> str:
        """Return the checksum of the first `size` bytes that were written, whatever is at the path."""
        return hashlib.sha256(self._content[:size]).hexdigest()

    def truncate(self, offset: int) -> None:
        """Remove every line written after `offset` was taken."""
        require_writable()
        fd, size = self._fd_at_path(), len(self._content)
        if offset < 0 or offset > size:
            raise ValueError(f"{self.path} has {size} bytes, cannot cut it back to {offset}")
        if offset and self._content[offset - 1 : offset] != b"\n":
            raise ValueError(f"{self.path} has no line ending at byte {offset}")
        os.ftruncate(fd, offset)
        del self._content[offset:]
        os.fsync(fd)

    def close(self) -> None:
        """Force everything to disk, close the file and release the lock; a second call does nothing."""
        try:
            self._close_file()
        finally:
            if self._lock is not None:
                self._lock.release()

    def _close_file(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        try:
            if error is None and self._fd is not None:
                self.offset()  # what replaced the file after the last line is noticed
        finally:
            self.close()

    def _open_fd(self) -> int:
        if self._fd is None:
            raise ValueError(f"{self.path} was closed: open a new writer")
        return self._fd

    def _fd_at_path(self) -> int:
        """Return the descriptor of the file, after putting the lines back at the path if something else is there."""
        fd = self._open_fd()
        if self._lock is not None:
            self._lock.require_held()
        is_there = not self._has_number or is_file_at(fd, self.path)
        return fd if is_there and os.fstat(fd).st_size == len(self._content) else self._put_back(fd)

    def _put_back(self, fd: int) -> int:
        """Write the lines into a new file at the path, and return its descriptor."""
        aside = self.path.with_name(f"{self.path.name}.replaced")
        kept = False
        with atomic_write(self.path) as partial:
            partial.write_bytes(self._content)
            new_fd = open_without_link(partial, os.O_APPEND)
            with suppress(FileNotFoundError):
                os.replace(self.path, aside)
                kept = True
        os.close(fd)
        self._fd = new_fd
        self.warn(
            f"{self.path} was {'replaced' if kept else 'removed'} while it was being written, so its lines were "
            f"written again{f'; what replaced it is in {aside.name}' if kept else ''}"
        )
        return new_fd

    @staticmethod
    def _read(fd: int) -> bytes:
        with open(fd, "rb", closefd=False) as file:
            file.seek(0)
            return file.read()

    def _remove_torn_line(self) -> None:
        fd = self._open_fd()
        size = end = os.fstat(fd).st_size
        while end > 0:
            start = max(0, end - 65536)
            newline = os.pread(fd, end - start, start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            os.ftruncate(fd, end)


def read_lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, bytes]]:
    """Yield the number and content of every complete line; a torn last line is skipped.

    A file that does not exist may have been compressed: its lines are then those of `stored_path`.
    """
    stored = stored_path(path)
    content = read_bytes(stored)
    if stored != Path(path):
        content = _decompress(content, stored)
    *lines, _torn = content.split(b"\n")
    yield from enumerate(lines, start=1)


def _decompress(content: bytes, stored: Path) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            lines = file.read(MAX_BYTES + 1)
    except (EOFError, OSError, zlib.error):
        raise OSError(errno.EIO, "damaged", str(stored)) from None
    if len(lines) > MAX_BYTES:
        raise OSError(errno.EFBIG, f"more than {MAX_BYTES:,} bytes after it is decompressed", str(stored))
    return lines


def stored_path(path: str | os.PathLike[str]) -> Path:
    """Return the file, or if there is only a compressed one, that; beside the file itself, it is ignored."""
    compressed = f"{os.fspath(path)}.gz"  # as `gzip` names it, which suits results that are kept and not changed
    return Path(compressed if os.path.exists(compressed) and not os.path.exists(path) else path)


def compressed_path(path: str | os.PathLike[str]) -> Path:
    """Return where a file is after `gzip`, which suits results that are kept and not changed."""
    return Path(f"{os.fspath(path)}.gz")
