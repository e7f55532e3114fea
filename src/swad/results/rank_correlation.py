"""Whether the flatter of several methods is the better one: rank correlations with what they are worth.

The paper's appendix D.1 says that flatness-aware solvers rank the same by local flatness as by accuracy on domains
never seen. Here that is a number: Spearman's and Kendall's correlation between the two orders, +1 when the flattest
method is the most accurate, and so on down. Few methods prove little, so each comes with the exact share of all
orders that agree at least as well by chance, and with an interval by bootstrap.

>>> order = ranking({"ERM": 0.9, "SAM": 0.6, "SWA": 0.5, "SWAD": 0.2}, {"ERM": 0.855, "SAM": 0.858, "SWA": 0.869,
...                 "SWAD": 0.881})
>>> order.spearman.value, order.kendall.value, round(order.spearman.p, 3)
(1.0, 1.0, 0.083)
>>> [row.method for row in order.rows]
['SWAD', 'SWA', 'SAM', 'ERM']
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Values = float | Sequence[float]
"""One number, or one for each unit (a target, a trial) that all methods share in the same order."""

Statistic = Callable[[Any, Any], Any]

EXACT_UP_TO = 8
"""Methods up to which all orders are tried (40,320); beyond, 20,000 drawn ones."""


@dataclass(frozen=True)
class Ranked:
    """One method: what was measured, and its place in both orders, 1 being flattest and most accurate."""

    method: str
    flatness: float
    accuracy: float
    flatness_rank: float
    accuracy_rank: float


@dataclass(frozen=True)
class Correlation:
    """A rank correlation, its interval, and the share of orders that agree as well or better, either way round."""

    value: float
    low: float
    high: float
    p: float


@dataclass(frozen=True)
class Ranking:
    """The methods from flattest to sharpest, and how well that order is the order of accuracy."""

    rows: tuple[Ranked, ...]
    spearman: Correlation
    kendall: Correlation
    resampled: str
    """What the intervals are over: "units" (targets, trials) or "methods"."""

    @property
    def interval_over(self) -> str:
        """The same in words, for a sentence."""
        return "resampled over targets and trials" if self.resampled == "units" else "resampled over methods"

    @property
    def same_order(self) -> bool:
        """Whether the two orders are the same, as appendix D.1 says of its five methods."""
        return all(row.flatness_rank == row.accuracy_rank for row in self.rows)

    def figure(self) -> Figure:
        """Flatness against accuracy, a point for each method."""
        from swad.results.figures.flatness import ranking_figure

        return ranking_figure(self)


def ranking(
    flatness: Mapping[str, Values],
    accuracy: Mapping[str, Values],
    *,
    n_resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> Ranking:
    """Correlate the order of flatness (small F is flat) with the order of accuracy, over methods.

    Where every method has a value for each unit (target or trial), the intervals resample units, and say how far the
    order hangs on which domains were looked at. With one number a method they resample methods, which for few of
    them says little.
    """
    import numpy as np

    methods = sorted(flatness)
    if methods != sorted(accuracy) or len(methods) < 3:
        raise ValueError(
            "a ranking needs flatness and accuracy of the same three methods or more, got "
            f"{', '.join(methods) or 'none'} and {', '.join(sorted(accuracy)) or 'none'}"
        )
    f = np.array([_row(flatness[name]) for name in methods], dtype=float) if _alike(flatness) else None
    a = np.array([_row(accuracy[name]) for name in methods], dtype=float) if _alike(accuracy) else None
    if f is None or a is None or not (np.isfinite(f).all() and np.isfinite(a).all()):
        raise ValueError("a ranking needs finite numbers, as many for every method: leave out what was not measured")
    if not 0 < level < 1 or n_resamples < 1:
        raise ValueError(f"level lies between 0 and 1 and n_resamples from 1 on, got {level} and {n_resamples}")

    rng = np.random.default_rng(seed)
    flat, good = f.mean(1), a.mean(1)
    paired = f.shape[1] > 1 and f.shape == a.shape
    if paired:
        units = rng.integers(f.shape[1], size=(n_resamples, f.shape[1]))
        drawn = f[:, units].mean(2).T, a[:, units].mean(2).T
    else:
        some = rng.integers(len(methods), size=(n_resamples, len(methods)))
        drawn = flat[some], good[some]

    def correlation(statistic: Statistic) -> Correlation:
        found = statistic(*drawn)
        found = found[np.isfinite(found)]  # a resample of one method alone has no order
        tail = (1 - level) / 2
        low, high = np.quantile(found, [tail, 1 - tail]) if len(found) else (math.nan, math.nan)
        return Correlation(float(statistic(flat, good)), float(low), float(high), _chance(statistic, flat, good, seed))

    ranks, places = _ranks(flat), _ranks(-good)
    order = sorted(range(len(methods)), key=lambda i: (ranks[i], methods[i]))
    rows = tuple(Ranked(methods[i], float(flat[i]), float(good[i]), float(ranks[i]), float(places[i])) for i in order)
    return Ranking(rows, correlation(_spearman), correlation(_kendall), "units" if paired else "methods")


def _row(values: Values) -> list[float]:
    return [float(values)] if isinstance(values, int | float) else [float(value) for value in values]


def _alike(values: Mapping[str, Values]) -> bool:
    lengths = {len(_row(one)) for one in values.values()}
    return len(lengths) == 1 and 0 not in lengths


def _ranks(values: Any) -> Any:
    from scipy.stats import rankdata

    return rankdata(values, axis=-1)


# scipy has both correlations for one pair of rows. A bootstrap and all orders need them for many at once.


def _spearman(flatness: Any, accuracy: Any) -> Any:
    """Pearson's correlation of the ranks, along the last dimension."""
    import numpy as np

    x, y = _ranks(-flatness), _ranks(accuracy)
    x, y = x - x.mean(-1, keepdims=True), y - y.mean(-1, keepdims=True)
    return _over((x * y).sum(-1), np.sqrt((x * x).sum(-1) * (y * y).sum(-1)))


def _kendall(flatness: Any, accuracy: Any) -> Any:
    """Pairs in the same order less pairs in the other, over pairs with an order: tau-b, along the last dimension."""
    import numpy as np

    x, y = (np.sign(values[..., :, None] - values[..., None, :]) for values in (-flatness, accuracy))
    both = (-2, -1)
    return _over((x * y).sum(both), np.sqrt((x * x).sum(both) * (y * y).sum(both)))


def _over(top: Any, bottom: Any) -> Any:
    """The quotient; nan where all values are equal and there is no order."""
    import numpy as np

    return np.divide(top, bottom, out=np.full(np.broadcast(top, bottom).shape, np.nan), where=bottom > 0)


def _chance(statistic: Statistic, flat: Any, good: Any, seed: int) -> float:
    """The share of all pairings whose correlation is at least as far from 0, this one included."""
    import numpy as np
    from scipy.stats import permutation_test

    if not np.isfinite(statistic(flat, good)):
        return math.nan
    result = permutation_test(
        (flat,),
        lambda x, axis: statistic(np.moveaxis(x, axis, -1), good),
        permutation_type="pairings",
        vectorized=True,
        batch=10_000,
        n_resamples=np.inf if len(flat) <= EXACT_UP_TO else 20_000,
        alternative="two-sided",
        rng=np.random.default_rng(seed),
    )
    return float(result.pvalue)
