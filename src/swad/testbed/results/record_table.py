"""The records of a run in columns: fast to read, to search and to store, and still a sequence of records.

A run measures the same few things again and again, so its records form *series*: the steps and values of one metric,
domain, split and average. Selection, tables and curves look up series; iterate to get single records.

>>> table = RecordTable([Record("r", step, "photo", "out", "accuracy", step / 10) for step in (1, 2)])
>>> table.find("accuracy", "out", None)
{'photo': ([1, 2], [0.1, 0.2])}
>>> table[1].value, len(table)
(0.2, 2)
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, overload

from swad.testbed.results.records import MAX_COUNT, RECORDS, SCHEMA, Record, iterate_records
from swad.util.files import read_bytes
from swad.util.statistics import mean


class SeriesKey(NamedTuple):
    """What the records of a series have in common."""

    run: str
    domain: str | None
    split: str | None
    metric: str
    average: str | None


Series = tuple[list[int], list[float]]
"""Steps and values in the order in which they were recorded."""


class RecordTable(Sequence[Record]):
    """The records of a run, as a sequence and as series.

    Args:
        records: The records in their order.
    """

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.series: dict[SeriesKey, Series] = {}
        """Steps and values by what was measured, in the order of first appearance."""
        self.order: Sequence[int] | None = None
        """The index of the series that each record belongs to; None if the records come series by series."""
        self._others: dict[str, RecordTable] = {}
        indices: dict[SeriesKey, int] = {}
        order = []
        for record in records:
            key = SeriesKey(record.run, record.domain, record.split, record.metric, record.average)
            steps, values = self.series.setdefault(key, ([], []))
            steps.append(record.step)
            values.append(record.value)
            order.append(indices.setdefault(key, len(indices)))
        self.order = order or None

    @classmethod
    def from_series(cls, series: dict[SeriesKey, Series], order: Sequence[int] | None = None) -> RecordTable:
        """Make a table of series, with the order of their records."""
        table = cls()
        table.series, table.order = series, order
        return table

    def find(self, metric: str, split: str | None, average: str | None) -> Mapping[str | None, Series]:
        """Return the series of one metric, split and average by domain."""
        return self._by_kind.get((metric, split, average), {})

    @cached_property
    def _by_kind(self) -> dict[tuple[str, str | None, str | None], dict[str | None, Series]]:
        by_kind: dict[tuple[str, str | None, str | None], dict[str | None, Series]] = {}
        for (_, domain, split, metric, average), series in self.series.items():
            by_domain = by_kind.setdefault((metric, split, average), {})
            if domain in by_domain:  # only in files that join the records of two runs
                steps, values = by_domain[domain]
                series = (steps + series[0], values + series[1])
            by_domain[domain] = series
        return by_kind

    @cached_property
    def evaluated_averages(self) -> frozenset[str | None]:
        """The averages with an accuracy; None among them stands for the live weights."""
        return frozenset(key.average for key in self.series if key.metric == "accuracy")

    def of_domain(self, domain: str) -> RecordTable:
        """Return the records of one domain, series by series."""
        return RecordTable.from_series({key: series for key, series in self.series.items() if key.domain == domain})

    def of_other_domains(self, domain: str) -> RecordTable:
        """Return the records of all other domains, series by series, without any reference to this domain's.

        Records without a domain are left out, because any domain may have influenced them.
        """
        if domain not in self._others:
            others = {key: series for key, series in self.series.items() if key.domain not in (None, domain)}
            self._others[domain] = RecordTable.from_series(others)
        return self._others[domain]

    def __len__(self) -> int:
        return sum(len(values) for _, values in self.series.values())

    def __iter__(self) -> Iterator[Record]:
        cursors = [(key, iter(steps), iter(values)) for key, (steps, values) in self.series.items()]
        by_series = (index for index, (_, values) in enumerate(self.series.values()) for _ in values)
        for index in by_series if self.order is None else self.order:
            key, steps, values = cursors[index]
            yield Record(key.run, next(steps), key.domain, key.split, key.metric, next(values), key.average)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Record, ...]: ...
    def __getitem__(self, index: int | slice) -> Record | tuple[Record, ...]:
        return tuple(self)[index]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, RecordTable):
            other = tuple(other)
        return tuple(self) == tuple(other) if isinstance(other, (tuple, list)) else NotImplemented


def mean_by_step(series: Iterable[Series], mean: Callable[[Iterable[float]], float] = mean) -> dict[int, float]:
    """Return the mean of the series of several domains by step, at the steps that all of them have, in order.

    An interrupted run may have recorded some domains of a step. A mean over those would not be comparable.

    >>> mean_by_step([([1, 2], [1e308, 0.5]), ([1], [1e308])])
    {1: 1e+308}
    """
    by_domain = [dict(zip(*each, strict=True)) for each in series]
    steps = set[int]().union(*by_domain).intersection(*by_domain)
    return {step: mean(values[step] for values in by_domain) for step in sorted(steps)}


def read_record_table(directory: str | os.PathLike[str]) -> RecordTable:
    """Read the complete records of a run directory; safe while a run writes.

    All lines are parsed at once, which is several times as fast as one by one. A file with anything unusual is read
    line by line, so that an error names the line.
    """
    path = Path(directory) / RECORDS
    try:
        *lines, _torn = read_bytes(path).split(b"\n")
        table = _parse(lines)
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        table = None
    return RecordTable(iterate_records(path)) if table is None else table


def _parse(lines: Sequence[bytes]) -> RecordTable | None:
    """Parse lines as `Record.parse` does; None if one of them needs its closer look."""
    # A line that is one JSON object each: otherwise joining could turn two damaged lines into a valid one.
    if not all(line[:1] == b"{" and line[-1:] == b"}" for line in lines):
        return None
    rows = json.loads(b"[" + b",".join(lines) + b"]")
    if len(rows) != len(lines):
        return None
    table = RecordTable()
    columns: dict[tuple[object, ...], tuple[int, list[int], list[float]]] = {}
    order: list[int] = []
    for row in rows:
        names = (row["run"], row["domain"], row["split"], row["metric"], row["average"])
        step, value, version = row["step"], row["value"], row["v"]
        if type(value) is str and value in ("nan", "inf", "-inf"):
            value = float(value)
        usual = type(step) is int and 0 <= step < MAX_COUNT and type(value) is float and type(version) is int
        if not usual or version != SCHEMA:
            return None
        column = columns.get(names)
        if column is None:
            texts = [names[0], names[3], *(name for name in (names[1], names[2], names[4]) if name is not None)]
            if not all(isinstance(text, str) for text in texts):
                return None
            "".join(texts).encode()  # JSON can express half of a surrogate pair, which no file or terminal can print
            series: Series = ([], [])
            table.series[SeriesKey(*names)] = series
            column = columns[names] = (len(columns), *series)
        order.append(column[0])
        column[1].append(step)
        column[2].append(value)
    table.order = order
    return table
