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

from swad.results.runs import RunData, find_runs

BASELINE_EVERY = {"domainnet": 1000}
"""Updates between two evaluations in DomainBed, the paper's baseline, for datasets other than `USUAL_EVERY`."""
USUAL_EVERY = 300


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


def overhead(r: float, v: float, v_b: float) -> float:
    """Return how many times longer training takes with v evaluations per epoch than with v_b.

    >>> overhead(4, 3, 1)
    1.2222222222222223
    """
    if not (r > 0 and v >= 0 and v_b >= 0 and math.isfinite(r + v + v_b)):
        raise ValueError(f"the overhead needs r above 0, v and v_b of 0 or more, got r={r}, v={v}, v_b={v_b}")
    return (2 * r + v) / (2 * r + v_b)


def cost(
    counts: str | Mapping[str, int],
    *,
    evaluate_every: int | None = None,
    baseline_every: int | None = None,
    batch_size: int = 32,
    train_share: float = 0.8,
) -> list[Cost]:
    """Model the overhead, as printed and with the sources alone, for every target and on average.

    Args:
        counts: Name of a known dataset, or the number of images of every domain.
        evaluate_every: Updates between two evaluations; by default the dataset's.
        baseline_every: The same for the baseline; by default DomainBed's.
        batch_size: Images per domain and update.
        train_share: Share of the images that are trained on.
    """
    every, baseline = evaluate_every, baseline_every
    if isinstance(counts, str):
        from swad.data import benchmarks

        benchmark = benchmarks.get(counts)
        if not benchmark.counts:
            raise ValueError(f"dataset {benchmark.name} has no fixed counts: give the images of every domain")
        every = every or benchmark.defaults.evaluate_every
        baseline = baseline or _baseline_every(benchmark.name)
        counts = benchmark.counts
    if every is None or baseline is None:
        raise ValueError("with counts of your own, give evaluate_every and baseline_every")
    if len(counts) < 2 or min(counts.values()) < 1:
        raise ValueError(f"the cost needs two domains or more with an image each, got {dict(counts)}")
    if not (min(every, baseline, batch_size) >= 1 and 0 < train_share < 1):
        raise ValueError(
            "evaluations and batches count from 1 and the training share lies between 0 and 1, got "
            f"evaluate_every={every}, baseline_every={baseline}, batch_size={batch_size}, train_share={train_share}"
        )
    r = train_share / (1 - train_share)

    def row(target: str | None, counted: Literal["all", "sources"], images: float, held_out: float | None) -> Cost:
        epoch = images * train_share / (batch_size * (len(counts) - 1))
        v, v_b = epoch / every, epoch / baseline
        with_target = None
        if held_out is not None:
            # Evaluating the sources takes n / (r + 1) images; the target adds its own.
            longer = 1 + held_out * (r + 1) / images
            with_target = overhead(r, v * longer, v_b * longer)
        return Cost(target, counted, epoch, v, v_b, overhead(r, v, v_b), with_target)

    total = sum(counts.values())
    rows = [row(name, "sources", total - n, n) for name, n in counts.items()]
    mean = {
        field: math.fsum(getattr(one, field) for one in rows) / len(rows)
        for field in ("epoch", "evaluations", "baseline", "ratio", "ratio_with_target")
    }
    return [row(None, "all", total, None), Cost(None, "sources", **mean), *rows]


def _baseline_every(dataset: str) -> int:
    return BASELINE_EVERY.get(dataset.lower(), USUAL_EVERY)


def measured_cost(runs: str | Path | Sequence[RunData], baseline_every: int | None = None) -> list[MeasuredCost]:
    """Return the measured time of finished runs and its ratio to the time with the baseline's evaluations.

    `baseline_every` defaults to that of each run's dataset, as in `cost`. The recorded evaluation time includes the
    final evaluation, so the ratio is an upper bound.
    """
    found = find_runs(runs) if isinstance(runs, str | Path) else runs
    rows = []
    for run in found:
        timings = {r.metric: r.value for r in run.records if r.metric.startswith("seconds_")}
        evaluations = len({r.step for r in run.records if r.metric == "valley_loss" and r.average is None})
        updates = max((r.step for r in run.records), default=0)
        if not run.finished or len(timings) < 3 or not evaluations:
            continue
        training = timings["seconds_per_step"] * updates
        evaluation = timings["seconds_evaluation"]
        fewer = min(1.0, updates / (baseline_every or _baseline_every(run.dataset)) / evaluations)
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
