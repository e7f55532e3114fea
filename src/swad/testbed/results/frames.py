"""Records as a data frame, read and checked by msgspec.

    run      number of the run in its list
    step     number of updates before the value was measured
    domain, split, metric       as in `records.jsonl`; domain and split are missing for values of a whole run
    weights  what was evaluated: "live" at that step, "best", "last", or the name of an average
    value    accuracies are fractions

The columns of texts are categories, so that millions of records stay small and are filtered by comparing numbers.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
import pandas as pd

from swad.testbed.results.records import LIVE, MAX_COUNT, RECORDS, SCHEMA, Record, RecordError, iterate_records
from swad.util.files import read_bytes

COLUMNS = ("run", "step", "domain", "split", "metric", "weights", "value")
TEXTS = ("domain", "split", "metric", "weights")


class Line(msgspec.Struct, gc=False):
    """One line of `records.jsonl`."""

    v: Literal[SCHEMA]  # type: ignore[valid-type]
    run: str
    step: Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT - 1)]
    domain: str | None
    split: str | None
    metric: str
    value: float | Literal["nan", "inf", "-inf"]
    average: str | None


_LINES = msgspec.json.Decoder(Line)
_STEP, _VALUE = attrgetter("step"), attrgetter("value")


def read_records_file(directory: Path) -> bytes:
    """Read the file of a run's records; safe while a run writes."""
    path = os.path.join(directory, RECORDS)
    try:
        return read_bytes(path)
    except OSError as error:
        raise RecordError(f"cannot read {path} ({error.strerror}): give a run directory or its {RECORDS}") from None


def decode_records(directory: Path, data: bytes) -> Sequence[Line | Record]:
    """Decode the complete records of a run directory.

    All lines are decoded at once. A file with anything unusual is read line by line, so that an error names the line.
    """
    data = data[: data.rfind(b"\n") + 1]  # without a torn last line
    try:
        lines = _LINES.decode_lines(data)
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return list(iterate_records(directory))
    # A line holds one record: two lines that are damaged must not make up for each other.
    return lines if len(lines) == data.count(b"\n") else list(iterate_records(directory))


class _Codes(dict[tuple[str | None, ...], int]):
    """Numbers things in the order in which they are first asked for."""

    def __missing__(self, key: tuple[str | None, ...]) -> int:
        self[key] = code = len(self)
        return code


class RecordColumns:
    """Collects the records of run after run in columns."""

    def __init__(self) -> None:
        self._series = _Codes()  # of domain, split, metric and weights, which repeat from step to step
        self._steps, self._codes, self._values = ([np.array([], kind)] for kind in (np.int64, np.int32, np.float64))
        self._ends = [0]

    def add(self, records: Sequence[Line | Record]) -> int:
        """Add the records of the next run, and return its number."""
        series = self._series
        codes = [series[each.domain, each.split, each.metric, each.average] for each in records]
        self._codes.append(np.array(codes, np.int32))
        self._steps.append(np.fromiter(map(_STEP, records), np.int64, len(records)))
        self._values.append(np.fromiter(map(_VALUE, records), np.float64, len(records)))
        self._ends.append(self._ends[-1] + len(records))
        return len(self._ends) - 2

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The records of all runs."""
        sizes = np.diff(self._ends)
        frame = pd.DataFrame(
            {"run": np.repeat(np.arange(len(sizes), dtype=np.int32), sizes), "step": np.concatenate(self._steps)}
        )
        codes = np.concatenate(self._codes)
        for place, name in enumerate(TEXTS):
            texts = [LIVE if name == "weights" and key[place] is None else key[place] for key in self._series]
            names = list(dict.fromkeys(text for text in texts if text is not None))
            number: dict[str | None, int] = {None: -1, **{text: place for place, text in enumerate(names)}}
            of_series = np.array([number[text] for text in texts], np.int32)
            frame[name] = pd.Categorical.from_codes(of_series[codes], pd.Index(names, dtype=object))
        return frame.assign(value=np.concatenate(self._values))

    def of_run(self, number: int) -> pd.DataFrame:
        """Return the records of one run."""
        return self.frame.iloc[self._ends[number] : self._ends[number + 1]]


def records_frame(records: Sequence[Line | Record] = ()) -> pd.DataFrame:
    """Return the records of one run as a data frame.

    >>> records_frame([Record("photo-0", 100, "sketch", "out", "accuracy", 0.5)]).to_dict("records")
    [{'run': 0, 'step': 100, 'domain': 'sketch', 'split': 'out', 'metric': 'accuracy', 'weights': 'live', 'value': 0.5}]
    """
    columns = RecordColumns()
    columns.add(records)
    return columns.frame


def distinct(rows: pd.DataFrame, name: str) -> list[tuple[int, str]]:
    """Return the different pairs of a run and a text, such as its domains, in the order of the records.

    >>> distinct(records_frame([Record("r", step, "sketch", "out", "loss", 0.5) for step in (1, 2)]), "domain")
    [(0, 'sketch')]
    """
    names, codes = rows[name].cat.categories.tolist(), rows[name].cat.codes.to_numpy()
    known = codes >= 0
    keys = pd.unique(rows.run.to_numpy(np.int64)[known] * max(len(names), 1) + codes[known]).tolist()
    return [(key // len(names), names[key % len(names)]) for key in keys]


def repeats(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the records whose value was recorded before, for the same step."""
    # One number for each key. Where it exceeds 64 bits, others may have the same, and are separated below.
    number = rows.run.to_numpy(np.uint64)
    for column in (rows.step, *(rows[name].cat.codes + 1 for name in TEXTS)):
        size = int(column.max()) + 1 if len(column) else 1
        number = number * np.uint64(size) + column.to_numpy(np.uint64)
    ordered = np.sort(number)  # far faster than hashing
    suspects = rows[np.isin(number, ordered[1:][ordered[1:] == ordered[:-1]])]
    return suspects[suspects.duplicated([name for name in COLUMNS if name != "value"]).to_numpy()]


def join_frames(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the records of several runs, each with a frame of its own, as one frame."""
    if not frames:
        return records_frame()
    joined = pd.concat([frame.assign(run=np.int32(number)) for number, frame in enumerate(frames)], ignore_index=True)
    return joined.astype(dict.fromkeys(TEXTS, "category"))
