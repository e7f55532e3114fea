"""Tables of flatness, worst case, curvature and loss surfaces, for the terminal and the page."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from swad.results.flatness_runs import OVER_TARGETS, RunFlatness, Unit, differences_by_target
from swad.results.flatness_stats import (
    SIDES,
    Difference,
    FlatnessCurve,
    average_differences,
    display_order,
    mean_difference_over_targets,
)
from swad.results.labels import run_titles, weights_label
from swad.results.surfaces import CORNERS, MEAN, RunSurface
from swad.results.tables import Cell, Row, Table

MAX_RADII = 7
"""Largest number of radii in a table."""


def curve_table(title: str, curves: Sequence[FlatnessCurve]) -> Table:
    """Build a table of F with a row for each method and a column for each radius."""
    radii = [radius for radius in curves[0].radii if radius > 0] if curves else []
    step = math.ceil(len(radii) / MAX_RADII)
    radii = radii[::-1][:: step or 1][::-1]  # the largest radius is always included
    rows = [
        Row(
            curve.method,
            tuple(interval_cell(*curve.at(radius)) if radius in curve.radii else Cell() for radius in radii),
        )
        for curve in curves
    ]
    return Table(title, tuple(f"γ = {radius:g}" for radius in radii), tuple(rows))


def domain_table(measured: Sequence[RunFlatness]) -> Table:
    """Build a table of F on every domain at the largest radius: one domain can be sharp although the mean is flat."""
    domains = list(dict.fromkeys(name for flatness in measured for name in flatness.curves if name not in SIDES))
    radius = max(radius for flatness in measured for curve in flatness.curves["seen"] for radius in curve.radii)
    rows = []
    for flatness in measured:
        for method in (curve.method for curve in flatness.curves["seen"]):
            curves = [flatness.curve(domain, method) for domain in domains]
            cells = (
                interval_cell(*curve.at(radius)) if curve is not None and radius in curve.radii else Cell()
                for curve in curves
            )
            rows.append(Row(f"{_unit(flatness)}: {method}", tuple(cells)))
    return Table(f"F by domain at γ = {radius:g}", tuple(domains), tuple(rows), corner="Target")


def interval_cell(mean: float, low: float, high: float) -> Cell:
    """Build the cell of a value of F with half of its interval, with more decimals for small values."""
    size = abs(mean)
    return Cell(mean, (high - low) / 2, decimals=4 if size < 0.1 else 3 if size < 10 else 1)


def verdict_table(title: str, units: Mapping[Unit, Sequence[Difference]]) -> Table:
    """Build a table that says in words which method is flatter, by target and trial and for their means."""
    groups = {f"{target}, trial {trial}": average_differences(each) for (target, trial), each in units.items()}
    by_target = differences_by_target(units)
    for target, differences in by_target.items():
        trials = [each for unit, each in units.items() if unit[0] == target]
        if len(trials) > 1:
            in_all = [d for d in differences if all(any(other.pair == d.pair for other in trial) for trial in trials)]
            groups[f"{target}, mean over trials"] = in_all
    if len(by_target) > 1:
        groups[OVER_TARGETS] = mean_difference_over_targets(by_target)
    rows = []
    for name, differences in groups.items():
        pairs = sorted({d.pair[:2] for d in differences}, key=lambda pair: display_order(pair[0]))
        for method, reference in pairs:
            verdicts = {d.side: d.verdict for d in differences if d.pair[:2] == (method, reference)}
            cells = tuple(Cell(text=verdicts.get(side, "–")) for side in SIDES)
            rows.append(Row(f"{name}: {method} against {reference}", cells))
    return Table(title, tuple(f"on {side} domains" for side in SIDES), tuple(rows), corner="Target")


def worst_case_table(measured: Sequence[RunFlatness]) -> Table:
    """Build a table of the largest loss and error that were found within each radius."""
    rows = []
    radii = sorted({float(row["radius"]) for flatness in measured for row in flatness.worst_case})
    for flatness in measured:
        for weights in dict.fromkeys(row["weights"] for row in flatness.worst_case):
            for measure, label in (("loss", "cross entropy"), ("error", "0-1 error")):
                by_radius = {
                    float(row["radius"]): row
                    for row in flatness.worst_case
                    if row["weights"] == weights and row["measure"] == measure
                }
                cells = [Cell(float(next(iter(by_radius.values()))["loss"]), decimals=4)]
                cells += [
                    Cell(float(by_radius[radius]["lower_bound"]), decimals=4) if radius in by_radius else Cell()
                    for radius in radii
                ]
                rows.append(Row(f"{_unit(flatness)}: {weights_label(flatness.run, weights)}, {label}", tuple(cells)))
    columns = ("at the weights", *(f"γ = {radius:g}" for radius in radii))
    return Table("Worst case on seen domains", columns, tuple(rows), corner="Target")


def curvature_table(measured: Sequence[RunFlatness], domains: Collection[str] | None = None) -> Table:
    """Build a table of the largest eigenvalues and the trace of the Hessian.

    `domains` are the domains or sides to show; by default all. The side "unseen" is then left out if it is a single
    domain, which has a row already.
    """
    rows = [
        (
            f"{_unit(flatness)}: {weights_label(flatness.run, row['weights'])}, {row['domain']}",
            [Cell(float(value), decimals=2) for value in row["eigenvalues"]],
            Cell(float(row["trace"]), float(row["trace_error"]), decimals=1),
        )
        for flatness in measured
        for row in flatness.curvature
        if (
            row["domain"] in domains
            if domains is not None
            else row["domain"] != "unseen" or len(flatness.run.targets) > 1
        )
    ]
    n = max((len(eigenvalues) for _, eigenvalues, _ in rows), default=0)
    filled = (Row(name, (*values, *[Cell()] * (n - len(values)), trace)) for name, values, trace in rows)
    return Table("Curvature", (*(f"λ{i}" for i in range(1, n + 1)), "trace"), tuple(filled), corner="Target")


def points_table(surfaces: Sequence[RunSurface]) -> Table:
    """Build a table of the loss at the corners, their mean and the averages, and their distance from the surface."""
    rows = []
    for surface, title in zip(surfaces, run_titles([surface.run for surface in surfaces]), strict=True):
        corners = dict(zip(CORNERS, surface.corners, strict=False))
        for name, (_, _, distance) in surface.points.items():
            label = "mean of the corners" if name == MEAN else weights_label(surface.run, corners.get(name, name))
            losses = (Cell(surface.losses[name][side], decimals=4) for side in SIDES)
            rows.append(Row(f"{title}, {label}", (*losses, Cell(distance, decimals=2))))
    shape = surfaces[0].settings["shape"] if surfaces else "plane"
    return Table("Loss", (*SIDES, f"distance from the {shape}"), tuple(rows), corner="Weights")


def _unit(flatness: RunFlatness) -> str:
    return f"{flatness.target}, trial {flatness.run.trial}"
