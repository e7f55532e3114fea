"""Ranks of methods over datasets or runs: Friedman's test, average ranks and the critical difference.

On every dataset the best method has rank 1. Friedman's test asks whether the average ranks differ at all, and
Nemenyi's test which of them differ: those that are further apart than the critical difference (Demšar 2006). Ranks say
nothing about the size of a difference; see `swad.testbed.results.compare` for that.

>>> scores = {"ERM": [0.80, 0.70, 0.60, 0.50], "SWA": [0.82, 0.71, 0.63, 0.55], "SWAD": [0.85, 0.74, 0.66, 0.56]}
>>> ranked = rank_scores(scores, "datasets")
>>> ranked.ranks, round(ranked.friedman_p, 3), round(ranked.critical_difference, 2)
({'SWAD': 1.0, 'SWA': 2.0, 'ERM': 3.0}, 0.018, 1.66)
>>> ranked.differ("SWAD", "ERM"), ranked.differ("SWAD", "SWA")
(True, False)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from swad.testbed.results.compare import complete_trials, p_text
from swad.testbed.results.selection import DatasetResults, same_kind
from swad.util.paired import ALPHA, LEVEL
from swad.util.statistics import mean

RANKS_NEED = "they need three methods or more, all of them with results in the same two trials, or on two datasets"
"""When `rank_results` returns None."""


@dataclass(frozen=True)
class MethodRanks:
    """Average ranks of methods, best first, with Friedman's p-value and Nemenyi's critical difference."""

    ranks: Mapping[str, float]
    blocks: str
    """What the methods are ranked on: "datasets" or "runs"."""
    n_blocks: int
    friedman_p: float
    critical_difference: float

    def differ(self, first: str, second: str) -> bool:
        """Return whether two methods differ significantly, by both Friedman's test and Nemenyi's."""
        return self.friedman_p <= ALPHA and abs(self.ranks[first] - self.ranks[second]) > self.critical_difference

    def alike(self) -> list[tuple[str, str]]:
        """Return the first and the last method of every longest group without a significant difference."""
        names = list(self.ranks)
        last = [max(n for n in range(i, len(names)) if not self.differ(name, names[n])) for i, name in enumerate(names)]
        starts = [i for i, end in enumerate(last) if end > i and (i == 0 or last[i - 1] < end)]
        return [(names[i], names[last[i]]) for i in starts]

    @property
    def summary(self) -> str:
        """What was ranked and what Friedman's test says, in two sentences."""
        count = f"Average rank of {len(self.ranks)} methods on {self.n_blocks} {self.blocks} (1 is the best)."
        p = f"p {p_text(self.friedman_p)}" if self.friedman_p < 0.0001 else f"p = {p_text(self.friedman_p)}"
        if self.friedman_p <= ALPHA:
            return f"{count} A bar joins methods that do not differ significantly by Nemenyi’s test (Friedman {p})."
        return f"{count} Friedman’s test shows no difference between the methods ({p}), so one bar joins all."


def rank_scores(scores: Mapping[str, Sequence[float]], blocks: str) -> MethodRanks:
    """Rank methods on each block, where the highest score has rank 1 and equal scores share their ranks.

    Args:
        scores: The scores of every method, one for each block, in the same order.
        blocks: What the blocks are, for the sentences.
    """
    import numpy as np

    if len(scores) < 3 or len({len(each) for each in scores.values()}) > 1 or len(next(iter(scores.values()))) < 2:
        sizes = ", ".join(f"{label}: {len(each)}" for label, each in scores.items())
        raise ValueError(f"ranks need three methods or more with scores on the same two blocks or more; got {sizes}")
    table = np.array(list(scores.values()), dtype=float).T  # blocks x methods
    if not np.isfinite(table).all():
        raise ValueError("ranks need finite scores")
    try:
        from scipy.stats import friedmanchisquare, rankdata, studentized_range
    except ImportError:
        raise ImportError("ranks of methods need scipy: pip install 'swad[report]'") from None
    labels, (n, k) = list(scores), table.shape
    average = rankdata(-table, axis=1).mean(0)
    order = sorted(range(k), key=lambda index: average[index])
    with np.errstate(invalid="ignore", divide="ignore"):
        friedman_p = float(friedmanchisquare(*table.T).pvalue)
    if math.isnan(friedman_p):  # all scores are equal
        friedman_p = 1.0
    quantile = studentized_range.ppf(LEVEL, k, np.inf) / math.sqrt(2)
    return MethodRanks(
        {labels[index]: float(average[index]) for index in order},
        blocks,
        n,
        friedman_p,
        float(quantile * math.sqrt(k * (k + 1) / (6 * n))),
    )


def rank_results(results: Sequence[DatasetResults]) -> MethodRanks | None:
    """Rank the methods that all datasets have by their mean accuracies; on one dataset, over its targets and trials.

    None unless there are three methods, and two datasets or two complete trials, all with targets or all without.
    """
    labels = [name for name in results[0].methods if all(name in each.methods for each in results)] if results else []
    if len(labels) < 3 or not same_kind(results):
        return None
    by_dataset = [complete_trials(each.units[labels]) for each in results]
    if any(units.empty for units in by_dataset):
        return None
    if len(results) > 1:
        return rank_scores({label: [mean(units[label]) for units in by_dataset] for label in labels}, "datasets")
    (units,) = by_dataset
    if len(units.index.unique("trial")) < 2:
        return None
    return rank_scores({label: list(units[label]) for label in labels}, "runs")
