"""Rows of measurements, stored in the run directory: `flatness.jsonl`, `surface.jsonl` and others.

Each line is one JSON object, appended as soon as it is computed, so that an interrupted measurement can be resumed. The
rows of one measurement share a `key`, a hash of its settings:

    "settings"         the settings behind the key; the first row of a measurement
    "shown"            this measurement was requested last, so tables and figures show it
    "measured", "row", "error", "worst_case", "curvature", "surface-point"     results for tables and figures

All other rows are raw values for resuming. A line ends with its checksum, so that damage is an error, not another row.

>>> import tempfile
>>> directory = tempfile.mkdtemp()
>>> with RowFile(directory, FLATNESS) as file:
...     key = file.add_settings({"radii": [1.0], "images": 100})
...     file.append({"key": key, "kind": "row", "weights": "swad", "radius": 1.0, "mean": 0.25})
>>> [(row["weights"], row["mean"]) for row in read_rows(directory, FLATNESS) if row["kind"] == "row"]
[('swad', 0.25)]
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from swad.testbed.results.records import RecordError, lock_run_directory
from swad.util.jsonl import JsonlWriter, read_lines, stored_path

FLATNESS = "flatness.jsonl"
ROBUSTNESS = "robustness.jsonl"
SURFACE = "surface.jsonl"
WINDOWS = "windows.jsonl"
TUNE = "tune.jsonl"

SCHEMA = 2
"""Version of a line. It changes when an older reader would misread a line. 2: a line ends with its checksum."""

Row = dict[str, Any]

_FIELDS = {
    "error": {"weights", "fingerprint", "domain", "side", "corruption", "severity", "error"},
    "benchmark": {"weights", "fingerprint", "part", "n"},
}
"""Fields that rows of some kinds must have, besides key and kind."""


class RowFile(JsonlWriter):
    """The rows of one file in a run directory, which is locked until `close`.

    Args:
        directory: The run directory.
        name: The name of the file, such as `FLATNESS`.
    """

    def __init__(self, directory: str | os.PathLike[str], name: str) -> None:
        path = Path(directory) / name
        if (stored := stored_path(path)) != path:
            raise RecordError(f"rows cannot be added to the compressed {stored}: gunzip it first")
        super().__init__(path, lock_run_directory(directory))
        try:
            self.rows = read_rows(directory, name)
        except BaseException:
            self.close()
            raise

    def add_settings(self, settings: Mapping[str, Any]) -> str:
        """Return the key of the settings, and store them if they are new."""
        text = json.dumps(settings, sort_keys=True)
        key = hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
        if not any(row["kind"] == "settings" and row["key"] == key for row in self.rows):
            self.append({"key": key, "kind": "settings", **settings})
        return key

    def mark_shown(self, key: str, **details: Any) -> None:
        """Store that this measurement was requested last, so that tables and figures show it."""
        series, mark = _series(self.rows, key), {"key": key, "kind": "shown", **details}
        earlier = [row for row in self.rows if row["kind"] == "shown" and _series(self.rows, row["key"]) == series]
        if earlier[-1:] != [mark]:
            self.append(mark)

    def rows_of(self, key: str, **values: Any) -> list[Row]:
        """Return the rows of one measurement that have these values, in order."""
        wanted = {"key": key, **values}
        return [row for row in self.rows if wanted.items() <= row.items()]

    def append(self, *rows: Row) -> None:
        """Write the rows together: all of them or, with an error, none."""
        lines = [_line(row) for row in rows]
        self.write(*lines)
        self.rows += [_parse(line.encode())[1] for line in lines]  # as a reader sees them: lists instead of tuples


def read_rows(directory: str | os.PathLike[str], name: str) -> list[Row]:
    """Read the complete rows of a file in a run directory, also after `gzip`; safe while another process writes it.

    A file that does not exist has no rows.
    """
    path = Path(directory) / name
    rows = []
    try:
        for line_number, line in read_lines(path):
            try:
                version, row = _parse(line)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                raise RecordError(
                    f"{stored_path(path)}, line {line_number} is damaged: remove this line, or the file, "
                    "and measure again"
                ) from None
            if version > SCHEMA:
                raise RecordError(f"{stored_path(path)} was written by a newer swad (schema {version}): upgrade swad")
            rows.append(row)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RecordError(f"cannot read {error.filename} ({error.strerror}): remove it and measure again") from None
    return rows


def last_shown(
    rows: Iterable[Row], kind: str, shape: str | None = None, measure: str = "loss"
) -> tuple[Row, list[Row]] | None:
    """Return the settings and the rows of one kind of the measurement that was requested last.

    None if there is no such measurement. `shape` is that of a surface: "plane" or "line". `measure` is that of
    flatness: "loss" or "error".
    """
    rows = list(rows)
    measured = {row["key"] for row in rows if row["kind"] == kind}
    measured &= {row["key"] for row in rows if row["kind"] == "settings"}
    keys = [
        row["key"]
        for row in rows
        if row["kind"] == "shown" and row["key"] in measured and _series(rows, row["key"]) == (shape, measure)
    ]
    if not keys:
        return None
    settings = next(row for row in rows if row["kind"] == "settings" and row["key"] == keys[-1])
    return settings, [row for row in rows if row["kind"] == kind and row["key"] == keys[-1]]


def _series(rows: Iterable[Row], key: str) -> tuple[str | None, str]:
    """Return shape and measure of a setting. The last measurement of each is shown."""
    settings = next((row for row in rows if row["kind"] == "settings" and row["key"] == key), {})
    return settings.get("shape"), settings.get("measure", "loss")


def _line(row: Row) -> str:
    text = json.dumps({"v": SCHEMA, **row}, allow_nan=False)[:-1]
    return f'{text}, "crc32": "{zlib.crc32(text.encode()):08x}"}}'


def _parse(line: bytes) -> tuple[int, Row]:
    row = json.loads(line)
    version, checksum = row.pop("v"), row.pop("crc32", None)
    if type(version) is not int or version < 1:
        raise TypeError
    if not isinstance(row["kind"], str) or not isinstance(row["key"], str):
        raise TypeError
    if version == SCHEMA and zlib.crc32(line[: -len(', "crc32": "01234567"}')]) != int(checksum, 16):
        raise ValueError
    if not _FIELDS.get(row["kind"], set()) <= row.keys():
        raise KeyError
    return version, row
