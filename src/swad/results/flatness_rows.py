"""What was measured of a run's weights, in files beside them: `flatness.jsonl` and `surface.jsonl`.

One JSON object a line, appended as it is computed, so that work that was killed goes on. Lines of one setting carry
its `key`; its first line, of kind "settings", says what the key stands for. Raw lines are there to go on with; lines
of kind "row", "difference", "worst_case", "curvature" and "surface-point" are what tables and figures are made of, and
"shown" says which setting was asked for last. Nothing here
imports torch, so a report can read them anywhere.

>>> import tempfile
>>> folder = tempfile.mkdtemp()
>>> with Stored(folder, FLATNESS) as file:
...     key = file.settings({"radii": [1.0], "images": 100})
...     file.append({"key": key, "kind": "row", "weights": "swad", "radius": 1.0, "mean": 0.25})
>>> [(row["weights"], row["mean"]) for row in read(folder, FLATNESS) if row["kind"] == "row"]
[('swad', 0.25)]
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from swad.results.records import FolderLock, RecordError, explain

FLATNESS = "flatness.jsonl"
SURFACE = "surface.jsonl"

SCHEMA = 1
"""Version in every line; grows when an older reader would misread one."""

Row = dict[str, Any]


class Stored:
    """A file of rows in a run folder, held by one process at a time."""

    def __init__(self, folder: str | os.PathLike[str], name: str) -> None:
        self.folder, self.path = Path(folder), Path(folder) / name
        self._lock = FolderLock(folder)
        try:
            self.rows = _whole_lines(self.path, cut=True)
        except BaseException:
            self._lock.close()
            raise

    def settings(self, content: Mapping[str, Any]) -> str:
        """The key of a setting; written down when it is new."""
        text = json.dumps(content, sort_keys=True)
        key = hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
        if not any(row["kind"] == "settings" and row["key"] == key for row in self.rows):
            self.append({"key": key, "kind": "settings", **content})
        return key

    def show(self, key: str, **how: Any) -> None:
        """Note that this setting is the one that was asked for last: the one to be shown, and `how`."""
        shape, asked = _shape(self.rows, key), {"key": key, "kind": "shown", **how}
        known = [row for row in self.rows if row["kind"] == "shown" and _shape(self.rows, row["key"]) == shape]
        if known[-1:] != [asked]:
            self.append(asked)

    def of(self, key: str) -> list[Row]:
        """The rows of one setting, in order."""
        return [row for row in self.rows if row["key"] == key]

    def append(self, *rows: Row) -> None:
        """Write rows together, whole or not at all."""
        lines = [json.dumps({"v": SCHEMA, **row}, allow_nan=False) for row in rows]
        data = "".join(f"{line}\n" for line in lines).encode()
        try:
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                before, done = os.fstat(fd).st_size, 0
                try:
                    while done < len(data):
                        done += os.write(fd, data[done:])
                except OSError:
                    os.ftruncate(fd, before)
                    raise
            finally:
                os.close(fd)
        except OSError as error:
            raise explain(error, self.path) from None
        self.rows += [_parsed(line)[1] for line in lines]  # as they will be read: without tuples

    def rewrite(self, change: Callable[[list[Row]], Iterable[Row]]) -> None:
        """Replace the file by what `change` makes of its rows, in one move."""
        rows = list(change(self.rows))
        partial = self.path.with_name(f"{self.path.name}.partial")
        try:
            partial.write_text("".join(json.dumps({"v": SCHEMA, **row}, allow_nan=False) + "\n" for row in rows))
            os.replace(partial, self.path)
        except OSError as error:
            raise explain(error, self.path) from None
        self.rows = rows

    def close(self) -> None:
        """Let the folder go."""
        self._lock.close()

    def __enter__(self) -> Stored:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read(folder: str | os.PathLike[str], name: str) -> list[Row]:
    """The complete rows of a run folder's file; none where there is no file. Safe while another process writes."""
    return _whole_lines(Path(folder) / name, cut=False)


def last_shown(rows: Iterable[Row], kind: str, shape: str | None = None) -> tuple[Row, list[Row]] | None:
    """The setting with rows of a kind that was asked for last, and those rows; None where there is none.

    `shape` is that of a surface: "plane" or "line".
    """
    kept = list(rows)
    measured = {row["key"] for row in kept if row["kind"] == kind}
    keys = [
        row["key"]
        for row in kept
        if row["kind"] == "shown" and row["key"] in measured and _shape(kept, row["key"]) == shape
    ]
    if not keys:
        return None
    settings = next(row for row in kept if row["kind"] == "settings" and row["key"] == keys[-1])
    return settings, [row for row in kept if row["kind"] == kind and row["key"] == keys[-1]]


def _shape(rows: Iterable[Row], key: str) -> str | None:
    return next((row.get("shape") for row in rows if row["kind"] == "settings" and row["key"] == key), None)


def latest(rows: Iterable[Row], *names: str) -> list[Row]:
    """One row for each combination of the named fields, the last one written, in the order of their first."""
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        found[tuple(row.get(name) for name in names)] = row
    return list(found.values())


def number(value: Any) -> float:
    """A number as it was: what JSON cannot spell is stored as text."""
    return float(value)


def _parsed(line: str | bytes) -> tuple[int, Row]:
    row = json.loads(line)
    version = row.pop("v")
    if not isinstance(version, int) or not isinstance(row["kind"], str) or not isinstance(row["key"], str):
        raise TypeError
    return version, row


def _whole_lines(path: Path, *, cut: bool) -> list[Row]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RecordError(
            f"cannot read {path}: {(error.strerror or str(error)).lower()}; repair or remove it"
        ) from None
    *lines, torn = data.split(b"\n")
    rows = []
    for place, line in enumerate(lines, start=1):
        try:
            version, row = _parsed(line)
        except (ValueError, KeyError, TypeError):
            raise RecordError(f"{path}, line {place} is damaged: remove the file and measure again") from None
        if version > SCHEMA:
            raise RecordError(f"{path} was written by a newer swad (schema {version}): install that one")
        rows.append(row)
    if torn and cut:  # of a process that was killed while it wrote
        try:
            os.truncate(path, len(data) - len(torn))
        except OSError as error:
            raise explain(error, path) from None
    return rows
