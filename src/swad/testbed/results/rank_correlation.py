"""Rank correlation between flatness and accuracy of several methods, with its p-value and interval.

The paper's appendix D.1 says that flatness-aware solvers have the same order by local flatness as by accuracy on unseen
domains. Spearman's and Kendall's rank correlations measure this: they are +1 if the flattest method is the most
accurate, the second flattest the second most accurate, and so on. A few methods prove little, so each correlation comes
with an exact permutation test and a bootstrap interval. The bootstrap cannot know methods that were not measured, and
may be too sure. So the interval is widened to include 0 where the test does not reject 0. With fewer than five methods,
no order is significant, and the interval is -1 to 1.

>>> order = ranking({"ERM": 0.9, "SAM": 0.6, "SWA": 0.5, "SWAD": 0.2}, {"ERM": 0.855, "SAM": 0.858, "SWA": 0.869,
...                 "SWAD": 0.881})
>>> order.spearman.value, order.kendall.value, round(order.spearman.p, 3)
(1.0, 1.0, 0.083)
>>> order.spearman.low, order.spearman.high
(-1.0, 1.0)
>>> [row.method for row in order.rows]
['SWAD', 'SWA', 'SAM', 'ERM']
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Values = float | Sequence[float]
"""One number, or one for each unit (target or trial). All methods have the same units in the same order."""

Statistic = Callable[[Any, Any], Any]

EXACT_UP_TO = 8
"""Up to this number of methods, the test enumerates all permutations (40,320); beyond it, it draws 20,000."""


@dataclass(frozen=True)
class RankedMethod:
    """A method with its flatness and accuracy, and its rank by both: 1 is the flattest and the most accurate."""

    method: str
    flatness: float
    accuracy: float
    flatness_rank: float
    accuracy_rank: float


@dataclass(frozen=True)
class Correlation:
    """A rank correlation, its 95 % interval, and the two-sided p-value of the permutation test.

    The interval excludes 0 only if the test rejects 0.
    """

    value: float
    low: float
    high: float
    p: float


@dataclass(frozen=True)
class Ranking:
    """The methods from flattest to sharpest, and the correlation of that order with the order of accuracy."""

    rows: tuple[RankedMethod, ...]
    spearman: Correlation
    kendall: Correlation
    resampled: str
    """What the bootstrap resamples: "units" (targets and trials) or "methods"."""

    @property
    def interval_over(self) -> str:
        """`resampled` as a phrase, or that there are too few methods for an interval."""
        if (self.spearman.low, self.spearman.high) == (-1, 1):
            return f"which excludes nothing, with {len(self.rows)} methods"
        return "resampled over targets and trials" if self.resampled == "units" else "resampled over methods"

    @property
    def same_order(self) -> bool:
        """Whether both orders are the same, as in appendix D.1."""
        return all(row.flatness_rank == row.accuracy_rank for row in self.rows)


def ranking(
    flatness: Mapping[str, Values],
    accuracy: Mapping[str, Values],
    *,
    n_resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> Ranking:
    """Correlate the order of flatness (a small F is flat) with the order of accuracy over methods.

    Args:
        flatness: F by method: one number, or one for each unit (target or trial).
        accuracy: Accuracy by method, in the same form. With one number per unit, the intervals resample units and show
            how much the order depends on the domains. With one number per method, they resample methods, which says
            little for a few of them.
        n_resamples: Number of bootstrap resamples.
        level: Confidence level of the intervals.
        seed: Seed of the resamples.
    """
    import numpy as np

    methods = sorted(flatness)
    if methods != sorted(accuracy) or len(methods) < 3:
        raise ValueError(
            "a ranking needs flatness and accuracy of the same three methods or more, got "
            f"{', '.join(methods) or 'none'} and {', '.join(sorted(accuracy)) or 'none'}"
        )
    flatness_table, accuracy_table = _table(flatness, methods), _table(accuracy, methods)
    if not 0 < level < 1 or n_resamples < 1:
        raise ValueError(f"level must be between 0 and 1 and n_resamples at least 1; got {level} and {n_resamples}")

    rng = np.random.default_rng(seed)
    mean_flatness, mean_accuracy = flatness_table.mean(1), accuracy_table.mean(1)
    by_unit = flatness_table.shape[1] > 1 and flatness_table.shape == accuracy_table.shape
    if by_unit:
        units = rng.integers(flatness_table.shape[1], size=(n_resamples, flatness_table.shape[1]))
        resamples = flatness_table[:, units].mean(2).T, accuracy_table[:, units].mean(2).T
    else:
        drawn = rng.integers(len(methods), size=(n_resamples, len(methods)))
        resamples = mean_flatness[drawn], mean_accuracy[drawn]

    def correlation(statistic: Statistic) -> Correlation:
        values = statistic(*resamples)
        values = values[np.isfinite(values)]  # a resample with a single method has no order
        tail = (1 - level) / 2
        low, high = np.quantile(values, [tail, 1 - tail]) if len(values) else (math.nan, math.nan)
        value, p = (
            float(statistic(mean_flatness, mean_accuracy)),
            _p_value(statistic, mean_flatness, mean_accuracy, seed),
        )
        if 2 / math.factorial(len(methods)) > 1 - level:
            low, high = -1.0, 1.0
        elif p > 1 - level:
            low, high = min(low, 0.0), max(high, 0.0)
        return Correlation(value, float(low), float(high), p)

    flatness_ranks, accuracy_ranks = _ranks(mean_flatness), _ranks(-mean_accuracy)
    order = sorted(range(len(methods)), key=lambda i: (flatness_ranks[i], methods[i]))
    rows = tuple(
        RankedMethod(
            methods[i],
            float(mean_flatness[i]),
            float(mean_accuracy[i]),
            float(flatness_ranks[i]),
            float(accuracy_ranks[i]),
        )
        for i in order
    )
    return Ranking(rows, correlation(_spearman), correlation(_kendall), "units" if by_unit else "methods")


def _table(values: Mapping[str, Values], methods: Sequence[str]) -> Any:
    """Return the values as an array, methods x units."""
    import numpy as np

    rows = [np.atleast_1d(np.asarray(values[method], dtype=float)) for method in methods]
    if len({len(row) for row in rows}) > 1 or not all(len(row) and np.isfinite(row).all() for row in rows):
        raise ValueError("a ranking needs finite numbers, and the same number of them for every method")
    return np.stack(rows)


def _ranks(values: Any) -> Any:
    from scipy.stats import rankdata

    return rankdata(values, axis=-1)


# scipy.stats.spearmanr and kendalltau take one pair of samples. The bootstrap and the permutation test need the
# correlations of thousands of pairs, so both are computed here along the last dimension.


def _spearman(flatness: Any, accuracy: Any) -> Any:
    """Return Spearman's rho: Pearson's correlation of the ranks."""
    import numpy as np

    x, y = _ranks(-flatness), _ranks(accuracy)
    x, y = x - x.mean(-1, keepdims=True), y - y.mean(-1, keepdims=True)
    return _divide((x * y).sum(-1), np.sqrt((x * x).sum(-1) * (y * y).sum(-1)))


def _kendall(flatness: Any, accuracy: Any) -> Any:
    """Return Kendall's tau-b: concordant minus discordant pairs, divided by the number of pairs without ties."""
    import numpy as np

    x, y = (np.sign(values[..., :, None] - values[..., None, :]) for values in (-flatness, accuracy))
    pairs = (-2, -1)
    return _divide((x * y).sum(pairs), np.sqrt((x * x).sum(pairs) * (y * y).sum(pairs)))


def _divide(numerator: Any, denominator: Any) -> Any:
    """Return the quotient; nan where all values are equal, so that there is no order."""
    import numpy as np

    shape = np.broadcast(numerator, denominator).shape
    return np.divide(numerator, denominator, out=np.full(shape, np.nan), where=denominator > 0)


def _p_value(statistic: Statistic, flatness: Any, accuracy: Any, seed: int) -> float:
    """Return the two-sided p-value: the share of permutations with a correlation at least as far from 0.

    With ties, correlations are not distributed symmetrically around 0, so twice the smaller tail would differ.
    """
    import numpy as np
    from scipy.stats import permutation_test

    if not np.isfinite(statistic(flatness, accuracy)):
        return math.nan
    result = permutation_test(
        (flatness,),
        lambda x, axis: np.abs(statistic(np.moveaxis(x, axis, -1), accuracy)),
        permutation_type="pairings",
        vectorized=True,
        batch=10_000,
        n_resamples=np.inf if len(flatness) <= EXACT_UP_TO else 20_000,
        alternative="greater",
        rng=np.random.default_rng(seed),
    )
    return float(result.pvalue)
