"""Tables of the flatness lab, for the terminal and for the page. No torch here."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from swad.results.flatness_stats import (
    OVER_TARGETS,
    SIDES,
    Difference,
    RunFlatness,
    Unit,
    averaged,
    mean_differences,
    method,
    placed,
    within_targets,
)
from swad.results.tables import Cell, Row, Table


def verdicts(title: str, units: Mapping[Unit, Sequence[Difference]]) -> Table:
    """Who is flatter, in words: a row for each method of a target and trial, and for means over several of them."""
    every = {f"{target}, trial {trial}": averaged(some) for (target, trial), some in units.items()}
    targets = within_targets(units)
    for target, some in targets.items():
        mine = [pairs for unit, pairs in units.items() if unit[0] == target]
        if len(mine) > 1:
            every[f"{target}, mean over trials"] = [one for one in some if _in_all(one, mine)]
    if len(targets) > 1:
        every[OVER_TARGETS] = mean_differences(targets)
    rows = []
    for name, some in every.items():
        for pair in sorted({(one.curve.method, one.versus) for one in some}, key=lambda pair: placed(pair[0])):
            told = {one.side: one.verdict for one in some if (one.curve.method, one.versus) == pair}
            cells = tuple(Cell(text=told.get(side, "–")) for side in SIDES)
            rows.append(Row(f"{name}: {pair[0]} against {pair[1]}", cells))
    return Table(title, tuple(f"on {side} domains" for side in SIDES), tuple(rows), corner="Target")


def _in_all(one: Difference, trials: Sequence[Sequence[Difference]]) -> bool:
    pair = (one.curve.method, one.versus, one.side)
    return all(any((d.curve.method, d.versus, d.side) == pair for d in some) for some in trials)


def domain_table(found: Sequence[RunFlatness]) -> Table:
    """F of every method on every domain at the largest radius: a mean can look flat while one domain is sharp."""
    domains = list(dict.fromkeys(name for one in found for name in one.curves if name not in SIDES))
    radius = max(radius for one in found for curve in one.curves["seen"] for radius in curve.radii)
    rows = []
    for one in found:
        for place, first in enumerate(one.curves["seen"]):
            cells = []
            for domain in domains:
                curve = one.curves[domain][place] if domain in one.curves else None
                known = curve is not None and radius in curve.radii
                cells.append(spread_cell(*curve.at(radius)) if curve is not None and known else Cell())
            rows.append(Row(f"{one.target}, trial {one.run.trial}: {first.method}", tuple(cells)))
    return Table(f"F by domain at γ = {radius:g}", tuple(domains), tuple(rows), corner="Target")


def spread_cell(mean: float, low: float, high: float) -> Cell:
    """A value of F with half of its interval, with as many digits as it needs."""
    size = abs(mean)
    return Cell(mean, (high - low) / 2, decimals=4 if size < 0.1 else 3 if size < 10 else 1)


def worst_table(found: Sequence[RunFlatness]) -> Table:
    """The largest loss and error seen within each radius."""
    rows = []
    radii = sorted({float(row["radius"]) for one in found for row in one.worst})
    for one in found:
        for name in dict.fromkeys(row["weights"] for row in one.worst):
            for measure, words in (("loss", "cross entropy"), ("error", "0-1 error")):
                mine = {
                    float(row["radius"]): row
                    for row in one.worst
                    if row["weights"] == name and row["measure"] == measure
                }
                cells = [Cell(float(next(iter(mine.values()))["loss"]), decimals=4)]
                cells += [Cell(float(mine[r]["lower_bound"]), decimals=4) if r in mine else Cell() for r in radii]
                rows.append(Row(f"{_unit(one)}: {method(one.run, name)}, {words}", tuple(cells)))
    columns = ("at the weights", *(f"γ = {radius:g}" for radius in radii))
    return Table("Worst case on seen domains", columns, tuple(rows), corner="Target")


def curvature_table(found: Sequence[RunFlatness], domains: Collection[str] | None = None) -> Table:
    """Top eigenvalues and trace, of some domains or sides; None: of all that were measured, one target once."""
    rows = [
        Row(
            f"{_unit(one)}: {method(one.run, row['weights'])}, {row['domain']}",
            (
                *(Cell(float(value), decimals=2) for value in row["eigenvalues"]),
                Cell(float(row["trace"]), float(row["trace_error"]), decimals=1),
            ),
        )
        for one in found
        for row in one.curvature
        if (row["domain"] in domains if domains is not None else row["domain"] != "unseen" or len(one.run.targets) > 1)
    ]
    n = max((len(row.cells) - 1 for row in rows), default=0)
    filled = (Row(row.name, (*row.cells[:-1], *[Cell()] * (n + 1 - len(row.cells)), row.cells[-1])) for row in rows)
    return Table("Curvature", (*(f"λ{i}" for i in range(1, n + 1)), "trace"), tuple(filled), corner="Target")


def _unit(one: RunFlatness) -> str:
    return f"{one.target}, trial {one.run.trial}"
