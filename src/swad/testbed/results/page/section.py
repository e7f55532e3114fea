"""A section of the page: figures with their legends, and tables with their notes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from swad.testbed.results.tables import Table

PANEL = (4.4, 2.45)
"""Width and height of a figure in inches; the page scales it."""


class Plot(NamedTuple):
    """One figure with its title."""

    title: str
    svg: str


class LegendEntry(NamedTuple):
    """What a line or a symbol stands for."""

    name: str
    color: int
    """Number of a series of the page's colors; 0 is the color of text."""
    dashed: bool = False
    symbol: str = ""
    """A character, for entries that are not lines."""


class Figures(NamedTuple):
    """Figures that share a title and a legend."""

    title: str
    legend: tuple[LegendEntry, ...]
    plots: tuple[Plot, ...] = ()
    charts: tuple[dict[str, Any], ...] = ()
    """What the page's script draws."""
    id: str = ""
    """Where it draws them."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Section:
    """What the template shows, in this order."""

    id: str
    title: str
    lead: str
    figures: tuple[Figures, ...] = ()
    tables: tuple[Table, ...] = ()
