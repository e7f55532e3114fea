"""What SWAD's evaluations cost: the model of the paper's complexity appendix, beside what runs took.

An epoch of training takes twice as long an image as an evaluation (forward and backward), so with r = training /
validation images and v evaluations an epoch, evaluating more often than a baseline (v_b) makes training longer by

    (2 r + v) / (2 r + v_b).

v follows from the length of an epoch, and there the printed figures (1.07 for PACS to 1.27 for DomainNet) count the
held-out domain as if it were trained on. Both are given here: `counted="all"` as printed, `counted="sources"` as it
is. The published code also evaluates the target each time, which the formula leaves out: `ratio_with_target`.

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
"""Updates between two evaluations in DomainBed, which the paper compares with, where they are not `USUAL_EVERY`."""
USUAL_EVERY = 300


@dataclass(frozen=True)
class Cost:
    """The model's overhead for one target, or with `target` None over all of them."""

    target: str | None
    counted: Literal["all", "sources"]
    """What an epoch is made of: all domains, as the paper's figures have it, or the sources."""
    epoch: float
    """Updates an epoch."""
    evaluations: float
    """Evaluations an epoch: v."""
    baseline: float
    """The baseline's evaluations an epoch: v_b."""
    ratio: float
    """(2r + v) / (2r + v_b)."""
    ratio_with_target: float | None
    """The same where every evaluation passes over the target too. None where it counts as trained on."""


@dataclass(frozen=True)
class MeasuredCost:
    """What a finished run took, and how much longer that is than with the baseline's evaluations."""

    run: str
    updates: int
    evaluations: int
    seconds_total: float
    seconds_per_step: float
    seconds_evaluation: float
    """Includes the last word on every kind of weights, on sources and target."""
    ratio: float
    """(steps + evaluations) / (steps + the baseline's share of the evaluations), in measured seconds."""


def overhead(r: float, v: float, v_b: float) -> float:
    """How many times longer training takes with v evaluations an epoch than with v_b.

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
    """The model's overhead, as printed and with the sources alone, for every target and on average.

    `counts` is a known dataset's name, or the images of every domain. `batch_size` is that of one domain.
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
            # An evaluation of the sources is n / (r + 1) images long; with the target it is that much longer.
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
    """What finished runs took, from their records, beside what they would have taken with fewer evaluations.

    `baseline_every` is by default that of each run's dataset, as in `cost`.
    The time of the final measurements is part of the records' evaluation time, so the ratio is an upper bound.
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
                f"{'+'.join(run.targets)}-{run.trial}",
                updates,
                evaluations,
                timings["seconds_total"],
                timings["seconds_per_step"],
                evaluation,
                (training + evaluation) / (training + fewer * evaluation),
            )
        )
    if not rows:
        raise ValueError("no finished run with timings among them: measured costs need one")
    return rows
