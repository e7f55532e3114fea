"""What is shown of loss surfaces: a figure and a table of the planes, and of the lines."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from swad.testbed.results.figures.style import FORMATS, save_figures
from swad.testbed.results.figures.surfaces import line_figure, surface_figure
from swad.testbed.results.run_data import RunData
from swad.testbed.results.surfaces import RunSurface, points_table, read_surface
from swad.testbed.results.tables import Table
from swad.util.grouping import group_by

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURES = {"plane": ("surface", surface_figure), "line": ("line", line_figure)}
"""The name of the file and the figure of each shape."""


@dataclass(frozen=True)
class SurfaceReport:
    """What a command prints and draws of surfaces, and what the page shows."""

    surfaces: tuple[RunSurface, ...]

    @property
    def by_shape(self) -> dict[str, list[RunSurface]]:
        """The planes, then the lines."""
        return group_by(
            sorted(self.surfaces, key=lambda surface: surface.shape, reverse=True), lambda surface: surface.shape
        )

    @property
    def tables(self) -> tuple[Table, ...]:
        """A table for each shape."""
        return tuple(map(points_table, self.by_shape.values()))

    def figures(self) -> dict[str, Figure]:
        """Draw a figure for each shape, by the name of its file."""
        return {name: draw(self.by_shape[shape]) for shape, (name, draw) in FIGURES.items() if shape in self.by_shape}

    def write(self, folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
        """Write the figures, and return the files."""
        figures = self.figures() if formats else {}
        return [file for name, figure in figures.items() for file in save_figures(figure, folder / name, formats)]


def report_surfaces(runs: Iterable[RunData], shapes: Collection[str] = ()) -> SurfaceReport | None:
    """Return the plane and the line that each run has measured last, or one of these shapes; None if there is none."""
    shapes = shapes or FIGURES
    found = [surface for run in runs for shape in shapes if (surface := read_surface(run, shape)) is not None]
    return SurfaceReport(tuple(found)) if found else None
