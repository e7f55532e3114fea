"""Appendix G: the overhead of SWAD's evaluations, by the formula and as measured, and what fewer images save.

`validation_subsample` evaluates fewer images during training. It does not change the trajectory: seeds are the same, so
runs differ only in the losses that SWAD observes, and with them in the range that it averages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from swad.testbed.data import benchmarks
from swad.testbed.paper.evaluation_cost import cost, measured_cost
from swad.testbed.paper.paper_config import PAPER_DATASETS
from swad.testbed.paper.reproduction import PaperRuns, Reproduction, availability_notes
from swad.testbed.paper.trainings import ERM, Training, validation_subsample
from swad.testbed.results.compare import compare, units_of_methods
from swad.testbed.results.report import Report
from swad.testbed.results.run_data import RunData
from swad.testbed.results.selection import select
from swad.testbed.results.tables import PAPER, Cell, Row, Table
from swad.testbed.results.training_curves import valleys
from swad.util.statistics import mean

DATASETS = ("PACS",)
"""The dataset whose runs are timed. The formula needs none."""

SHARES = (0.25, 0.1)
"""Shares of the validation images that are evaluated during training."""

SUBSAMPLED = tuple(Training(validation_share=share) for share in SHARES)

PRINTED = {"PACS": 1.07, "DomainNet": 1.27}
"""The overheads that appendix G prints."""


def formula_table(evaluate_every: Mapping[str, int]) -> Table:
    """Build the table of modeled overheads: as printed, with the sources alone, and with the target evaluated too.

    Args:
        evaluate_every: Steps between evaluations, by dataset.
    """
    rows, printed = [], []
    for dataset, every in evaluate_every.items():
        of_all, of_sources = cost(dataset, evaluate_every=every)[:2]
        ratios = (of_all.ratio, of_sources.ratio, of_sources.ratio_with_target)
        more_often = of_all.evaluations / of_all.baseline
        counts = (Cell(every, decimals=0), Cell(more_often, decimals=0))
        rows.append(Row(dataset, (*counts, *(Cell(ratio, decimals=2) for ratio in ratios))))
        if dataset in PRINTED:
            printed.append(Row(dataset, (Cell(), Cell(), Cell(PRINTED[dataset], decimals=2), Cell(), Cell()), PAPER))
    columns = ("Evaluate every", "v / v_b", "All domains", "Sources", "Sources, target evaluated")
    notes = (
        "Training time relative to the baseline's evaluations: (2r + v) / (2r + v_b), with r = 4. The printed numbers "
        "count the held-out domain as training data (All domains); a run trains on the sources.",
    )
    return Table("Overhead of evaluations by the formula", columns, (*rows, *printed), notes, "Dataset")


def timing_table(dataset: str, by_share: dict[float, list[RunData]]) -> Table:
    """Build the table of measured times by share of the validation images."""
    rows = []
    for share, runs in by_share.items():
        measured = measured_cost(runs)
        steps = mean(row.seconds_per_step * row.updates for row in measured)
        evaluation = mean(row.seconds_evaluation for row in measured)
        cells = (
            _images(dataset, share),
            Cell(1000 * mean(row.seconds_per_step for row in measured)),
            Cell(evaluation, decimals=2),
            Cell(100 * evaluation / (steps + evaluation)),
            Cell(mean(row.ratio for row in measured), decimals=2),
        )
        rows.append(Row(f"{100 * share:g} %", cells))
    columns = ("Images per domain", "Step, ms", "Evaluations, s", "Share of time, %", "Overhead, measured")
    notes = (
        f"As recorded, mean over runs ({len(by_share[1.0])}), with the final evaluation of all weights on all images. "
        "Overhead: relative to the baseline's evaluations. Runs that train at the same time slow each other down.",
    )
    return Table(f"{dataset}: measured time by validation images", columns, tuple(rows), notes, "Validation")


def _images(dataset: str, share: float) -> Cell:
    number = validation_subsample(dataset, share)
    return Cell(text="all") if number is None else Cell(number, decimals=0)


def change_table(dataset: str, by_share: dict[float, list[RunData]]) -> Table:
    """Build the table of what fewer validation images change: the range of SWAD, and the accuracy on the target."""
    whole = {(run.targets[0], run.trial): run for run in by_share[1.0]}
    accuracies = {share: _accuracies(runs) for share, runs in by_share.items()}
    units = units_of_methods({f"{share:g}": each for share, each in accuracies.items()})
    tests = {test.method: test for test in compare(units, "1").itertuples()}
    rows = []
    for share, runs in by_share.items():
        moves = [_moved(run, whole[run.targets[0], run.trial]) for run in runs if (run.targets[0], run.trial) in whole]
        if not moves:  # runs failed, and those that are left have no counterpart
            continue
        difference = Cell(text="–")
        if test := tests.get(f"{share:g}"):
            interval = "" if math.isnan(test.low) else f" ({100 * test.low:+.1f} to {100 * test.high:+.1f})"
            difference = Cell(text=f"{100 * test.difference:+.1f}{interval}")
        cells = (
            _images(dataset, share),
            Cell(mean(start for start, _ in moves), decimals=0),
            Cell(mean(end for _, end in moves), decimals=0),
            Cell(100 * mean(accuracies[share].values())),
            difference,
        )
        rows.append(Row(f"{100 * share:g} %", cells))
    columns = ("Images per domain", "t_s moves by", "t_e moves by", "SWAD, %", "Difference, points")
    notes = (
        "Moves: mean absolute number of steps, of the same trajectory. Difference: from all images, with its 95 % "
        "interval over targets and trials; without an interval there are too few runs to show one.",
    )
    return Table(f"{dataset}: what fewer validation images change", columns, tuple(rows), notes, "Validation")


def _accuracies(runs: Sequence[RunData]) -> dict[tuple[str, int], float]:
    """Return the accuracy of SWAD on the target by target and trial."""
    return {(row.target, row.trial): row.value for row in select(runs, "iid", "swad").itertuples()}


def _moved(run: RunData, whole: RunData) -> tuple[int, int]:
    """Return by how many steps the range of SWAD moved."""
    one, other = (by_average["swad"] for by_average in valleys([run, whole]))
    return abs((one.start or 0) - (other.start or 0)), abs((one.end or 0) - (other.end or 0))


def _build(paper_runs: PaperRuns) -> Report:
    config = paper_runs.config
    known = [name for name in config.measured_datasets(PAPER_DATASETS) if benchmarks.get(name).counts]
    every = {name: config.evaluate_every_of(name) for name in known}
    every |= {name: benchmarks.get(name).defaults.evaluate_every for name in PAPER_DATASETS if name not in every}
    tables: list[Table | str] = [formula_table(every)]
    for dataset in config.measured_datasets(DATASETS):
        by_share = {
            training.validation_share: runs
            for training in (ERM, *SUBSAMPLED)
            if (runs := paper_runs.runs(dataset, training))
        }
        if 1.0 in by_share:
            tables += [timing_table(dataset, by_share), change_table(dataset, by_share)]
        else:
            tables.append(f"{dataset}: no finished run, so no measured times.")
    return Report((*tables, *availability_notes(config, DATASETS)))


ITEMS = (
    Reproduction(
        "cost",
        "Appendix G: overhead of evaluations",
        lambda config: (ERM, *SUBSAMPLED),
        _build,
        DATASETS,
    ),
)
