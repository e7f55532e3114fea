"""Reading files of ours, atomic writes that follow no link, and locks that are released when their process dies."""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import re
import shutil
import stat
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Self

from swad.util.processes import MARK, has_ended, process_mark

MAX_BYTES = 1 << 31
"""More than settings, records or rows take: the cache's index of a million images has 14 MB."""


def read_bytes(path: str | os.PathLike[str], most: int = MAX_BYTES) -> bytes:
    """Read a file that this package writes; raise `OSError` for anything that would not end or not fit in memory.

    A pipe would wait for a writer, /dev/zero has no end, and a sparse file of any size takes no disk space. What a
    writer adds while the file is read is left out.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "table.txt"
    >>> write_text(path, "68.1")
    >>> read_bytes(path)
    b'68.1'
    >>> read_bytes(path, most=3)
    Traceback (most recent call last):
    OSError: [Errno 27] its 4 bytes are more than the 3 that such a file has: ...
    """
    with open(os.open(path, os.O_RDONLY | _NONBLOCK), "rb") as file:
        return file.read(_regular_size(os.fstat(file.fileno()), path, most))


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file that this package writes; raise `OSError` or `ValueError` if that is not possible."""
    try:
        return json.loads(read_bytes(path).decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None


def require_regular(path: str | os.PathLike[str], most: int | None = None) -> None:
    """Raise `OSError` where `read_bytes` would, before another package opens a file; any size is allowed by default."""
    _regular_size(os.stat(path), path, most)


_NONBLOCK = getattr(os, "O_NONBLOCK", 0)  # not on Windows, which has no pipes with a path of a file


def _regular_size(status: os.stat_result, path: str | os.PathLike[str], most: int | None) -> int:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, f"{Path(path).name} is a pipe or a device, not a file", str(path))
    if most is not None and status.st_size > most:
        raise OSError(
            errno.EFBIG, f"its {status.st_size:,} bytes are more than the {most:,} that such a file has", str(path)
        )
    return status.st_size


_guard: ContextVar[Callable[[], None] | None] = ContextVar("guard", default=None)


@contextmanager
def guard_writes(guard: Callable[[], None]) -> Iterator[None]:
    """Call `guard` in the block before every write of this thread by `atomic_write` or a `JsonlWriter`.

    It raises an error where this process may not write any more, because another one has taken its work over.
    """
    token = _guard.set(guard)
    try:
        yield
    finally:
        _guard.reset(token)


def require_writable() -> None:
    """Call what guards the writes of this thread."""
    if (guard := _guard.get()) is not None:
        guard()


@contextmanager
def atomic_write(path: str | os.PathLike[str], *, follow_link: bool = False) -> Iterator[Path]:
    """Write a temporary file beside `path`, and rename it to `path` when the block succeeds.

    The content is forced to disk before the rename, so a crash leaves the old file or the new one. Missing parent
    directories are created. A device, pipe, socket or directory is refused, because the rename would put a file in its
    place. The file gets the usual mode, also where safetensors would make it private. Errors of the disk are raised as
    `OSError`, also where torch and safetensors wrap them. What earlier writers of `path` left when they were killed is
    removed.

    Args:
        path: The file.
        follow_link: Keep a symbolic link and replace the file that it points to, for a path that the user names. By
            default the link is replaced: in a directory from somebody else it may point anywhere.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "results" / "table.txt"
    >>> with atomic_write(path) as partial:
    ...     _ = partial.write_text("68.1")
    >>> path.read_text()
    '68.1'
    """
    require_writable()
    path = _replaceable(Path(path), follow_link)
    # A directory of its own, so that what other packages write beside their file can be removed with it. The name is
    # unique, so that two writers of one path, be they processes or threads, never mix their contents.
    folder = path.with_name(f"{path.name}.{process_mark()}.partial")
    partial = folder / "content"
    try:
        _create(partial, path)
        mode = partial.stat().st_mode  # as the user's umask allows
        yield partial
        if partial.stat().st_mode != mode:
            partial.chmod(mode)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        require_writable()  # writing may have taken long
        os.replace(partial, path)
    except Exception as error:
        disk = error if isinstance(error, OSError) else _disk_error(error, path)
        if disk is None:
            raise
        if disk.filename is None and disk.errno in _FULL | _BROKEN:  # writing to an open file names none
            disk.filename = str(path)
        raise disk from None
    finally:
        _remove_partial(folder)


_FULL, _BROKEN = {errno.ENOSPC, errno.EDQUOT}, {errno.EIO, errno.EFBIG}


def disk_advice(error: OSError) -> str:
    """Return what a user can do about a path that cannot be written."""
    if error.errno in _FULL:
        return "free disk space, then run the same command again"
    if error.errno == errno.ELOOP:
        return "remove the link, then run the same command again"
    if error.errno is None or error.errno in _BROKEN:
        return "check the disk, then run the same command again"
    return "choose another path, or change its permissions"


def _create(partial: Path, path: Path) -> None:
    """Create the temporary file and its directories; an error names the file that the user asked for."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for leftover in path.parent.glob(f"{glob.escape(path.name)}.*.partial"):
            if has_ended(leftover.name.removeprefix(f"{path.name}.").removesuffix(".partial")):
                _remove_partial(leftover)
        partial.parent.mkdir()
        partial.touch()
    except OSError as error:
        in_file = isinstance(error, FileExistsError | NotADirectoryError)
        raise OSError(error.errno, "a part of the path is a file" if in_file else error.strerror, str(path)) from None


def remove_partial_files(directory: Path) -> None:
    """Remove what `atomic_write` left in a directory when its process was killed; no one may be writing there now."""
    for path in directory.glob("*.partial"):
        if re.search(rf"\.{MARK}\.partial$", path.name):
            _remove_partial(path)


def _remove_partial(path: Path) -> None:
    with suppress(OSError):  # an earlier error counts; a disk that cannot be written says no to this too
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:  # of an earlier version
            path.unlink(missing_ok=True)


def _replaceable(path: Path, follow_link: bool) -> Path:
    """Return the path, or that behind symbolic links; raise `OSError` if it exists and is not a regular file."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        mode = stat.S_IFREG  # a new file, or a parent that the caller's error will name
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "the output must be a regular file or a new one", str(path))
    return Path(os.path.realpath(path)) if follow_link and path.is_symlink() else path


def require_no_link(path: str | os.PathLike[str]) -> None:
    """Raise `OSError` if the last part of a path is a symbolic link, which may point anywhere."""
    if os.path.islink(path):
        name = os.path.basename(path)
        raise OSError(errno.ELOOP, f"{name} is a symbolic link, and no link is followed for writing", os.fspath(path))


def open_without_link(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file for reading and writing, and return its descriptor; a symbolic link in its place is an `OSError`."""
    require_no_link(path)
    return os.open(path, os.O_RDWR | flags | getattr(os, "O_NOFOLLOW", 0), 0o666)  # Windows has no such flag


def is_file_at(fd: int, path: str | os.PathLike[str]) -> bool:
    """Whether the open file is the one at a path: not if it was removed, or replaced by another."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return os.path.samestat(os.fstat(fd), status)


def write_text(path: str | os.PathLike[str], text: str, *, follow_link: bool = False) -> None:
    """Write text atomically; bytes of a file's name that are not UTF-8 are written as Python shows them."""
    with atomic_write(path, follow_link=follow_link) as partial:
        partial.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """Write JSON atomically; values of types that JSON lacks are written as text."""
    write_text(path, json.dumps(content, indent=2, default=str) + "\n")


def sha256(path: str | os.PathLike[str], size: int | None = None) -> str:
    """Return the SHA-256 of a file as hexadecimal digits, or of its first `size` bytes.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "table.txt"
    >>> write_text(path, "68.1")
    >>> sha256(path)[:8], sha256(path, size=2)[:8]
    ('1c6012f9', 'a21855da')
    """
    digest, left = hashlib.sha256(), size
    require_regular(path)
    with open(path, "rb") as file:
        while block := file.read(1 << 20 if left is None else min(1 << 20, left)):
            digest.update(block)
            left = None if left is None else left - len(block)
    return digest.hexdigest()


def _disk_error(error: BaseException, path: Path) -> OSError | None:
    """Return the system's error behind an exception of torch or safetensors, if there is one."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError):
            return cause
        if number := re.search(r"os error (\d+)", str(cause)):  # safetensors
            return OSError(int(number[1]), os.strerror(int(number[1])), str(path))
        cause = cause.__context__
    if "inline_container" in str(error) or "PytorchStreamWriter" in str(error):
        return OSError(errno.EIO, "the file could not be written completely; the disk may be full", str(path))
    return None


class FileLockedError(RuntimeError):
    """Another process holds the lock; `owner` is its process ID as text."""

    def __init__(self, path: Path, owner: str) -> None:
        super().__init__(f"{path} is locked by process {owner}")
        self.path, self.owner = path, owner


class FileLockLostError(RuntimeError):
    """The file of a lock was removed or replaced, so that another process can lock it too."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} was removed or replaced while it was locked")
        self.path = path


class FileLock:
    """An advisory lock on a file, released by the kernel when the process dies.

    It uses `flock`. POSIX record locks would report the owner's process ID themselves, but a process drops them
    whenever it closes *any* descriptor of the file. On systems and network file systems without `flock` it does
    nothing (with a warning where locking fails): refusing to work there would be worse.

    Args:
        path: The lock file; it is created and stays.
        shared: Allow several holders that only read.
        on_wait: Called before waiting for another process. Without it, a held lock raises `FileLockedError`.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, shared: bool = False, on_wait: Callable[[], None] | None = None
    ) -> None:
        self.path = Path(path)
        self._fd: int | None = self._open(shared, on_wait)
        if not is_file_at(self._fd, self.path):  # removed after it was opened and before it was locked
            os.close(self._fd)
            self._fd = self._open(shared, on_wait)
        # Some network file systems number a file anew whenever it is looked up.
        self._has_number = is_file_at(self._fd, self.path)
        _held.add(self)

    def _open(self, shared: bool, on_wait: Callable[[], None] | None) -> int:
        try:
            fd = open_without_link(self.path, os.O_CREAT)
        except OSError:
            if not shared or not self.path.exists():
                raise
            fd = os.open(self.path, os.O_RDONLY)  # another user's file may be readable but not writable
        try:
            require_regular(self.path)
            self._acquire(fd, shared, on_wait)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _acquire(self, fd: int, shared: bool, on_wait: Callable[[], None] | None) -> None:
        try:
            import fcntl
        except ImportError:  # Windows
            return
        mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(fd, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            if on_wait is None and not _retry(fd, mode | fcntl.LOCK_NB):
                owner = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
                raise FileLockedError(self.path, owner) from None
            if on_wait is not None:
                on_wait()
                fcntl.flock(fd, mode)
        except OSError as error:
            warnings.warn(
                f"cannot lock {self.path} ({error.strerror}): make sure only one process writes", stacklevel=5
            )
        if not shared:
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)

    def require_held(self) -> None:
        """Raise `FileLockLostError` if the file was removed or replaced, since the new one can be locked by others."""
        if self._fd is None or (self._has_number and not is_file_at(self._fd, self.path)):
            raise FileLockLostError(self.path)

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _retry(fd: int, mode: int) -> bool:
    """Try a lock again after a moment: `is_locked` may have held it just then."""
    import fcntl

    time.sleep(0.02)
    try:
        fcntl.flock(fd, mode)
    except BlockingIOError:
        return False
    return True


def is_locked(path: str | os.PathLike[str]) -> bool:
    """Whether a process holds a lock file exclusively. Where files cannot be locked: whether it changed just now.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "run.lock"
    >>> with FileLock(path):
    ...     is_locked(path)
    True
    >>> is_locked(path)
    False
    """
    try:
        fd = os.open(path, os.O_RDONLY | _NONBLOCK)
    except OSError:
        return False
    try:
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (ImportError, OSError):  # no locks here: the records next to the lock grow at every evaluation
        newest = max(entry.stat().st_mtime for entry in os.scandir(Path(path).parent))
        return time.time() - newest < GROWING_SECONDS
    finally:
        os.close(fd)
    return False


GROWING_SECONDS = 300.0
"""How long ago a file of a directory in use changed, at most, on file systems without locks."""


# A forked child, such as a data loader's worker, inherits the descriptor and with it the lock. It would hold the lock
# after its parent was killed, and the run could not be resumed until the orphan noticed. So children release it.
_held: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _release_in_child() -> None:
    for lock in _held:
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)
