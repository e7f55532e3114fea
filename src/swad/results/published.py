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
    label: str
    title: str
    caption: str
    dataset: str | None
    columns: tuple[str, ...]
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
    table: int

    @property
    def name(self) -> str:
        """The method with its mark."""
        return self.method + self.mark


@cache
def _data() -> dict[str, Any]:
    text = files("swad.results").joinpath("published.json").read_text(encoding="utf-8")
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
            label=entry["label"],
            title=entry["title"],
            caption=entry["caption"],
            dataset=entry.get("dataset"),
            columns=tuple(map(_column, entry["columns"])),
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


def table(number_or_label: int | str) -> PublishedTable:
    """Return a table by number or by its label in the paper's source."""
    for entry in tables():
        if number_or_label in (entry.number, entry.label, entry.label.removeprefix("table:")):
            return entry
    raise KeyError(f"the paper has tables 1 to {len(tables())}, got {number_or_label!r}")


def misprints() -> list[dict[str, Any]]:
    """Return the places where the paper's tables are inconsistent. The numbers are kept as printed."""
    return list(_data()["misprints"])


def _letters(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def targets(dataset: str) -> list[TargetRow]:
    """Return the published rows per target of a dataset in any spelling; empty if the paper has none.

    >>> len(targets("office_home")), targets("digits")
    (17, [])
    """
    for entry in _data()["tables"]:
        if "dataset" not in entry or _letters(entry["dataset"]) != _letters(dataset):
            continue
        rows = []
        for row in entry["rows"]:
            cells = {}
            average = None
            for column, cell in zip(entry["columns"], row["cells"], strict=True):
                number = _printed(cell)
                if not isinstance(number, Number):
                    continue
                if column.get("mean"):
                    average = number
                else:
                    cells[column["domain"]] = number
            method = row.get("method", row["name"])
            rows.append(TargetRow(method, row.get("mark", ""), cells, average, entry["number"]))
        return rows
    return []


def averages(dataset: str) -> list[TargetRow]:
    """Return the methods for which the paper prints only the mean over targets (Tables 4 and 8).

    >>> [(row.method, row.average.value) for row in averages("pacs")][:3]
    [('SWA w/ const', 86.9), ('CORAL + SWAD', 88.3), ('SAM', 85.8)]
    """
    known = {row.method for row in targets(dataset)}
    rows: dict[str, TargetRow] = {}
    for entry in (_data()["tables"][number - 1] for number in (4, 8)):
        for row in entry["rows"]:
            method = row.get("method", row["name"])
            for column, cell in zip(entry["columns"], row["cells"], strict=True):
                number = _printed(cell)
                if _letters(column.get("dataset", "")) == _letters(dataset) and isinstance(number, Number):
                    rows.setdefault(method, TargetRow(method, row.get("mark", ""), {}, number, entry["number"]))
    return [row for row in rows.values() if row.method not in known]


def datasets() -> list[str]:
    """Return the names of the datasets with published rows per target."""
    return [entry["dataset"] for entry in _data()["tables"] if "dataset" in entry]


def paper() -> dict[str, str]:
    """Return the paper's title, venue and address."""
    return dict(_data()["paper"])
