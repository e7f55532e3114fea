"""Figure 2: SWA takes a weight now and then, SWAD every weight of the loss valley. The paper sketches it.

Here the steps that both take are drawn on the measured validation loss, and their weights on the measured loss surface
of the same run: the plane through the first and the last snapshot of the valley and the end of training.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from swad.averaging.window import Window
from swad.testbed.averages import registry
from swad.testbed.measure.saved_run import SavedRun, open_run
from swad.testbed.measurements.surface import Surface
from swad.testbed.paper.reproduction import PaperRuns, first_trial_item
from swad.testbed.paper.trainings import ERM
from swad.testbed.results.figures.sampling import sampling_figure
from swad.testbed.results.labels import weights_label
from swad.testbed.results.measurement_rows import SURFACE
from swad.testbed.results.report import Report
from swad.testbed.results.run_data import RunData
from swad.testbed.results.runs import load_run
from swad.testbed.results.surfaces import RunSurface, read_surface
from swad.testbed.results.tables import Cell, Row, Table
from swad.testbed.results.training_curves import valleys
from swad.testbed.training.recipes import averaging_plan


def sampled_steps(run: SavedRun) -> dict[str, tuple[int, ...]]:
    """Return the steps whose weights SWA and SWAD average, for those that average any."""
    specs = {spec.label: spec for spec in registry.parse_all(run.config.averages)}
    swa = registry.make_rule(specs["swa"], averaging_plan(run.config))
    assert isinstance(swa, Window)
    last = run.config.total_steps if swa.end is None else swa.end
    steps = {"swa": tuple(range(swa.start + swa.interval, last + 1, swa.interval))}
    if run.averaged_range is not None:
        first, last = run.averaged_range
        steps["swad"] = tuple(range(first, last + 1))
    return steps


def plane_corners(run: SavedRun) -> tuple[str, str, str]:
    """Return three snapshots: where the valley begins, its end, and the end of training, or thirds of it."""
    snapshots = {step: name for name, step in run.snapshots.items()}
    last = max(snapshots)
    start, end = run.averaged_range or (last // 3, 2 * last // 3)
    # The end of the valley may be the end of training; then the middle of the valley tells more.
    wanted = (start, end if end < last else (start + last) // 2)
    chosen = [min(snapshots, key=lambda step: (abs(step - each), step)) for each in wanted]
    if len({*chosen, last}) < 3:
        earlier = sorted(snapshots)[:-1]
        chosen = [earlier[len(earlier) // 3], earlier[2 * len(earlier) // 3]]
    return snapshots[chosen[0]], snapshots[chosen[1]], snapshots[last]


def _measure(paper_runs: PaperRuns, run: SavedRun) -> RunSurface:
    corners = plane_corners(run)
    first = min(run.snapshots[name] for name in corners)
    # The beginning of training is far away and would leave the valley in a corner of the picture.
    later = [name for name, step in run.snapshots.items() if 3 * step >= 2 * first]
    points = (*(name for name in later if name not in corners), *sampled_steps(run))
    what = Surface(images=paper_runs.config.images, corners=corners, points=points, steps=paper_runs.config.grid)
    paper_runs.measure([(run, ())], what)
    surface = read_surface(load_run(run.path))
    assert surface is not None
    return surface


def sampling_table(dataset: str, runs: list[tuple[RunData, dict[str, tuple[int, ...]]]]) -> Table:
    """Build the table of the steps that each method takes, and how many of them are in the loss valley."""
    rows = []
    for run, sampled in runs:
        averaged = valleys([run])[0].get("swad")
        for name, steps in sampled.items():
            inside = [s for s in steps if averaged and (averaged.start or 0) <= s <= (averaged.end or 0)]
            cells = (
                Cell(text=weights_label(run, name)),
                Cell(len(steps), decimals=0),
                Cell(text=f"{min(steps):,} – {max(steps):,}"),
                Cell(100 * len(inside) / len(steps), decimals=0),
            )
            rows.append(Row("+".join(run.targets), cells))
    columns = ("Average", "Weights", "Steps", "In the valley, %")
    notes = ("Valley: from t_s, the lowest validation loss, to t_e, after which it stays above the threshold.",)
    return Table(f"{dataset}: the weights that SWA and SWAD average", columns, tuple(rows), notes, "Target")


def _build(paper_runs: PaperRuns, dataset: str, names: Sequence[str]) -> Report:
    runs = paper_runs.first_trial(dataset, ERM)
    written: list[Path] = []
    sampled = []
    for run in runs:
        saved = open_run(run.path, paper_runs.config.data)
        steps = sampled_steps(saved)
        drawing = sampling_figure(_measure(paper_runs, saved), steps)
        written += paper_runs.save(drawing, "figure2", *names, *["+".join(run.targets)] * (len(runs) > 1))
        sampled.append((run, steps))
    return Report((sampling_table(dataset, sampled),), tuple(written), tuple(run.path / SURFACE for run in runs))


ITEMS = (
    first_trial_item(
        "figure2",
        "Which weights SWA and SWAD average",
        ERM,
        _build,
        measures="the loss on a plane, for every target",
        snapshots=True,
    ),
)
