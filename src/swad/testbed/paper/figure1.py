"""Figure 1: robust risk minimization finds flat minima. The paper sketches it; here it is measured.

On the line from the last weights of ERM to the average of SWAD: the loss on the sources' training images, and the worst
loss within a distance gamma. The larger gamma is, the farther the lowest point should move from the sharp minimum
toward the flat one. The worst losses are found by gradient ascent, so they are lower bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from swad.flatness import image_losses, line, worst_case
from swad.flatness.ascent import ASCENT
from swad.testbed.measure.base import Job, MeasuredRun, Measurement, SourceSplit
from swad.testbed.measure.saved_run import SavedRun, open_run
from swad.testbed.paper.reproduction import PaperRuns, first_trial_item
from swad.testbed.paper.trainings import ERM
from swad.testbed.results.figures.robust_lines import RobustLine, robust_figure
from swad.testbed.results.labels import weights_label
from swad.testbed.results.measurement_rows import Row as StoredRow
from swad.testbed.results.report import Report
from swad.testbed.results.run_data import RunData
from swad.testbed.results.runs import load_run
from swad.testbed.results.tables import Cell, Row, Table
from swad.testbed.results.training_curves import valleys
from swad.util.names import counted

ENDS = ("last", "swad")
"""The sharp and the flat solution: both come from one trajectory."""

SHARES = (0.02, 0.05, 0.1)
"""Radii as shares of the distance between both solutions."""

MARGIN = 0.5
"""How far the line extends beyond both ends, as a share of their distance."""
STEPS = 8
"""Ascent steps for each radius. The search continues from the worst point of the next smaller radius."""


@dataclass(frozen=True)
class WorstOnLine(Measurement):
    """Search for the worst loss within some radii at points of a line, on training images of the sources.

    Args:
        images: Images of every domain, stratified by class. None: all.
        ends: Names of the weights at x = 0 and x = 1.
        shares: Radii as shares of the distance between both, in ascending order.
        points: Number of points on the line, besides both ends.
    """

    name, title, file, kind = "robust-line", "Worst loss on a line", "robust-line.jsonl", "point"
    of_device, of_saved = True, False
    source_split: ClassVar[SourceSplit] = "training"
    ends: tuple[str, str] = ENDS
    shares: tuple[float, ...] = SHARES
    points: int = 21

    @property
    def passes(self) -> int:
        """A gradient, which costs about three passes, for every step."""
        return 3 * STEPS * len(self.shares)

    def settings(self) -> dict[str, Any]:
        """Also those of the search."""
        return {**super().settings(), "margin": MARGIN, "steps": STEPS, "ascent": ASCENT}

    def weights(self, run: SavedRun, names: Sequence[str]) -> dict[str, str]:
        """Return the line, with the marks of its ends."""
        return {"line": "-".join(map(run.fingerprint, self.ends))}

    def cases(self) -> Sequence[StoredRow]:
        """The points; both ends are always among them."""
        xs = torch.linspace(-MARGIN, 1 + MARGIN, self.points, dtype=torch.float64).tolist()
        return [{"x": x} for x in sorted({0.0, 1.0, *xs})]

    def measure(self, run: MeasuredRun, case: StoredRow, weights: Sequence[str]) -> Iterator[list[StoredRow]]:
        """Search around one point."""
        first, second = (run.run.state(name) for name in self.ends)
        length, model = line(first, second).length, run.model(self.ends[0])
        model.load_state_dict(_between(first, second, case["x"]))
        loss_fn = image_losses(run.images.side("seen"), batch_size=run.run.batch_size(run.device))
        rows = worst_case(model, loss_fn, [share * length for share in self.shares], STEPS, restarts=0).rows
        worst = [row.lower_bound for row in rows]
        yield [{"weights": "line", "length": length, "loss": rows[0].loss, "worst": worst}]


def measured_line(job: Job) -> RobustLine:
    """Return the line of a run that was measured."""
    assert isinstance(job.what, WorstOnLine)
    rows = sorted(job.rows(), key=lambda row: float(row["x"]))
    length, columns = rows[0]["length"], zip(*(row["worst"] for row in rows), strict=True)
    return RobustLine(
        load_run(job.run.path),
        job.what.ends,
        length,
        tuple(row["x"] for row in rows),
        tuple(row["loss"] for row in rows),
        {share * length: column for share, column in zip(job.what.shares, columns, strict=True)},
    )


def _between(first: Mapping[str, Tensor], second: Mapping[str, Tensor], x: float) -> dict[str, Tensor]:
    """Return the weights at a position on the line; whole numbers, such as counters, are those of the second."""
    return {
        name: torch.lerp(first[name], tensor, x) if tensor.is_floating_point() else tensor
        for name, tensor in second.items()
    }


def robust_table(dataset: str, lines: list[RobustLine]) -> Table:
    """Build the table of the lowest points: where they are on the line, and the values at both solutions."""
    rows = []
    for measured in lines:
        for radius, values in measured.curves.items():
            x, lowest = measured.minimum(radius)
            ends = [values[measured.xs.index(end)] for end in (0.0, 1.0)]
            share = Cell(100 * radius / measured.length, decimals=0) if radius else Cell(text="0 (the loss)")
            cells = (share, Cell(radius, decimals=3), Cell(x, decimals=2), *(Cell(v, decimals=3) for v in ends))
            rows.append(Row("+".join(measured.run.targets), (*cells, Cell(lowest, decimals=3))))
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
    what = WorstOnLine(images=config.images, points=points)
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
