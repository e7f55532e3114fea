"""A section of the page on measurements of one dataset: curves with their legend, drawings and tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from swad.testbed.results.tables import Table


class LegendEntry(NamedTuple):
    """What a line stands for."""

    name: str
    color: int
    """Number of a series of the page's colors."""
    dashed: bool = False


class Drawing(NamedTuple):
    """A figure that is drawn with its legend."""

    svg: str
    width: float
    """Its width in inches, beyond which its text would grow."""


class Mistake(NamedTuple):
    """A wrong prediction."""

    name: str
    """The image."""
    title: str
    """What was taken for what."""
    text: str
    """The domain, and how probable the prediction was."""
    picture: str
    """The image as a data URL; empty if it was not found."""


@dataclass(frozen=True)
class Section:
    """What the template shows, in this order."""

    id: str
    title: str
    lead: str
    legend: tuple[LegendEntry, ...] = ()
    charts: tuple[dict[str, Any], ...] = ()
    """What the page's script draws."""
    drawings: tuple[Drawing, ...] = ()
    mistakes: tuple[Mistake, ...] = ()
    tables: tuple[Table, ...] = ()
