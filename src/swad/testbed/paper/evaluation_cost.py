"""The cost of SWAD's evaluations: the model of the paper's appendix G, and the measured cost of finished runs.

Training takes twice as long per image as evaluation (forward and backward). With r = training / validation images
and v evaluations per epoch, evaluating more often than a baseline (v_b) makes training longer by the factor

    (2 r + v) / (2 r + v_b).

v follows from the length of an epoch. The printed values (1.07 for PACS to 1.27 for DomainNet) count the held-out
domain as training data. Both are given here: `counted="all"` as printed, and `counted="sources"` with the sources
alone. The published code also evaluates the target each time, which the formula leaves out: `ratio_with_target`.

>>> rows = cost("PACS")
>>> [f"{row.counted} {row.ratio:.2f}" for row in rows if row.target is None]
['all 1.07', 'sources 1.05']
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from swad.testbed.results.records import LIVE
from swad.testbed.results.run_data import RunData
from swad.testbed.results.runs import find_runs

BASELINE_EVERY = {"domainnet": 1000}
"""Updates between two evaluations in DomainBed, the paper's baseline, for datasets other than `USUAL_EVERY`."""
USUAL_EVERY = 300

BATCH_SIZE, TRAIN_SHARE = 32, 0.8
"""Images per domain and update, and the share of the images that are trained on: r = 4."""


@dataclass(frozen=True)
class Cost:
    """The modeled overhead for one target, or over all targets if `target` is None."""

    target: str | None
    counted: Literal["all", "sources"]
    """The domains that an epoch counts: all, as in the paper's figures, or the sources."""
    epoch: float
    """Updates per epoch."""
    evaluations: float
    """Evaluations per epoch: v."""
    baseline: float
    """The baseline's evaluations per epoch: v_b."""
    ratio: float
    """(2r + v) / (2r + v_b)."""
    ratio_with_target: float | None
    """The ratio if every evaluation includes the target. None if the target counts as training data."""


@dataclass(frozen=True)
class MeasuredCost:
    """The time of a finished run, and its ratio to the time with the baseline's evaluations."""

    run: str
    updates: int
    evaluations: int
    seconds_total: float
    seconds_per_step: float
    seconds_evaluation: float
    """Includes the final evaluation of all weights, on sources and target."""
    ratio: float
    """(steps + evaluations) / (steps + the baseline's share of the evaluations), in measured seconds."""


def cost(dataset: str, evaluate_every: int | None = None) -> list[Cost]:
    """Model the overhead, as printed and with the sources alone, on average and for every target.

    Args:
        dataset: Name of a dataset whose number of images is known.
        evaluate_every: Updates between two evaluations; by default the dataset's.
    """
    from swad.testbed.data import benchmarks

    benchmark = benchmarks.get(dataset)
    if not benchmark.counts:
        raise ValueError(f"dataset {benchmark.name} has no fixed number of images: the cost needs one of the paper's")
    every = evaluate_every or benchmark.defaults.evaluate_every
    return model_cost(benchmark.counts, every, _baseline_every(benchmark.name))


def model_cost(counts: Mapping[str, int], every: int, baseline: int) -> list[Cost]:
    """Model the overhead from the number of images of every domain and the updates between two evaluations."""
    r = TRAIN_SHARE / (1 - TRAIN_SHARE)

    def row(target: str | None, counted: Literal["all", "sources"], images: float, held_out: float | None) -> Cost:
        epoch = images * TRAIN_SHARE / (BATCH_SIZE * (len(counts) - 1))
        v, v_b = epoch / every, epoch / baseline
        with_target = None
        if held_out is not None:
            # Evaluating the sources takes n / (r + 1) images; the target adds its own.
            longer = 1 + held_out * (r + 1) / images
            with_target = (2 * r + v * longer) / (2 * r + v_b * longer)
        return Cost(target, counted, epoch, v, v_b, (2 * r + v) / (2 * r + v_b), with_target)

    total = sum(counts.values())
    rows = [row(name, "sources", total - n, n) for name, n in counts.items()]
    mean = {
        field: math.fsum(getattr(target, field) for target in rows) / len(rows)
        for field in ("epoch", "evaluations", "baseline", "ratio", "ratio_with_target")
    }
    return [row(None, "all", total, None), Cost(None, "sources", **mean), *rows]


def _baseline_every(dataset: str) -> int:
    return BASELINE_EVERY.get(dataset.lower(), USUAL_EVERY)


def measured_cost(runs: str | Path | Sequence[RunData]) -> list[MeasuredCost]:
    """Return the measured time of finished runs and its ratio to the time with the baseline's evaluations.

    The recorded evaluation time includes the final evaluation, so the ratio is an upper bound.
    """
    found = find_runs(runs) if isinstance(runs, str | Path) else runs
    rows = []
    for run in found:
        records = run.frame
        timings = {
            m: v for m, v in zip(records.metric, records.value.tolist(), strict=True) if m.startswith("seconds_")
        }
        evaluations = records.step[(records.metric == "valley_loss") & (records.weights == LIVE)].nunique()
        updates = int(records.step.max()) if len(records) else 0
        if not run.finished or len(timings) < 3 or not evaluations:
            continue
        training = timings["seconds_per_step"] * updates
        evaluation = timings["seconds_evaluation"]
        fewer = min(1.0, updates / _baseline_every(run.dataset) / evaluations)
        rows.append(
            MeasuredCost(
                f"{run.target}-{run.trial}",
                updates,
                evaluations,
                timings["seconds_total"],
                timings["seconds_per_step"],
                evaluation,
                (training + evaluation) / (training + fewer * evaluation),
            )
        )
    if not rows:
        raise ValueError("measured costs need at least one finished run with timings, got none")
    return rows
