"""A summary of a directory of runs, so that thousands of finished runs are read at once.

The summary is one file beside the runs. It holds settings and records of finished runs in columns, as they were read
and checked before. It is a cache and nothing else: a run is taken from it only while size, modification time and change
time of its files are those of the reading, a damaged summary counts as missing, and deleting it loses nothing. Writers
replace it atomically, so of several at a time the last one wins.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from array import array
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from swad.testbed.results.record_table import RecordTable, Series, SeriesKey
from swad.testbed.results.records import CONFIG, DONE, RECORDS
from swad.testbed.results.run_data import RunData
from swad.util.files import atomic_write, read_bytes

SUMMARY = ".swad-summary"
MIN_RUNS = 100
"""Fewer finished runs than these are read in a moment and get no summary."""

_HEADER = f"swad summary 1 {sys.byteorder}"
_MAX_SERIES = 2**16

Signature = tuple[int, ...]


def signature(directory: str | os.PathLike[str]) -> Signature | None:
    """Return sizes and times of the files of a finished run; None if one of them is missing.

    The change time cannot be set by a program, so it also reveals a file that was edited and dated back.
    """
    numbers: list[int] = []
    try:
        for name in (DONE, CONFIG, RECORDS):
            status = os.stat(os.path.join(directory, name))
            numbers += (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    except OSError:
        return None
    return tuple(numbers)


# ------------------------------------------------------------ reading


def read_summary(root: Path) -> dict[Path, tuple[Signature, RunData]]:
    """Return the stored runs by their path, with their signatures; none if the summary is missing or damaged."""
    try:
        data = read_bytes(root / SUMMARY)
        header, rest = data[: data.index(b"\n")], memoryview(data)[data.index(b"\n") + 1 :]
        name, checksum, size = header.decode().rsplit(" ", 2)
        if name != _HEADER or zlib.crc32(rest) != int(checksum, 16):
            return {}
        return _parse(root, json.loads(bytes(rest[: int(size)])), rest[int(size) :])
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return {}


def _parse(root: Path, index: Mapping[str, Any], data: memoryview) -> dict[Path, tuple[Signature, RunData]]:
    keys = [SeriesKey(*key) for key in index["keys"]]
    steps: list[list[int]] = index["steps"]
    roles: list[dict[str, str]] = index["roles"]
    runs = {}
    start = 0
    for name, numbers, config, role, warnings, key_ids, step_ids in index["runs"]:
        series: dict[SeriesKey, Series] = {}
        count = sum(len(steps[step_id]) for step_id in step_ids)
        values = array("d", bytes(data[start : start + 8 * count])).tolist()
        order = data[start + 8 * count : start + 10 * count].cast("H")
        start += 10 * count
        first = 0
        for key_id, step_id in zip(key_ids, step_ids, strict=True):
            series_steps = steps[step_id]
            last = first + len(series_steps)
            series[keys[key_id]] = (series_steps, values[first:last])
            first = last
        table = RecordTable.from_series(series, order)
        run = RunData(root / name, config, table, True, roles[role], tuple(warnings))
        runs[run.path] = (tuple(numbers), run)
    return runs


# ------------------------------------------------------------ writing


def write_summary(root: Path, runs: Iterable[tuple[Signature, RunData]]) -> None:
    """Write the summary of `root`. Where that is not possible, such as on a read-only disk, there is none."""
    # Equal keys, steps and roles are stored once, and runs refer to them by their numbers.
    keys: dict[SeriesKey, int] = {}
    steps: dict[tuple[int, ...], int] = {}
    roles: dict[str, int] = {}
    entries, data = [], []
    for numbers, run in runs:
        table = run.table
        if len(table.series) >= _MAX_SERIES:
            continue
        key_ids = [keys.setdefault(key, len(keys)) for key in table.series]
        step_ids = [steps.setdefault(tuple(each), len(steps)) for each, _ in table.series.values()]
        role = roles.setdefault(json.dumps(run.roles), len(roles))
        name = str(run.path.relative_to(root))
        entries.append([name, numbers, run.config, role, run.warnings, key_ids, step_ids])
        data.append(array("d", [value for _, values in table.series.values() for value in values]).tobytes())
        data.append(array("H", table.order or ()).tobytes())
    index = {"keys": list(keys), "steps": list(steps), "roles": [json.loads(r) for r in roles], "runs": entries}
    text = json.dumps(index, separators=(",", ":")).encode()
    body = b"".join([text, *data])
    with suppress(OSError), atomic_write(root / SUMMARY) as partial, partial.open("wb") as file:
        file.write(f"{_HEADER} {zlib.crc32(body):08x} {len(text)}\n".encode())
        file.write(body)
