"""Appendix G: the overhead of SWAD's evaluations, by the formula and as measured.

Training takes twice as long per image as evaluation (forward and backward). With r = training / validation images
and v evaluations per epoch, evaluating more often than a baseline (v_b) makes training longer by the factor

    (2 r + v) / (2 r + v_b).

v follows from the length of an epoch. The printed values (1.07 for PACS to 1.27 for DomainNet) count the held-out
domain as training data. The published code also evaluates the target each time, which the formula leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from swad.testbed.data import benchmarks
from swad.testbed.paper.paper_config import PAPER_DATASETS
from swad.testbed.paper.reproduction import PaperRuns, Reproduction, availability_notes
from swad.testbed.paper.trainings import ERM
from swad.testbed.results.records import LIVE
from swad.testbed.results.report import Report
from swad.testbed.results.run_data import RunData
from swad.testbed.results.tables import PAPER, Cell, Row, Table
from swad.util.statistics import mean

DATASETS = ("PACS",)
"""The dataset whose runs are timed. The formula needs none."""

PRINTED = {"PACS": 1.07, "DomainNet": 1.27}
"""The overheads that appendix G prints."""

BATCH_SIZE, TRAIN_SHARE = 32, 0.8
"""Images per domain and update, and the share of the images that are trained on."""
RATIO = TRAIN_SHARE / (1 - TRAIN_SHARE)
"""Training images for each validation image: r = 4."""


def baseline_every(dataset: str) -> int:
    """Return the updates between two evaluations in DomainBed, the paper's baseline."""
    return 1000 if dataset == "DomainNet" else 300


class Overhead(NamedTuple):
    """How much longer training takes than with the evaluations of the baseline, by the formula."""

    printed: float
    """With the held-out domain counted as training data, as the paper prints it."""
    sources: float
    """With the sources alone; the mean over targets."""
    with_target: float
    """The same if every evaluation includes the target."""


def overhead(counts: Mapping[str, int], every: int, baseline: int) -> Overhead:
    """Return the overhead by the formula.

    >>> [f"{ratio:.2f}" for ratio in overhead(benchmarks.get("PACS").counts, 100, 300)]
    ['1.07', '1.05', '1.13']

    Args:
        counts: Images of every domain.
        every: Updates between two evaluations.
        baseline: The baseline's.
    """

    def ratio(images: float, longer: float = 1.0) -> float:
        epoch = images * TRAIN_SHARE / (BATCH_SIZE * (len(counts) - 1))
        return (2 * RATIO + longer * epoch / every) / (2 * RATIO + longer * epoch / baseline)

    total = sum(counts.values())
    targets = counts.values()
    # Evaluating the sources takes their images / (r + 1); the target adds its own.
    with_target = mean(ratio(total - n, 1 + n * (RATIO + 1) / (total - n)) for n in targets)
    return Overhead(ratio(total), mean(ratio(total - n) for n in targets), with_target)


class Timing(NamedTuple):
    """The recorded time of a finished run."""

    steps: float
    per_step: float
    evaluation: float
    """Includes the final evaluation of all weights, on sources and target."""
    overhead: float
    """Relative to the baseline's share of the evaluations; an upper bound, because of the final evaluation."""


def timing(run: RunData) -> Timing:
    """Return the recorded time of a finished run, in seconds."""
    records = run.frame
    evaluations = records.step[(records.metric == "valley_loss") & (records.weights == LIVE)].nunique()
    updates = int(records.step.max())
    per_step, evaluation = (
        float(records.value[records.metric == f"seconds_{name}"].iloc[-1]) for name in ("per_step", "evaluation")
    )
    fewer = min(1.0, updates / baseline_every(run.dataset) / evaluations)
    steps = per_step * updates
    return Timing(steps, per_step, evaluation, (steps + evaluation) / (steps + fewer * evaluation))


def formula_table(evaluate_every: Mapping[str, int]) -> Table:
    """Build the table of modeled overheads: as printed, with the sources alone, and with the target evaluated too.

    Args:
        evaluate_every: Steps between evaluations, by dataset.
    """
    rows, printed = [], []
    for dataset, every in evaluate_every.items():
        baseline = baseline_every(dataset)
        ratios = overhead(benchmarks.get(dataset).counts, every, baseline)
        counts = (Cell(every, decimals=0), Cell(baseline / every, decimals=0))
        rows.append(Row(dataset, (*counts, *(Cell(ratio, decimals=2) for ratio in ratios))))
        if dataset in PRINTED:
            printed.append(Row(dataset, (Cell(), Cell(), Cell(PRINTED[dataset], decimals=2), Cell(), Cell()), PAPER))
    columns = ("Evaluate every", "v / v_b", "All domains", "Sources", "Sources, target evaluated")
    notes = (
        "Training time relative to the baseline's evaluations: (2r + v) / (2r + v_b), with r = 4. The printed numbers "
        "count the held-out domain as training data (All domains); a run trains on the sources.",
    )
    return Table("Overhead of evaluations by the formula", columns, (*rows, *printed), notes, "Dataset")


def timing_table(by_dataset: Mapping[str, Sequence[RunData]]) -> Table:
    """Build the table of measured times by dataset."""
    rows = []
    for dataset, runs in by_dataset.items():
        steps, per_step, evaluation, ratio = map(mean, zip(*map(timing, runs), strict=True))
        cells = (
            Cell(len(runs), decimals=0),
            Cell(1000 * per_step),
            Cell(evaluation, decimals=2),
            Cell(100 * evaluation / (steps + evaluation)),
            Cell(ratio, decimals=2),
        )
        rows.append(Row(dataset, cells))
    columns = ("Runs", "Step, ms", "Evaluations, s", "Share of time, %", "Overhead, measured")
    notes = (
        "As recorded, mean over runs, with the final evaluation of all weights on all images. Overhead: relative to "
        "the baseline's evaluations. Runs that train at the same time slow each other down.",
    )
    return Table("Measured time of evaluations", columns, tuple(rows), notes, "Dataset")


def _build(paper_runs: PaperRuns) -> Report:
    config = paper_runs.config
    known = [name for name in config.measured_datasets(PAPER_DATASETS) if benchmarks.get(name).counts]
    every = {name: config.evaluate_every_of(name) for name in known}
    every |= {name: benchmarks.get(name).defaults.evaluate_every for name in PAPER_DATASETS if name not in every}
    tables: list[Table | str] = [formula_table(every)]
    found = {dataset: paper_runs.runs(dataset, ERM) for dataset in config.measured_datasets(DATASETS)}
    tables += [f"{dataset}: no finished run, so no measured times." for dataset, runs in found.items() if not runs]
    if timed := {dataset: runs for dataset, runs in found.items() if runs}:
        tables.append(timing_table(timed))
    return Report((*tables, *availability_notes(config, DATASETS)))


ITEMS = (Reproduction("cost", "Appendix G: overhead of evaluations", lambda config: (ERM,), _build, DATASETS),)
