"""Records: every measured value of a run is one line of JSON, there whole or not at all.

A run folder holds `config.json`, `records.jsonl`, `weights/` and, once finished, `done.json`. The records
file only ever grows at its end, so it can be read while a run writes: a reader takes the lines that are
complete and leaves the rest. A checkpoint stores `RecordWriter.offset()`, and a resumed run cuts back to it,
so no value is ever counted twice.

Accuracies are fractions between 0 and 1; tables print percent.

>>> import tempfile
>>> folder = tempfile.mkdtemp()
>>> with RecordWriter(folder, run="photo-0") as writer:
...     writer.add(100, "loss", 0.25, domain="sketch", split="out")
...     writer.add(100, "valley_loss", float("inf"))
>>> [record.value for record in read_records(folder)]
[0.25, inf]
"""

from __future__ import annotations

import errno
import json
import math
import os
import warnings
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

SCHEMA = 1
"""Version in every line. It grows when an older reader would misread a line, not when a metric is added."""

FULL = "@full"
"""Ends the name of a valley that was followed by all validation images, beside an average that saw a subsample."""

RECORDS = "records.jsonl"
CONFIG = "config.json"
DONE = "done.json"
LOCK = "run.lock"


class RecordError(RuntimeError):
    """Records that cannot be written or read; its message is one line that says what to do."""


@dataclass(frozen=True, slots=True)
class Record:
    """One measured value.

    `domain` and `split` are None for values of the whole run (a training loss, a timing). `average` is None
    for the live weights and otherwise the name of what was measured: "swad", "ema", "best", ...

    >>> Record("photo-0", 100, "sketch", "out", "accuracy", 0.5).line()
    '{"v":1,"run":"photo-0","step":100,"domain":"sketch","split":"out","metric":"accuracy","value":0.5,"average":null}'
    """

    run: str
    step: int
    domain: str | None
    split: str | None
    metric: str
    value: float
    average: str | None = None

    def line(self) -> str:
        """Return the record as one line of JSON without its newline."""
        value = float(self.value)
        return json.dumps(
            {
                "v": SCHEMA,
                "run": self.run,
                "step": int(self.step),
                "domain": self.domain,
                "split": self.split,
                "metric": self.metric,
                # JSON has no word for these three; as strings every parser can read the line.
                "value": value if math.isfinite(value) else str(value),
                "average": self.average,
            },
            separators=(",", ":"),
            allow_nan=False,
        )

    @classmethod
    def parse(cls, line: str | bytes) -> Record:
        """Read one line; fields that a later version of the same schema adds are passed over."""
        fields = json.loads(line)
        if not isinstance(fields, dict):
            raise ValueError("not a JSON object")
        version = fields.get("v")
        if not isinstance(version, int) or version < 1:
            raise ValueError(f"no schema version, but v={version!r}")
        if version > SCHEMA:
            raise RecordError(f"written with schema {version}, this swad reads up to {SCHEMA}: install a newer swad")
        try:
            return cls(
                run=_text(fields["run"]),
                step=_integer(fields["step"]),
                domain=_optional(fields["domain"]),
                split=_optional(fields["split"]),
                metric=_text(fields["metric"]),
                value=_number(fields["value"]),
                average=_optional(fields["average"]),
            )
        except KeyError as error:
            raise ValueError(f"field {error} is missing") from None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"text expected, got {value!r}")
    return value


def _optional(value: object) -> str | None:
    return None if value is None else _text(value)


def _integer(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"whole number expected, got {value!r}")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not (isinstance(value, (int, float)) or value in ("nan", "inf", "-inf")):
        raise ValueError(f"number expected, got {value!r}")
    return float(value)


# ------------------------------------------------------------ writing


class FolderLock:
    """One writer a run folder: held from construction to `close`, let go by the kernel if the process dies.

    The lock is `flock` on a file of its own, which holds the owner's pid for the error message. POSIX record
    locks would name the pid for us, but are dropped whenever the process closes *any* descriptor of the file,
    as every reader does.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = Path(folder) / LOCK
        self._fd: int | None = None
        fd = _open(self.path, os.O_RDWR | os.O_CREAT)
        try:
            _flock(fd, self.path)
        except BlockingIOError:
            owner = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            raise RecordError(
                f"{self.path.parent} is being written by process {owner}: "
                "wait for it, stop it, or choose another folder"
            ) from None
        try:
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            os.close(fd)
            raise explain(error, self.path) from None
        self._fd = fd
        _locks.add(self)

    def close(self) -> None:
        """Let the folder go; a second call does nothing."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


# A forked child (a data loader's worker) inherits the descriptor and with it the lock, and would go on
# holding it after its parent was killed: the run could not be resumed until the orphan noticed. So they
# let go.
_locks: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _let_go_in_child() -> None:
    for lock in _locks:
        lock.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)


def _flock(fd: int, path: Path) -> None:
    try:
        import fcntl
    except ImportError:  # no such lock on this system; a single user's folder does without
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        # Some network file systems have no locks. Refusing to train there would be worse than going on.
        warnings.warn(f"cannot lock {path} ({error.strerror}): see to it that one run writes there", stacklevel=4)


class RecordWriter:
    """Appends records to `<folder>/records.jsonl`, under the folder's lock.

    Each `append` is one `write` to a file opened for appending. If it fails half way (a full disk), what had
    arrived is taken back before the error is raised; if the process dies half way, the torn line has no
    newline, readers pass over it, and the next writer cuts it off.

    What a crash of the machine may cost: `sync="checkpoint"` (default) forces records to disk in `offset()`
    and `close()`, so those before a stored offset are never lost; `sync="always"` does so at each append.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> writer = RecordWriter(folder, run="demo")
    >>> writer.add(1, "train_loss", 2.0)
    >>> offset = writer.offset()
    >>> writer.add(2, "train_loss", 1.5)
    >>> writer.cut_back(offset)
    >>> writer.close()
    >>> [record.step for record in read_records(folder)]
    [1]
    """

    def __init__(self, folder: str | os.PathLike[str], run: str, *, sync: str = "checkpoint") -> None:
        if sync not in ("checkpoint", "always"):
            raise ValueError(f"sync is 'checkpoint' or 'always', got {sync!r}")
        self.path = Path(folder) / RECORDS
        self.run = run
        self._always = sync == "always"
        self._fd: int | None = None
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise explain(error, Path(folder)) from None
        self._lock = FolderLock(folder)
        try:
            self._fd = _open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            self._cut_torn_line()
        except BaseException:
            self.close()
            raise

    def append(self, *records: Record) -> None:
        """Write the records together: all of them or, with a `RecordError`, none."""
        if not records:
            return
        data = "".join(record.line() + "\n" for record in records).encode()
        fd = self._open_fd()
        before = os.fstat(fd).st_size
        try:
            done = 0
            while done < len(data):  # a nearly full disk takes part of a write and refuses the rest
                done += os.write(fd, data[done:])
            if self._always:
                os.fsync(fd)
        except OSError as error:
            try:
                os.ftruncate(fd, before)
            except OSError:
                # The torn part stays, and a further line would be glued to it: the next writer will cut it.
                self.close()
            raise explain(error, self.path) from None

    def add(
        self,
        step: int,
        metric: str,
        value: float,
        *,
        domain: str | None = None,
        split: str | None = None,
        average: str | None = None,
    ) -> None:
        """Write one value under this run's name."""
        self.append(Record(self.run, step, domain, split, metric, value, average))

    def offset(self) -> int:
        """Force everything to disk and return the size in bytes, for a checkpoint to store."""
        fd = self._open_fd()
        self._sync(fd)
        return os.fstat(fd).st_size

    def cut_back(self, offset: int) -> None:
        """Drop every record written after `offset` was taken."""
        fd = self._open_fd()
        size = os.fstat(fd).st_size
        if offset < 0 or offset > size:
            raise RecordError(
                f"{self.path} has {size} bytes, the checkpoint knows of {offset}: "
                "records were lost or are of another run, so start again in a new folder"
            )
        if offset and os.pread(fd, 1, offset - 1) != b"\n":
            raise RecordError(
                f"{self.path} has no line ending at byte {offset}, where the checkpoint was taken: "
                "the records are of another run, so start again in a new folder"
            )
        os.ftruncate(fd, offset)
        self._sync(fd)

    def close(self) -> None:
        """Force everything to disk and let the folder go; a second call does nothing."""
        fd, self._fd = self._fd, None
        try:
            if fd is not None:
                self._sync(fd)
        finally:
            if fd is not None:
                os.close(fd)
            self._lock.close()

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open_fd(self) -> int:
        if self._fd is None:
            raise RecordError(f"{self.path} was closed: make a new RecordWriter to write on")
        return self._fd

    def _sync(self, fd: int) -> None:
        try:
            os.fsync(fd)
        except OSError as error:
            raise explain(error, self.path) from None

    def _cut_torn_line(self) -> None:
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


def _open(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags, 0o666)
    except OSError as error:
        raise explain(error, path) from None


_REMEDIES = {
    errno.ENOSPC: "make room and resume the run",
    errno.EDQUOT: "make room within your quota and resume the run",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f) and resume the run",
    errno.EROFS: "choose a folder on a disk that can be written",
    errno.EACCES: "choose a folder you may write to",
    errno.ENOENT: "choose a folder that can be made",
    errno.EPERM: "choose a folder you may write to",
    errno.ENOTDIR: "choose a folder whose path holds no plain file",
    errno.EEXIST: "choose a folder, not a file",
}


def explain(error: OSError, path: Path) -> RecordError:
    """Say what the system refused, where, and what to do about it."""
    reason = (error.strerror or str(error)).lower()
    remedy = _REMEDIES.get(error.errno or 0, "see to the disk and resume the run")
    return RecordError(f"cannot write {path}: {reason}; {remedy}")


# ------------------------------------------------------------ reading


def iterate_records(path: str | os.PathLike[str]) -> Iterator[Record]:
    """Yield the complete records of a file, or of a run folder's file, as they are now."""
    path = Path(path)
    if path.is_dir():
        path = path / RECORDS
    try:
        data = path.read_bytes()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise RecordError(f"cannot read {path}: {reason}; give a run folder or its {RECORDS}") from None
    *lines, _torn = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            yield Record.parse(line)
        except RecordError as error:
            raise RecordError(f"{path}, line {number}: {error}") from None
        except ValueError as error:
            raise RecordError(
                f"{path}, line {number} is not a record ({error}): "
                "the file was damaged, so leave the run out or repeat it"
            ) from None


def read_records(path: str | os.PathLike[str]) -> list[Record]:
    """Read all complete records of a file or run folder; safe while a run writes."""
    return list(iterate_records(path))


# ------------------------------------------------------------ TensorBoard


def tensorboard_tag(record: Record) -> str:
    """Name a record's curve: metric first, so that TensorBoard puts the domains of one metric side by side.

    >>> tensorboard_tag(Record("r", 1, "photo", "out", "accuracy", 0.5, "swad"))
    'accuracy/photo/out/swad'
    """
    parts = (record.metric, record.domain, record.split, record.average)
    return "/".join(part for part in parts if part is not None)


def export_tensorboard(records: Iterable[Record], folder: str | os.PathLike[str]) -> int:
    """Write the records as TensorBoard scalars into `folder`, which holds no others, and return how many."""
    try:
        from tensorboard.summary import Writer
    except ImportError:
        raise RecordError("TensorBoard is not installed: pip install tensorboard") from None
    folder = Path(folder)
    if any(folder.glob("events.out.tfevents.*")):
        # TensorBoard draws every event file of a folder into one curve: a second export would zigzag.
        raise RecordError(f"{folder} holds TensorBoard events already: remove them or choose another folder")
    count = 0
    writer = Writer(str(folder))
    for record in records:
        writer.add_scalar(tensorboard_tag(record), record.value, record.step)
        count += 1
    writer.close()
    return count
