"""Tables, rows and heat maps of the windows of finished runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from swad.experiments.run_windows import MeasuredWindows
from swad.results.figures.style import save_figures
from swad.results.figures.windows import windows_figure
from swad.results.tables import Table
from swad.results.window_tables import choices_table, compared_windows_csv, windows_csv
from swad.results.windows import by_group
from swad.util.files import write_text
from swad.util.names import file_stem


@dataclass(frozen=True)
class WindowsReport:
    """What is printed, and the files that were written."""

    tables: tuple[Table, ...]
    notes: tuple[str, ...]
    """On runs that are not compared."""
    written: tuple[Path, ...]


def write_windows(measured: MeasuredWindows, folder: Path, formats: Sequence[str] = ("svg",)) -> WindowsReport:
    """Write the windows of all runs and the heat maps, and return the tables.

    Args:
        measured: The accuracies of the windows.
        folder: Directory for the files.
        formats: Formats of the figures: svg, pdf, png.
    """
    tables, written = [], [folder / "windows.csv"]
    groups, notes = by_group(measured.runs)
    write_text(written[0], windows_csv(measured.runs))
    for group in groups:
        name = file_stem(group.runs[0].group)
        compared = {side: group.compare_windows(side) for side in group.sides}
        for side, windows in compared.items():
            tables.append(choices_table(group, side, windows))
            written.append(folder / f"{name}-{side}.csv")
            write_text(written[-1], compared_windows_csv(group, windows))
        figure = windows_figure(group, compared)
        written += save_figures(figure, folder / name, formats)
    return WindowsReport(tuple(tables), tuple(notes), tuple(written))
