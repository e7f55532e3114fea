"""Figure 1: robust risk minimization finds flat minima. The paper sketches it; here it is measured.

On the line from the last weights of ERM to the average of SWAD: the loss on the sources' training images, and the worst
loss within a distance gamma. The larger gamma is, the farther the lowest point should move from the sharp minimum
toward the flat one. The worst losses are found by gradient ascent, so they are lower bounds.
"""

from __future__ import annotations

from collections.abc import Sequence

from swad.testbed.measure.saved_run import open_run
from swad.testbed.paper.reproduction import PaperRuns, first_trial_item
from swad.testbed.paper.robust_line import WorstOnLine, measured_line
from swad.testbed.paper.trainings import ERM
from swad.testbed.results.figures.robust_lines import RobustLine, robust_figure
from swad.testbed.results.labels import weights_label
from swad.testbed.results.report import Report
from swad.testbed.results.run_data import RunData
from swad.testbed.results.tables import Cell, Row, Table
from swad.testbed.results.training_curves import valleys
from swad.util.names import counted

ENDS = ("last", "swad")
"""The sharp and the flat solution: both come from one trajectory."""

SHARES = (0.02, 0.05, 0.1)
"""Radii as shares of the distance between both solutions."""


def robust_table(dataset: str, lines: list[RobustLine]) -> Table:
    """Build the table of the lowest points: where they are on the line, and the values at both solutions."""
    rows = []
    for line in lines:
        for radius, values in line.curves.items():
            x, lowest = line.minimum(radius)
            ends = [values[line.xs.index(end)] for end in (0.0, 1.0)]
            share = Cell(100 * radius / line.length, decimals=0) if radius else Cell(text="0 (the loss)")
            cells = (share, Cell(radius, decimals=3), Cell(x, decimals=2), *(Cell(v, decimals=3) for v in ends))
            rows.append(Row("+".join(line.run.targets), (*cells, Cell(lowest, decimals=3))))
    first, second = (weights_label(lines[0].run, name) for name in ENDS)
    columns = ("γ, % of distance", "γ", "Lowest point at", f"Value at {first}", f"Value at {second}", "Lowest value")
    notes = (
        f"Position 0 is {first}, 1 is {second}. Worst losses within γ are lower bounds, found by gradient ascent.",
        _verdict(lines),
        *_edge_notes(lines),
    )
    return Table(f"{dataset}: worst loss on the line from {first} to {second}", columns, tuple(rows), notes, "Target")


def _verdict(lines: list[RobustLine]) -> str:
    """Say for how many targets the lowest point moves toward the average, without claiming more."""
    moved = [line for line in lines if line.minimum(max(line.worst))[0] > line.minimum(0.0)[0]]
    return (
        f"From the loss to the largest γ the lowest point moves toward {weights_label(lines[0].run, ENDS[1])} "
        f"for {len(moved)} of {counted(len(lines), 'target')}."
    )


def _edge_notes(lines: list[RobustLine]) -> list[str]:
    """Say that the lowest point of a curve may lie beyond the measured part of the line, if one is at its end."""
    at_edge = any(line.minimum(radius)[0] in (line.xs[0], line.xs[-1]) for line in lines for radius in line.curves)
    ends = f"{lines[0].xs[0]:.2f} and {lines[0].xs[-1]:.2f}"
    return [f"The line is measured between {ends}; a lowest point at one of them may lie beyond."] if at_edge else []


def _is_last(run: RunData) -> bool:
    """Whether SWAD averaged the last weights alone, because the validation loss never converged."""
    averaged = valleys([run])[0].get("swad")
    return averaged is None or averaged.n_averaged == 1


def _build(paper_runs: PaperRuns, dataset: str, names: Sequence[str]) -> Report:
    runs = paper_runs.first_trial(dataset, ERM)
    different = [run for run in runs if not _is_last(run)]
    tables: list[Table | str] = []
    if skipped := ["+".join(run.targets) for run in runs if _is_last(run)]:
        which = ", ".join(skipped)
        tables.append(f"{dataset}, target {which}: no line, because the average of SWAD is the last weights.")
    if not different:
        return Report(tuple(tables))
    config = paper_runs.config
    points = (config.grid + 1) // 2  # each takes dozens of gradients
    what = WorstOnLine(images=config.images, ends=ENDS, shares=SHARES, points=points)
    jobs = paper_runs.measure([(open_run(run.path, config.data), ()) for run in different], what)
    lines = list(map(measured_line, jobs))
    written = paper_runs.save(robust_figure(lines), "figure1", *names)
    return Report(
        (*tables, robust_table(dataset, lines)), tuple(written), tuple(run.path / what.file for run in different)
    )


ITEMS = (
    first_trial_item(
        "figure1",
        "Robust risk minimization and flat minima",
        ERM,
        _build,
        measures="the worst loss along a line, for every target",
    ),
)
