"""Tables of flatness, worst case, curvature and loss surfaces, for the terminal and the page."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from swad.testbed.results.flatness_runs import OVER_TARGETS, NullPair, RunFlatness, Unit, differences_by_target
from swad.testbed.results.flatness_stats import (
    SIDES,
    CurvesBySide,
    Difference,
    FlatnessCurve,
    display_order,
    mean_difference_over_targets,
)
from swad.testbed.results.labels import run_titles, weights_label
from swad.testbed.results.surfaces import CORNERS, MEAN, RunSurface
from swad.testbed.results.tables import Cell, Row, Table

MAX_RADII = 7
"""Largest number of radii in a table."""


THESE_WEIGHTS_ONLY = "for these weights only"
"""What numbers of a single trial hold for."""
PAIRED = "Paired differences, on the same directions and images"
VERDICTS_NOTE = (
    "Numbers are radii. A difference is claimed where its p-value, corrected for the number of radii, is below 5 %; "
    "elsewhere it is open. Over trials it is Student's t over trainings. A difference for these weights only is that "
    "of one training: by the measurement alone, two trainings of the same method often differ significantly, too."
)


def holds_for(curves: Iterable[FlatnessCurve]) -> str:
    """Return what the intervals of some curves hold for: "over 3 trials", or "for these weights only" for one trial.

    Methods that have one trial where others have several, such as snapshots that only trial 0 kept, are named.
    """
    curves = list(curves)
    numbers = sorted({curve.n_trials for curve in curves if curve.n_trials > 1})
    if not numbers:
        return THESE_WEIGHTS_ONLY
    over = f"over {numbers[0]} trials" if len(numbers) == 1 else f"over {numbers[0]} to {numbers[-1]} trials"
    one_trial = list(dict.fromkeys(curve.method for curve in curves if curve.n_trials == 1))
    if any(curve.n_trials > 1 and curve.method in one_trial for curve in curves):  # some targets have one trial
        return f"{over} where there are several, else {THESE_WEIGHTS_ONLY}"
    return f"{over} ({', '.join(one_trial)}: {THESE_WEIGHTS_ONLY})" if one_trial else over


def describe_bands(groups: Mapping[str, CurvesBySide], measured: Sequence[RunFlatness]) -> str:
    """Say what the bands of a figure are, and how its runs were measured."""
    curves = [curve for by_side in groups.values() for each in by_side.values() for curve in each]
    held, settings = holds_for(curves), describe_settings(measured)
    if held == THESE_WEIGHTS_ONLY:
        return f"Bands are 95 % intervals {held} ({settings}); another training may differ more."
    if not any(curve.exact_measured for curve in curves):
        return f"Bands are 95 % intervals {held} ({settings})."
    return f"Bands are 95 % intervals {held}, thin bars those of the measurement ({settings})."


def describe_settings(measured: Sequence[RunFlatness]) -> str:
    """Describe the settings of a measurement: directions, images, and what differs from the default."""
    settings = measured[0].settings
    n_directions = sorted({flatness.n_directions for flatness in measured})
    count = f"{n_directions[0]:,}" if len(n_directions) == 1 else f"{n_directions[0]:,} to {n_directions[-1]:,}"
    images = "all images" if settings.get("images") is None else f"{settings['images']:,} images of each domain"
    parts = [f"{count} random directions", images]
    if settings.get("normalize", "sphere") != "sphere":
        parts.append(f"directions normalized by {settings['normalize']}")
    if patterns := [f"{word} {', '.join(settings[word])}" for word in ("include", "exclude") if settings.get(word)]:
        parts.append(f"parameters: {'; '.join(patterns)}")
    if split := settings.get("split"):
        parts.append(f"sources: {'training and validation' if split == 'all' else split} images")
    changed = (("logits", "{} logits"), ("precision", "in {}"))
    parts += [text.format(settings[name]) for name, text in changed if settings.get(name)]
    return ", ".join(parts)


def curve_table(title: str, curves: Sequence[FlatnessCurve]) -> Table:
    """Build a table of F with a row for each method and a column for each radius.

    With several trials the cells hold half of the interval over trials, and in parentheses that of the measurement if
    raw rows were kept.
    """
    radii = [radius for radius in curves[0].radii if radius > 0] if curves else []
    step = math.ceil(len(radii) / MAX_RADII)
    radii = radii[::-1][:: step or 1][::-1]  # the largest radius is always included
    rows = [
        Row(
            curve.method,
            tuple(_curve_cell(curve, radius) if radius in curve.radii else Cell() for radius in radii),
        )
        for curve in curves
    ]
    return Table(f"{title}, {holds_for(curves)}", tuple(f"γ = {radius:g}" for radius in radii), tuple(rows))


def domain_table(measured: Sequence[RunFlatness]) -> Table:
    """Build a table of F on every domain at the largest radius: one domain can be sharp although the mean is flat."""
    domains = list(dict.fromkeys(name for flatness in measured for name in flatness.curves if name not in SIDES))
    radius = max(radius for flatness in measured for curve in flatness.curves["seen"] for radius in curve.radii)
    rows = []
    for flatness in measured:
        for method in (curve.method for curve in flatness.curves["seen"]):
            curves = [flatness.curve(domain, method) for domain in domains]
            cells = (
                flatness_cell(*curve.at(radius)) if curve is not None and radius in curve.radii else Cell()
                for curve in curves
            )
            rows.append(Row(f"{_unit(flatness)}: {method}", tuple(cells)))
    of_error = " of the 0-1 error" * (measured[0].measure == "error")
    return Table(
        f"F{of_error} by domain at γ = {radius:g}, {THESE_WEIGHTS_ONLY}", tuple(domains), tuple(rows), corner="Target"
    )


def flatness_cell(mean: float, low: float, high: float) -> Cell:
    """Build the cell of a value of F with half of its interval, with more decimals for small values."""
    size = abs(mean)
    return Cell(mean, (high - low) / 2, decimals=4 if size < 0.1 else 3 if size < 10 else 1)


def _curve_cell(curve: FlatnessCurve, radius: float) -> Cell:
    cell = flatness_cell(*curve.at(radius))
    if not curve.exact_measured:
        return cell
    return Cell(cell.value, text=f"{cell.printed} ({curve.measured_at(radius)[0]:.{cell.decimals}f})")


def verdict_table(title: str, units: Mapping[Unit, Sequence[Difference]], null: Sequence[NullPair] = ()) -> Table:
    """Build a table that says in words which method is flatter, for each target and their mean.

    Verdicts are over the trials of a target if there are several. Those of one trial hold for these weights only.
    `null` adds a row for two trials of the same method: how often they differ significantly by the measurement alone.
    """
    groups = differences_by_target(units)
    if len(groups) > 1:
        groups[OVER_TARGETS] = mean_difference_over_targets(groups)
    rows = []
    for name, differences in groups.items():
        pairs = sorted({d.pair[:2] for d in differences}, key=lambda pair: display_order(pair[0]))
        for method, reference in pairs:
            of_pair = [d for d in differences if d.pair[:2] == (method, reference)]
            verdicts = {d.side: d.verdict for d in of_pair}
            cells = tuple(Cell(text=verdicts.get(side, "–")) for side in SIDES)
            held = holds_for(d.curve for d in of_pair)
            rows.append(Row(f"{name}, {held}: {method} against {reference}", cells))
    if null:
        on_sides = ([pair for pair in null if pair.difference.side == side] for side in SIDES)
        cells = tuple(Cell(text=_different_pairs(pairs)) for pairs in on_sides)
        method = null[0].difference.reference
        rows.append(Row(f"null, {THESE_WEIGHTS_ONLY}: {method} against {method} of another trial", cells))
    return Table(title, tuple(f"on {side} domains" for side in SIDES), tuple(rows), (VERDICTS_NOTE,), "Target")


def _different_pairs(null: Sequence[NullPair]) -> str:
    n = sum(pair.is_different for pair in null)
    return f"significantly different in {n} of {len(null)} pairs of trials" if null else "–"


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
    note = "Found by gradient ascent. These are lower bounds: the true maximum within the radius is at least this."
    return Table("Worst case on seen domains", columns, tuple(rows), (note,), "Target")


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
    note = "The largest eigenvalues of the Hessian, and its trace with its standard error."
    return Table("Curvature", (*(f"λ{i}" for i in range(1, n + 1)), "trace"), tuple(filled), (note,), "Target")


def points_table(surfaces: Sequence[RunSurface]) -> Table:
    """Build a table of the loss at the corners or ends, their mean and the averages, and the distance of each."""
    shape = surfaces[0].settings["shape"] if surfaces else "plane"
    mean_label = "mean of the corners" if shape == "plane" else "mean of the two"
    rows = []
    for surface, title in zip(surfaces, run_titles([surface.run for surface in surfaces]), strict=True):
        corners = dict(zip(CORNERS, surface.corners, strict=False))
        for name, (_, _, distance) in surface.points.items():
            label = mean_label if name == MEAN else weights_label(surface.run, corners.get(name, name))
            losses = (_loss_cell(surface.losses[name].get(side)) for side in SIDES)
            rows.append(Row(f"{title}, {label}", (*losses, Cell(distance, decimals=2))))
    return Table("Loss", (*SIDES, f"distance from the {shape}"), tuple(rows), corner="Weights")


def _loss_cell(loss: float | None) -> Cell:
    """Show two digits of a loss, however small: the losses of a figure span orders of magnitude.

    >>> _loss_cell(0.000043).printed, _loss_cell(0.93).printed
    ('0.000043', '0.93')
    """
    is_small = loss is not None and 0 < abs(loss) < 0.1
    return Cell(loss, decimals=1 - math.floor(math.log10(abs(loss))) if loss and is_small else 2)


def _unit(flatness: RunFlatness) -> str:
    return f"{flatness.target}, trial {flatness.run.trial}"
