"""Every number of the tables and figures of flatness as JSON values, by dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from swad.testbed.results.flatness_runs import (
    OVER_TARGETS,
    RunFlatness,
    curves_by_target,
    differences_by_target,
    null_pairs,
    paired_differences,
    rank_methods,
    with_mean,
)
from swad.testbed.results.flatness_stats import SIDES, Difference, FlatnessCurve, mean_difference_over_targets
from swad.testbed.results.flatness_tables import holds_for
from swad.testbed.results.labels import weights_label
from swad.testbed.results.rank_correlation import Ranking
from swad.util.grouping import group_by


def flatness_summary(measured: Sequence[RunFlatness]) -> dict[str, Any]:
    """Return every number of the tables and figures as JSON values."""
    datasets = by_dataset(measured)
    curves, domains, rankings, comparisons, differences, null = [], [], [], [], [], []
    for dataset, runs in datasets.items():
        for group, sides in with_mean(curves_by_target(runs)).items():
            for side in SIDES:
                for curve in sides.get(side, ()):
                    curves += _curve_rows(curve, dataset=dataset, group=group, side=side, method=curve.method)
        for run in runs:
            for domain, domain_curves in run.curves.items():
                for curve in domain_curves:
                    label = f"{run.target}-{run.run.trial}"
                    domains += _curve_rows(curve, dataset=dataset, run=label, domain=domain, method=curve.method)
        for side, radius, ranking in rankings_at_largest_radius(runs):
            rankings.append(
                {
                    "dataset": dataset,
                    "side": side,
                    "radius": radius,
                    "spearman": vars(ranking.spearman),
                    "kendall": vars(ranking.kendall),
                    "resampled": ranking.resampled,
                    "rows": [vars(row) for row in ranking.rows],
                }
            )
        units, prefix = paired_differences(runs), f"{dataset}, " if len(datasets) > 1 else ""
        labeled = {f"{prefix}{target}, trial {trial}": each for (target, trial), each in units.items()}
        by_target = differences_by_target(units)
        several = {target: [d for d in each if d.curve.n_trials > 1] for target, each in by_target.items()}
        if len(by_target) > 1:
            several[OVER_TARGETS] = mean_difference_over_targets(by_target)
        labeled |= {f"{prefix}{title}": each for title, each in several.items() if each}
        for label, each in labeled.items():
            for difference in each:
                method, reference, side = difference.pair
                held = holds_for([difference.curve])
                text = f"{method} against {reference} on {side} domains, {held}: {difference.verdict}"
                comparisons.append({"run": label, "side": side, "text": text})
                differences += _difference_rows(difference, label)
        for pair in null_pairs(runs):
            label = f"{prefix}{pair.target}, trial {pair.trials[1]} against {pair.trials[0]}"
            null += _difference_rows(pair.difference, label)
    return {
        "settings": {
            dataset: {**runs[0].settings, "directions": runs[0].n_directions} for dataset, runs in datasets.items()
        },
        "curves": curves,
        "domains": domains,
        "comparisons": comparisons,
        "differences": differences,
        "null": null,
        "ranking": rankings,
        "worst_case": _stored_rows(measured, "worst_case"),
        "curvature": _stored_rows(measured, "curvature"),
    }


def _curve_rows(curve: FlatnessCurve, **labels: str) -> list[dict[str, Any]]:
    columns = zip(curve.radii, curve.mean, curve.low, curve.high, strict=True)
    rows = [{**labels, "radius": radius, "mean": mean, "low": low, "high": high} for radius, mean, low, high in columns]
    if curve.n_trials > 1:  # then `low` and `high` are over trials
        measured = curve.exact_measured or (None,) * len(rows)
        rows = [{**row, "trials": curve.n_trials, "measured": m} for row, m in zip(rows, measured, strict=True)]
    return rows


def _difference_rows(difference: Difference, label: str) -> list[dict[str, Any]]:
    method, reference, side = difference.pair
    rows = _curve_rows(difference.curve, run=label, first=method, second=reference, domain=side)
    p_values = difference.p or (None,) * len(rows)
    return [{**row, "p": p} for row, p in zip(rows, p_values, strict=True)]


def _stored_rows(measured: Sequence[RunFlatness], field: str) -> list[dict[str, Any]]:
    """Return the stored rows of the worst case or the curvature, with dataset, run and method."""
    return [
        {
            "dataset": run.run.dataset,
            "run": f"{run.target}-{run.run.trial}",
            "method": weights_label(run.run, row["weights"]),
            **{key: value for key, value in row.items() if key not in ("key", "kind")},
        }
        for run in measured
        for row in getattr(run, field)
    ]


def by_dataset(measured: Sequence[RunFlatness]) -> dict[str, list[RunFlatness]]:
    """Return the measured runs of every dataset; those of a second setting, since values have no mean, by a number."""
    return {
        dataset if number == 1 else f"{dataset}, setting {number}": runs
        for dataset, members in group_by(measured, lambda run: run.run.table_name).items()
        for number, runs in enumerate(group_by(members, lambda run: run.setting).values(), start=1)
    }


def rankings_at_largest_radius(runs: Sequence[RunFlatness]) -> list[tuple[str, float, Ranking]]:
    """Return side, radius and ranking at the largest radius, for the sides that have at least three methods."""
    rankings = []
    for side in (side for side in SIDES if side in runs[0].curves):
        radius = max(runs[0].curves[side][0].radii)
        ranking = rank_methods(runs, side, radius)
        if ranking is not None:
            rankings.append((side, radius, ranking))
    return rankings


def ranking_notes(runs: Sequence[RunFlatness]) -> list[str]:
    """Say for each side whether flat methods are accurate, too."""
    return [
        f"Does a lower F at radius {radius:g} on {side} domains go with a higher accuracy on the target? Rank "
        f"correlations of {len(ranking.rows)} methods (+1: the flattest is the most accurate, and so on): "
        f"Spearman {ranking.spearman.value:+.2f} (95 % {ranking.spearman.low:+.2f} to "
        f"{ranking.spearman.high:+.2f}, {ranking.interval_over}, p = {ranking.spearman.p:.2g}), Kendall "
        f"{ranking.kendall.value:+.2f} (p = {ranking.kendall.p:.2g})."
        for side, radius, ranking in rankings_at_largest_radius(runs)
    ]
