"""Records: every measured value of a run is one line of JSON.

A run directory holds `config.json`, `records.jsonl`, `weights/` and, after the last step, `done.json`. Records are
only ever appended, so they can be read while the run writes them. A checkpoint stores `RecordWriter.offset()`, and a
resumed run removes the records behind it, so no value is counted twice.

Accuracies are fractions between 0 and 1. Tables print percent.

>>> import tempfile
>>> directory = tempfile.mkdtemp()
>>> with RecordWriter(directory) as writer:
...     writer.append(Record("photo-0", 100, "sketch", "out", "loss", 0.25))
...     writer.append(Record("photo-0", 100, None, None, "valley_loss", float("inf")))
>>> [record.value for record in read_records(directory)]
[0.25, inf]
"""

from __future__ import annotations

import json
import math
import os
import reprlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from swad.util.files import FileLock, FileLockedError, FileLockLostError
from swad.util.jsonl import JsonlWriter, read_lines

SCHEMA = 1
"""Version of a record's line. It changes when an older reader would misread a line, not when a metric is added."""

MAX_COUNT = 2**63
"""Steps and trials are below it: data frames hold them in 64 bits."""

RECORDS = "records.jsonl"
CONFIG = "config.json"
DONE = "done.json"
LOCK = "run.lock"

LIVE = "live"
"""The weights that the optimizer updates, at the step of a record; the field `average` of a line is null then."""


class RecordError(RuntimeError):
    """The records of a run cannot be written or read. The message is one line that says what to do."""


class DirectoryLockedError(RecordError):
    """Another process writes the run directory."""


@dataclass(frozen=True, slots=True)
class Record:
    """One measured value.

    `domain` and `split` are None for values of the whole run, such as a training loss or a timing. `average` names the
    weights that were evaluated ("swad", "ema", "best", ...); it is None for the live weights at that step.

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
                # JSON cannot express nan, inf and -inf as numbers. As strings, every parser reads them.
                "value": value if math.isfinite(value) else str(value),
                "average": self.average,
            },
            separators=(",", ":"),
            allow_nan=False,
        )

    @classmethod
    def parse(cls, line: str | bytes) -> Record:
        """Parse one line; unknown fields, which a later version may add, are ignored."""
        try:
            fields = json.loads(line)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        if not isinstance(fields, dict):
            raise ValueError("not a JSON object")
        version = fields.get("v")
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise ValueError(f"schema version expected, got v={reprlib.repr(version)}")
        if version > SCHEMA:
            raise RecordError(
                f"schema {reprlib.repr(version)} is newer than this swad, which reads up to {SCHEMA}: upgrade swad"
            )
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
        raise ValueError(f"text expected, got {reprlib.repr(value)}")
    value.encode()  # JSON can express half of a surrogate pair, which no file or terminal can print
    return value


def _optional(value: object) -> str | None:
    return None if value is None else _text(value)


def _integer(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < MAX_COUNT:
        raise ValueError(f"whole number expected, got {reprlib.repr(value)}")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not (
        isinstance(value, (int, float)) or (isinstance(value, str) and value in ("nan", "inf", "-inf"))
    ):
        raise ValueError(f"number expected, got {reprlib.repr(value)}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"number expected, got {reprlib.repr(value)}, which is too large") from None


# ------------------------------------------------------------ writing


class _RunLock(FileLock):
    """The lock of a run directory."""

    def require_held(self) -> None:
        """Raise `RecordError` if another process can lock the directory too."""
        try:
            super().require_held()
        except FileLockLostError:
            raise RecordError(
                f"{self.path} was removed or replaced, so that another process can write this run too: this one stops; "
                "run the same command again to resume, and leave the file in its place"
            ) from None


def lock_run_directory(directory: str | os.PathLike[str]) -> FileLock:
    """Lock a run directory, so that one process at a time writes its records and measurements."""
    try:
        return _RunLock(Path(directory) / LOCK)
    except FileLockedError as error:
        raise DirectoryLockedError(
            f"{directory} is being written by process {error.owner}: "
            "wait for it to finish, stop it, or choose another directory"
        ) from None


class RecordWriter(JsonlWriter):
    """Appends records to `records.jsonl` in a run directory, which it locks until `close`.

    Errors of the disk are raised as `OSError`.

    Args:
        directory: The run directory. It is created if it does not exist.

    >>> import tempfile
    >>> directory = tempfile.mkdtemp()
    >>> writer = RecordWriter(directory)
    >>> writer.append(Record("demo", 1, None, None, "train_loss", 2.0))
    >>> offset = writer.offset()
    >>> writer.append(Record("demo", 2, None, None, "train_loss", 1.5))
    >>> writer.truncate(offset)
    >>> writer.close()
    >>> [record.step for record in read_records(directory)]
    [1]
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        Path(directory).mkdir(parents=True, exist_ok=True)
        super().__init__(Path(directory) / RECORDS, lock_run_directory(directory))

    def append(self, *records: Record) -> None:
        """Write the records together: all of them or, with an error, none."""
        self.write(*(record.line() for record in records))

    def records(self) -> list[Record]:
        """Return the records of the file, whatever is at the path."""
        return [Record.parse(line) for line in self.lines()]

    def truncate(self, offset: int) -> None:
        """Remove every record written after `offset` was taken."""
        try:
            super().truncate(offset)
        except ValueError as error:
            raise RecordError(
                f"the records do not match the checkpoint ({error}): "
                "they were damaged or belong to another run, so start again in a new directory"
            ) from None


# ------------------------------------------------------------ reading


def iterate_records(path: str | os.PathLike[str]) -> Iterator[Record]:
    """Yield the complete records of a run directory, or of a records file; safe while a run writes."""
    path = Path(path)
    if path.is_dir():
        path = path / RECORDS
    try:
        for number, line in read_lines(path):
            try:
                yield Record.parse(line)
            except RecordError as error:
                raise RecordError(f"{path}, line {number}: {error}") from None
            except ValueError as error:
                raise RecordError(
                    f"{path}, line {number} is not a record ({error}): "
                    "the file is damaged, so remove this run or repeat it"
                ) from None
    except OSError as error:
        raise RecordError(f"cannot read {path} ({error.strerror}): give a run directory or its {RECORDS}") from None


def read_records(path: str | os.PathLike[str]) -> list[Record]:
    """Read all complete records of a run directory, or of a records file; safe while a run writes."""
    return list(iterate_records(path))
