"""Where commands print: the terminal, or a wide page in files and pipes."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from swad.util import terminal
from swad.util.grouping import group_by
from swad.util.names import listed
from swad.util.signals import Interrupted

if TYPE_CHECKING:
    from swad.testbed.results.report import Report
    from swad.testbed.results.tables import Table
    from swad.util.progress import Progress

MAX_ROWS = 48
"""Rows of a table with one for each run, and warnings, that are printed."""


def make_console() -> Console:
    """Return the terminal's console; files and pipes have room for any table."""
    console = terminal.make_console()
    return console if console.is_terminal or "COLUMNS" in os.environ else terminal.make_console(width=160)


def plain_table(*columns: str, right: Collection[str] = (), no_wrap: Collection[str] = ()) -> RichTable:
    """Return a table without lines; some columns are aligned to the right, and some are never broken."""
    table = RichTable(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", no_wrap=column in no_wrap)
    return table


def print_table(console: Console, table: Table) -> None:
    """Print a table with its notes, verbatim."""
    console.print(table.rich(console.width), crop=False)
    for note in table.notes:
        console.print(note, style="dim", highlight=False, markup=False)


def print_first_rows(console: Console, table: Table) -> None:
    """Print a table with a row for each run, if it has any; of a long one the first rows."""
    if table.rows:
        print_table(console, replace(table, rows=table.rows[:MAX_ROWS]))
    if table.rows[MAX_ROWS:]:
        left = len(table.rows) - MAX_ROWS
        console.print(f"and {left:,} more rows; the page shows all runs\n", style="dim", highlight=False)


def print_report(report: Report) -> None:
    """Print notes and tables, then the paths of the written files."""
    print_notes(report.notes)
    console = make_console()
    for item in report.tables:
        if isinstance(item, str):
            console.print(item, style="dim", highlight=False, markup=False)
        else:
            print_table(console, item)
    # Paths are printed without line breaks, so that they can be copied.
    if report.row_files:
        print(f"rows in {listed(report.row_files, 1)}", flush=True)
    # A figure is one line: its path, and the suffixes of its other formats.
    for path, formats in group_by(report.written, lambda path: path.with_suffix("")).items():
        print(f"wrote {path}{', '.join(each.suffix for each in formats)}", flush=True)


def print_notes(notes: Sequence[str]) -> None:
    """Print notes such as which runs were skipped."""
    for note in notes:
        make_console().print(f"[yellow]note[/]: {escape(note)}", highlight=False)


@contextmanager
def short_warnings() -> Iterator[None]:
    """Show each warning once and as one line, without the line of code that it came from."""
    shown: set[str] = set()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        if str(message) not in shown:
            shown.add(str(message))
            print(f"warning: {message}", file=sys.stderr, flush=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


@contextmanager
def measuring() -> Iterator[Progress]:
    """Show the progress of a measurement, and short warnings; after Ctrl-C say that it can be resumed."""
    from swad.util.progress import progress_report

    try:
        with short_warnings(), progress_report() as progress:
            yield progress
    except KeyboardInterrupt:
        raise Interrupted(
            "Interrupted. Finished measurements are saved; run the same command again for the rest."
        ) from None
