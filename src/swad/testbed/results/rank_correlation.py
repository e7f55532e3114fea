"""Rank correlation between flatness and accuracy of several methods, with its p-value and interval.

The paper's appendix D.1 says that flatness-aware solvers have the same order by local flatness as by accuracy on unseen
domains. Kendall's tau-b measures this: concordant minus discordant pairs of methods, divided by the number of pairs
without ties. It is +1 if the flattest method is the most accurate, the second flattest the second most accurate, and
so on. A few methods prove little, so it comes with an exact permutation test and a bootstrap interval. The bootstrap
cannot know methods that were not measured, and may be too sure. So the interval is widened to include 0 where the test
does not reject 0. With fewer than five methods, no order is significant, and the interval is -1 to 1.

>>> order = ranking({"ERM": 0.9, "SAM": 0.6, "SWA": 0.5, "SWAD": 0.2}, {"ERM": 0.855, "SAM": 0.858, "SWA": 0.869,
...                 "SWAD": 0.881})
>>> order.tau, round(order.p, 3), order.low, order.high
(1.0, 0.083, -1.0, 1.0)
>>> list(order.methods.index)
['SWAD', 'SWA', 'SAM', 'ERM']
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING, Any

from swad.util.paired import ALPHA

if TYPE_CHECKING:
    import pandas as pd

Values = float | Sequence[float]
"""One number, or one for each unit (target or trial). All methods have the same units in the same order."""

EXACT_UP_TO = 8
"""Up to this number of methods, the test enumerates all permutations (40,320); beyond it, it draws 20,000."""


@dataclass(frozen=True)
class Ranking:
    """The methods from flattest to sharpest, and the correlation of that order with the order of accuracy."""

    methods: pd.DataFrame
    """flatness, accuracy, flatness_rank, accuracy_rank by method; rank 1 is the flattest and the most accurate."""
    tau: float
    """Kendall's tau-b."""
    low: float
    high: float
    """The 95 % interval, which excludes 0 only if the test rejects 0."""
    p: float
    """Two-sided p-value of the permutation test."""
    resampled: str
    """What the bootstrap resamples: "units" (targets and trials) or "methods"."""

    @property
    def interval_over(self) -> str:
        """`resampled` as a phrase, or that there are too few methods for an interval."""
        if (self.low, self.high) == (-1, 1):
            return f"which excludes nothing, with {len(self.methods)} methods"
        return "resampled over targets and trials" if self.resampled == "units" else "resampled over methods"

    @property
    def same_order(self) -> bool:
        """Whether both orders are the same, as in appendix D.1."""
        return bool((self.methods["flatness_rank"] == self.methods["accuracy_rank"]).all())


def ranking(
    flatness: Mapping[str, Values], accuracy: Mapping[str, Values], *, n_resamples: int = 2000, seed: int = 0
) -> Ranking:
    """Correlate the order of flatness (a small F is flat) with the order of accuracy over methods.

    Args:
        flatness: F by method: one number, or one for each unit (target or trial).
        accuracy: Accuracy by method, in the same form. With one number per unit, the intervals resample units and show
            how much the order depends on the domains. With one number per method, they resample methods, which says
            little for a few of them.
        n_resamples: Number of bootstrap resamples.
        seed: Seed of the resamples.
    """
    import numpy as np
    import pandas as pd

    names = sorted(flatness)
    if names != sorted(accuracy) or len(names) < 3:
        raise ValueError(
            "a ranking needs flatness and accuracy of the same three methods or more, got "
            f"{', '.join(names) or 'none'} and {', '.join(sorted(accuracy)) or 'none'}"
        )
    flat, good = _table(flatness, names), _table(accuracy, names)
    rng = np.random.default_rng(seed)
    means = flat.mean(1), good.mean(1)
    by_unit = flat.shape[1] > 1 and flat.shape == good.shape
    if by_unit:
        units = rng.integers(flat.shape[1], size=(n_resamples, flat.shape[1]))
        resamples = flat[:, units].mean(2).T, good[:, units].mean(2).T
    else:
        drawn = rng.integers(len(names), size=(n_resamples, len(names)))
        resamples = means[0][drawn], means[1][drawn]
    taus = kendall(-resamples[0], resamples[1])
    taus = taus[np.isfinite(taus)]  # a resample with a single method has no order
    low, high = np.quantile(taus, [ALPHA / 2, 1 - ALPHA / 2]).tolist() if len(taus) else (math.nan, math.nan)
    tau, p = float(kendall(-means[0], means[1])), _p_value(-means[0], means[1], rng)
    if 2 / math.factorial(len(names)) > ALPHA:
        low, high = -1.0, 1.0
    elif p > ALPHA:
        low, high = min(low, 0.0), max(high, 0.0)
    methods = pd.DataFrame({"flatness": means[0], "accuracy": means[1]}, index=pd.Index(names, name="method"))
    ranks = {
        "flatness_rank": methods["flatness"].rank(),
        "accuracy_rank": methods["accuracy"].rank(ascending=False),
    }
    methods = methods.assign(**ranks).sort_values("flatness_rank", kind="stable")
    return Ranking(methods, tau, low, high, p, "units" if by_unit else "methods")


def _table(values: Mapping[str, Values], methods: Sequence[str]) -> Any:
    """Return the values as an array, methods x units."""
    import numpy as np

    rows = [np.atleast_1d(np.asarray(values[method], dtype=float)) for method in methods]
    if len({len(row) for row in rows}) > 1 or not all(len(row) and np.isfinite(row).all() for row in rows):
        raise ValueError("a ranking needs finite numbers, and the same number of them for every method")
    return np.stack(rows)


def kendall(first: Any, second: Any) -> Any:
    """Return Kendall's tau-b along the last dimension of arrays; nan where all values are equal."""
    import numpy as np

    # `scipy.stats.kendalltau` takes one pair of samples; bootstrap and permutation test have thousands.
    x, y = (np.sign(values[..., :, None] - values[..., None, :]) for values in (first, second))
    pairs = (-2, -1)
    with np.errstate(invalid="ignore"):
        return (x * y).sum(pairs) / np.sqrt((x * x).sum(pairs) * (y * y).sum(pairs))


def _p_value(first: Any, second: Any, rng: Any) -> float:
    """Return the two-sided p-value: the share of permutations with a correlation at least as far from 0.

    With ties, correlations are not distributed symmetrically around 0, so twice the smaller tail would differ.
    """
    import numpy as np

    n, tau = len(first), abs(kendall(first, second))
    if math.isnan(tau):
        return math.nan
    if n <= EXACT_UP_TO:
        orders = np.array(list(permutations(range(n))))
    else:  # the order itself is one of those drawn, so that no p-value is 0
        orders = np.concatenate([[np.arange(n)], rng.permuted(np.tile(np.arange(n), (20_000, 1)), axis=1)])
    parts = np.array_split(orders, math.ceil(len(orders) / 5000))  # of a size that fits into memory
    far = sum(int((np.abs(kendall(first[part], second)) >= tau - 1e-9).sum()) for part in parts)
    return far / len(orders)
