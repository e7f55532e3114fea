"""The numbers of all tables of the paper, for comparison with ours.

`published.json` holds them as printed: in percent, and with standard errors if the paper has them. Tables are numbered
in the order of the text: 1 to 6 are in the main text, 7 has the search spaces, 8 the flatness-aware solvers, and 9 to
13 the full results per target of PACS, VLCS, OfficeHome, TerraIncognita and DomainNet.

>>> swad = next(row for row in targets("pacs") if row.method == "SWAD")
>>> swad.cells["sketch"], swad.average
(Number(value=82.5, error=0.5), Number(value=88.1, error=None))
>>> table(4).row("CORAL + SWAD")["TerraInc"]
Number(value=51.0, error=0.1)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from swad.util.names import plain

MEAN = "Avg."
"""The column of means over targets or datasets."""


@dataclass(frozen=True)
class Number:
    """A printed number, with the printed standard error or None."""

    value: float
    error: float | None = None
    best: bool = field(default=False, repr=False, compare=False)
    """Whether it is printed in bold."""
    change: str | None = field(default=None, repr=False, compare=False)
    """In Table 3, whether it is marked as different from ERM: "up", "down" or "none"."""


Printed = Number | str | None
"""The content of a cell: a number, a word (in the configurations of Table 5), or None for a dash."""


@dataclass(frozen=True)
class PublishedRow:
    """A row as printed: its name, the method, and a mark († for DomainBed's search, ‡ for the paper's own)."""

    name: str
    method: str
    mark: str
    values: tuple[Printed, ...]


@dataclass(frozen=True)
class PublishedTable:
    """A table of the paper. A column under a common heading is named "heading / column"."""

    number: int
    title: str
    dataset: str | None
    columns: tuple[str, ...]
    keys: tuple[str, ...] = field(repr=False)
    """The columns by our names of the domains and datasets, where the paper abbreviates them."""
    rows: tuple[PublishedRow, ...] = field(repr=False)

    def row(self, name: str, mark: str = "") -> dict[str, Printed]:
        """Return a row as a mapping from column to cell."""
        for row in self.rows:
            if row.name == name and row.mark == mark:
                return dict(zip(self.columns, row.values, strict=True))
        names = ", ".join(row.name + row.mark for row in self.rows)
        raise KeyError(f"Table {self.number} has no row {name + mark!r}: it has {names}")


@dataclass(frozen=True)
class TargetRow:
    """The published accuracy of a method on each target of a dataset, by our names of the domains."""

    method: str
    mark: str
    cells: Mapping[str, Number]
    average: Number | None

    @property
    def name(self) -> str:
        """The method with its mark."""
        return self.method + self.mark


@cache
def _data() -> dict[str, Any]:
    text = files("swad.testbed.results").joinpath("published.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


def _printed(cell: dict[str, Any] | None) -> Printed:
    if cell is None:
        return None
    if "text" in cell:
        return str(cell["text"])
    return Number(cell["value"], cell.get("error"), cell.get("best", False), cell.get("change"))


def _column(column: dict[str, Any]) -> str:
    return f"{column['group']} / {column['name']}" if "group" in column else str(column["name"])


@cache
def tables() -> tuple[PublishedTable, ...]:
    """Return all tables in their order."""
    return tuple(
        PublishedTable(
            number=entry["number"],
            title=entry["title"],
            dataset=entry.get("dataset"),
            columns=tuple(map(_column, entry["columns"])),
            keys=tuple(column.get("domain") or column.get("dataset") or column["name"] for column in entry["columns"]),
            rows=tuple(
                PublishedRow(
                    row["name"],
                    row.get("method", row["name"]),
                    row.get("mark", ""),
                    tuple(map(_printed, row["cells"])),
                )
                for row in entry["rows"]
            ),
        )
        for entry in _data()["tables"]
    )


def table(number: int) -> PublishedTable:
    """Return a table by its number."""
    if not 1 <= number <= len(tables()):
        raise KeyError(f"the paper has tables 1 to {len(tables())}, got {number!r}")
    return tables()[number - 1]


def targets(dataset: str) -> list[TargetRow]:
    """Return the published rows per target of a dataset in any spelling; empty if the paper has none.

    >>> len(targets("office_home")), targets("digits")
    (17, [])
    """
    rows = []
    for entry in tables():
        if entry.dataset is not None and plain(entry.dataset) == plain(dataset):
            for row in entry.rows:
                cells = _numbers(entry, row)
                average = cells.pop(MEAN, None)
                rows.append(TargetRow(row.method, row.mark, cells, average))
    return rows


def averages(dataset: str) -> list[TargetRow]:
    """Return the methods for which the paper prints only the mean over targets (Tables 4 and 8).

    >>> [(row.method, row.average.value) for row in averages("pacs")][:3]
    [('SWA w/ const', 86.9), ('CORAL + SWAD', 88.3), ('SAM', 85.8)]
    """
    known = {row.method for row in targets(dataset)}
    rows: dict[str, TargetRow] = {}
    for entry in (table(4), table(8)):
        for row in entry.rows:
            for key, number in _numbers(entry, row).items():
                if plain(key) == plain(dataset) and row.method not in known:
                    rows.setdefault(row.method, TargetRow(row.method, row.mark, {}, number))
    return list(rows.values())


def _numbers(entry: PublishedTable, row: PublishedRow) -> dict[str, Number]:
    return {key: cell for key, cell in zip(entry.keys, row.values, strict=True) if isinstance(cell, Number)}


def paper() -> dict[str, str]:
    """Return the paper's title, venue and address."""
    return dict(_data()["paper"])
