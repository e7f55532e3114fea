"""Means and how well they are known: standard errors over trials, and Student's t interval over random draws.

A mean over random draws (directions, images) has a 95 % interval of Student's t. Where several means share draws, they
are not independent, so each draw's *contribution* to a mean is kept: the sum of the squared contributions is the
variance of the mean. Contributions of means can be averaged and subtracted before they are squared, and that gives the
interval of an average of means, or of a paired difference.

>>> import numpy as np
>>> losses = np.array([[1.0], [2.0], [3.0]])
>>> first = {"images": contributions(losses)}
>>> [round(half, 4) for half in half_widths(first)]                # t with 2 degrees of freedom, times 1 / sqrt(3)
[2.4841]
>>> half_widths(subtract_contributions(first, first))              # on the same images: no uncertainty is left
[0.0]
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

Contributions = Mapping[Hashable, "Array"]
"""By source of randomness (the directions, the images of one domain): draws x columns. Squares add up to a variance."""


# ------------------------------------------------------------ over trials


@dataclass(frozen=True)
class Summary:
    """The mean over trials with its standard error, which is None for a single trial."""

    mean: float
    error: float | None
    n: int


def mean(values: Iterable[float]) -> float:
    """Return the mean, rounded once; also of values that are not finite."""
    numbers = list(values)
    if not numbers:
        raise ValueError("a mean needs at least one value, got none")
    try:
        return (math.fsum(numbers) if all(map(math.isfinite, numbers)) else sum(numbers)) / len(numbers)
    except OverflowError:  # the sum is out of range, though the mean is not
        return math.fsum(number / len(numbers) for number in numbers)


def summarize(values: Iterable[float]) -> Summary:
    """Return the mean and its standard error: population standard deviation / sqrt(n), as in DomainBed.

    >>> summarize([0.0, 0.0, 1.0, 1.0])
    Summary(mean=0.5, error=0.25, n=4)
    """
    numbers = list(values)
    center = mean(numbers)
    if len(numbers) == 1:
        return Summary(center, None, 1)
    variance = mean((number - center) * (number - center) for number in numbers)
    return Summary(center, math.sqrt(variance / len(numbers)), len(numbers))


# ------------------------------------------------------------ over random draws


def contributions(values: Array) -> Array:
    """Return the contribution of every draw (row) to the error of the mean over draws.

    A single draw says nothing about the spread: its contribution is nan.
    """
    import numpy as np

    n = len(values)
    with np.errstate(invalid="ignore", over="ignore"):  # values need not be finite
        centered: Array = values - values.mean(0)
        return centered / math.sqrt(n * (n - 1)) if n > 1 else centered * math.nan


def subtract_contributions(first: Contributions | None, second: Contributions | None) -> Contributions | None:
    """Return the contributions to the difference of two means; None unless both come from the same draws."""
    if first is None or second is None:
        return None
    if {source: array.shape for source, array in first.items()} != {source: a.shape for source, a in second.items()}:
        return None
    return {source: first[source] - second[source] for source in first}


def half_widths(contributed: Contributions, confidence: float = 0.95) -> list[float]:
    """Return half of the confidence interval of every column.

    Each source of n draws is widened by Student's t with n - 1 degrees of freedom, because few draws know their own
    spread badly; the squares are then added.
    """
    return _half_widths(contributed, (1 - confidence) / 2)


def p_values(means: Sequence[float], contributed: Contributions) -> list[float]:
    """Return the two-sided p-value of every column against 0: p at which the interval of 1 - p begins to include 0.

    Values below 1e-30 are returned as 1e-30.
    """
    columns = [{source: array[:, [k]] for source, array in contributed.items()} for k in range(len(means))]
    return [_p_value(abs(value), column) for value, column in zip(means, columns, strict=True)]


def _p_value(distance: float, contributed: Contributions) -> float:
    if not math.isfinite(distance) or not math.isfinite(half_widths(contributed)[0]):
        return math.nan
    if distance == 0:
        return 1.0
    if len(contributed) == 1:  # Student's t-test itself
        (array,) = contributed.values()
        error = math.sqrt((array * array).sum())
        return max(student_p(distance / error, len(array)), 1e-30) if error else 1e-30
    low, high = -30.0, 0.0  # logarithms of p; the interval narrows as p grows
    for _ in range(50):
        middle = (low + high) / 2
        includes_zero = _half_widths(contributed, 10**middle / 2)[0] > distance
        low, high = (middle, high) if includes_zero else (low, middle)
    return float(10**high)


def _half_widths(contributed: Contributions, tail: float) -> list[float]:
    """Return half of the interval that leaves the probability `tail` on each side."""
    import numpy as np

    with np.errstate(over="ignore"):
        squares = [student_quantile(len(array), tail) ** 2 * (array * array).sum(0) for array in contributed.values()]
    return [math.sqrt(sum(column)) for column in zip(*(square.tolist() for square in squares), strict=True)]


def student_p(t: float, n: int) -> float:
    """Return the two-sided p-value of Student's t for the mean of n values."""
    from scipy.special import stdtr  # `scipy.stats.ttest_1samp` is the same, but takes a second to load

    return float(2 * stdtr(n - 1, -abs(t)))


@lru_cache(maxsize=10_000)
def student_quantile(n: int, tail: float = 0.025) -> float:
    """Return the upper quantile of Student's t for the mean of n values."""
    try:
        from scipy.special import stdtrit
    except ImportError:
        raise ImportError("confidence intervals need scipy: pip install 'swad[flatness]'") from None
    return -float(stdtrit(n - 1, tail)) if n > 1 else math.nan
