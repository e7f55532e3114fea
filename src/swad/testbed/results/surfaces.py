"""Loss surfaces of runs, read from their `surface.jsonl`: planes through three weights and lines between two."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from swad.testbed.results.labels import run_titles, weights_label
from swad.testbed.results.measured import SIDES
from swad.testbed.results.measurement_rows import SURFACE, Row, last_shown, read_rows
from swad.testbed.results.run_data import RunData
from swad.testbed.results.tables import Cell, Table
from swad.testbed.results.tables import Row as TableRow
from swad.testbed.results.training_curves import valleys
from swad.util.grouping import group_by
from swad.util.statistics import mean

CORNERS = ("1", "2", "3")
"""Names of the corner points in the file."""
MEAN = "mean"
"""Name of the point that is the mean of the corners."""


@dataclass(frozen=True)
class RunSurface:
    """A complete plane or line of one run."""

    run: RunData
    settings: Row
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    grids: Mapping[str, tuple[tuple[float, ...], ...]]
    """Losses by "seen" and, where there is a target, "unseen", one row for each y."""
    points: Mapping[str, tuple[float, float, float]]
    """x, y and the distance from the plane, by name."""
    losses: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Losses at the points, by name and side."""

    @property
    def shape(self) -> str:
        """ "plane" or "line"."""
        return str(self.settings["shape"])

    @property
    def corners(self) -> dict[str, tuple[float, float]]:
        """The weights that span the plane or line."""
        return {
            weights: self.points[corner][:2] for weights, corner in zip(self.settings["corners"], CORNERS, strict=False)
        }

    @property
    def positions(self) -> dict[str, tuple[float, float]]:
        """x and y of all weights by name: those projected onto the plane or line, and those that span it."""
        return {name: point[:2] for name, point in self.projected.items()} | self.corners

    @property
    def mean(self) -> tuple[float, float]:
        """The mean of the corners."""
        return self.points[MEAN][:2]

    @property
    def projected(self) -> dict[str, tuple[float, float, float]]:
        """Averages that are projected onto the plane or line."""
        return {name: point for name, point in self.points.items() if name not in (*CORNERS, MEAN)}


def read_surface(run: RunData, shape: str = "plane") -> RunSurface | None:
    """Read the plane or line of a run that was requested last; None if there is none or it is incomplete."""
    rows = read_rows(run.path, SURFACE)
    shown = last_shown(rows, "surface", shape)
    if shown is None:
        return None
    settings, heads = shown
    mark = [row for row in rows if row["kind"] == "shown" and row["key"] == settings["key"]][-1]
    marks = mark["fingerprints"]  # weights may have been trained again
    head = next(row for row in reversed(heads) if row.get("fingerprint") in marks)
    points = [row for row in rows if row["kind"] == "surface-point" and row["key"] == settings["key"]]
    by_place = {(row["name"], row["x"], row["y"]): row for row in points if row.get("fingerprint") in marks}
    if any((None, x, y) not in by_place for y in head["ys"] for x in head["xs"]):
        return None
    named = {name: row for (name, *_), row in by_place.items() if name is not None}
    domains = group_by(
        next(iter(by_place.values()))["losses"], lambda name: "unseen" if name in run.targets else "seen"
    )
    return RunSurface(
        run,
        settings,
        tuple(head["xs"]),
        tuple(head["ys"]),
        {
            side: tuple(tuple(_mean_loss(by_place[None, x, y], domains[side]) for x in head["xs"]) for y in head["ys"])
            for side in SIDES
            if side in domains
        },
        {name: (row["x"], row["y"], row["distance"]) for name, row in named.items()},
        {name: {side: _mean_loss(row, names) for side, names in domains.items()} for name, row in named.items()},
    )


def _mean_loss(row: Row, domains: Sequence[str]) -> float:
    return mean(float(row["losses"][domain]) for domain in domains)


def points_table(surfaces: Sequence[RunSurface]) -> Table:
    """Build a table of the loss at the corners or ends, their mean and the averages, and the distance of each."""
    shape = surfaces[0].shape
    mean_label = "mean of the corners" if shape == "plane" else "mean of the two"
    rows, notes = [], []
    for surface, title in zip(surfaces, run_titles([surface.run for surface in surfaces]), strict=True):
        corners = dict(zip(CORNERS, surface.corners, strict=False))
        for name, (_, _, distance) in surface.points.items():
            label = mean_label if name == MEAN else weights_label(surface.run, corners.get(name, name))
            losses = (_loss_cell(surface.losses[name].get(side)) for side in SIDES)
            rows.append(TableRow(f"{title}, {label}", (*losses, Cell(distance, decimals=2))))
        if outside := steps_outside(surface):
            steps = ", ".join(f"{step:,}" for step in outside)
            notes.append(
                f"{title}: the {shape} goes through weights outside the range that SWAD averaged (step {steps}), and "
                "may show a slope instead of a valley."
            )
    return Table("Loss", (*SIDES, f"distance from the {shape}"), tuple(rows), tuple(notes), corner="Weights")


def steps_outside(surface: RunSurface) -> list[int]:
    """Return the steps of the corners that are live weights from before or after the range that SWAD averaged."""
    averaged = valleys([surface.run])[0].get("swad")
    if averaged is None or averaged.start is None or averaged.end is None:
        return []
    steps = [int(name.removeprefix("step-")) for name in surface.corners if name.startswith("step-")]
    return [step for step in steps if not averaged.start <= step <= averaged.end]


def _loss_cell(loss: float | None) -> Cell:
    """Show two digits of a loss, however small: the losses of a figure span orders of magnitude.

    >>> _loss_cell(0.000043).printed, _loss_cell(0.93).printed
    ('0.000043', '0.93')
    """
    is_small = loss is not None and 0 < abs(loss) < 0.1
    return Cell(loss, decimals=1 - math.floor(math.log10(abs(loss))) if loss and is_small else 2)
