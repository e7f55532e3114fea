"""What a command has measured: tables and notes to print, and the files that it wrote."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from swad.testbed.results.tables import Table


@dataclass(frozen=True)
class Report:
    """The outcome of a measurement of several runs."""

    tables: tuple[Table | str, ...]
    """Tables and the notes below them, in the order to print them in."""
    written: tuple[Path, ...] = ()
    """Figures and other files."""
    row_files: tuple[Path, ...] = ()
    """The files that the measured rows were appended to."""
    notes: tuple[str, ...] = ()
    """What is printed first, such as which runs were skipped."""
