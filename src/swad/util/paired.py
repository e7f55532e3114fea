"""Tests of paired differences: what one method gains over another on the same units, and how sure that is.

A unit is whatever was repeated: a training, a target, a dataset. Each gives one difference. If the two methods do not
differ, either sign of a difference is equally likely, so the exact p-value is the share of the 2^n ways to flip signs
whose mean is at least as far from 0 (Fisher 1935). The interval holds every shift that this test does not reject. Its
ends are two of the 2^n - 1 means over subsets of the differences (Hartigan 1969), so interval and p-value never
contradict each other.

With n units, the smallest p-value is 2 / 2^n. Where it is too large to decide anything, test and interval are Student's
t, which also assumes that differences are normally distributed.

>>> paired_test([0.8, 1.1, 1.9, 1.2, 1.6, 0.9])
PairedTest(difference=1.25, low=0.8, high=1.9, p=0.03125, n=6, test='sign flips')
>>> paired_test([0.8, 1.1, 1.9]).test, paired_test([0.8]).test
('t', None)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from swad.util.statistics import mean, student_p, student_quantile

if TYPE_CHECKING:
    from swad.util.statistics import Array

LEVEL, ALPHA = 0.95, 0.05
"""Confidence level of every interval, and the largest p-value at which a difference is claimed."""

EXACT_UP_TO = 14
"""Up to this number of units, all ways to flip signs are enumerated (16,384). Beyond it, some are drawn."""

N_DRAWN = 20_000
"""Number of sign flips that are drawn for more units than that."""

ROUNDING = 1e-9
"""Differences below this size are rounding errors of accuracies."""


@dataclass(frozen=True)
class PairedTest:
    """A mean difference with its interval and two-sided p-value, which are None where the units show no spread."""

    difference: float
    low: float | None
    high: float | None
    p: float | None
    n: int
    test: Literal["sign flips", "t"] | None


def paired_test(differences: Sequence[float], n_comparisons: int = 1) -> PairedTest:
    """Test whether the mean of paired differences is 0, and return its interval, which is not corrected.

    One unit shows no spread, and neither do a few units with exactly the same difference: there is no test then.

    Args:
        differences: One difference for each unit.
        n_comparisons: Number of tests that the p-value will be corrected for. Sign flips are used if their smallest
            p-value survives the correction, else Student's t. The differences themselves do not decide this.
    """
    return paired_tests([differences], n_comparisons)[0]


def paired_tests(differences: Sequence[Sequence[float]] | Array, n_comparisons: int = 1) -> list[PairedTest]:
    """Return `paired_test` of every row; all rows have the same number of units."""
    import numpy as np

    rows = np.asarray(differences, dtype=float)
    n = rows.shape[1]
    centers = list(map(mean, rows.tolist()))
    exact = uses_sign_flips(n, n_comparisons)
    tested = np.isfinite(rows).all(1) & (n > 1)
    if not exact:
        tested[tested] = np.ptp(rows[tested], axis=1) > ROUNDING
    tests = [PairedTest(center, None, None, None, n, None) for center in centers]
    places = np.flatnonzero(tested)
    # In parts of a size that fits into memory.
    for part in np.array_split(places, math.ceil(len(places) / 64)) if len(places) else ():
        numbers = _sign_flips(rows[part]) if exact else _student(rows[part])
        for place, low, high, p in zip(part, *(column.tolist() for column in numbers), strict=True):
            tests[place] = PairedTest(centers[place], low, high, p, n, "sign flips" if exact else "t")
    return tests


def _student(rows: Array) -> tuple[Array, Array, Array]:
    """Return the interval and the two-sided p-value of each row by Student's t."""
    import numpy as np

    n = rows.shape[1]
    center, error = rows.mean(1), rows.std(1, ddof=1) / math.sqrt(n)
    half = student_quantile(n, (1 - LEVEL) / 2) * error
    return center - half, center + half, np.array([student_p(t, n) for t in center / error])


def uses_sign_flips(n: int, n_comparisons: int = 1) -> bool:
    """Return whether the exact test can reject anything with n units and this number of comparisons.

    >>> [n for n in range(8) if uses_sign_flips(n)], uses_sign_flips(6, n_comparisons=2)
    ([6, 7], False)
    """
    smallest = 2 / 2**n if n <= EXACT_UP_TO else 2 / (N_DRAWN + 2)
    return smallest * max(1, n_comparisons) <= 1 - LEVEL + 1e-12


def _sign_flips(rows: Array) -> tuple[Array, Array, Array]:
    """Return the interval and the two-sided p-value of each row.

    Flipping the signs of a subset raises the mean if the subset's sum is negative. So the number of subsets whose sum
    is not positive gives the upper tail, and a shift is rejected if few subset means lie below it.
    """
    import numpy as np

    flips, sizes = _subsets(rows.shape[1])
    sums = flips @ rows.T  # subsets x tests
    tolerance = ROUNDING * rows.shape[1]
    tail = np.minimum((sums <= tolerance).sum(0), (sums >= -tolerance).sum(0))  # both count the empty subset
    p = np.minimum(1.0, 2 * tail / len(flips))
    # Without the empty subset, which has no mean.
    place = math.floor((1 - LEVEL) / 2 * len(flips) + 1e-9) - 1
    ends = [place, len(flips) - 2 - place]
    low, high = np.partition(sums[1:] / sizes[1:, None], ends, axis=0)[ends]
    low, high = (np.where(np.abs(end) <= ROUNDING, 0.0, end) for end in (low, high))
    return low, high, p


@lru_cache(maxsize=4)
def _subsets(n: int) -> tuple[Array, Array]:
    """Return subsets of n units as rows of 0 and 1, each with its complement, and their sizes; the first is empty."""
    import numpy as np

    if n <= EXACT_UP_TO:
        rows = (np.arange(2**n)[:, None] >> np.arange(n) & 1).astype(float)
    else:
        drawn = np.random.default_rng(0).integers(0, 2, (N_DRAWN // 2, n))
        half = np.concatenate([np.zeros((1, n)), drawn.astype(float)])
        rows = np.concatenate([half, 1 - half])
    return rows, rows.sum(1)


def adjust_together(differences: Sequence[Sequence[float]]) -> list[float]:
    """Return exact p-values of several comparisons on the same units, corrected by the largest of their statistics.

    The signs of a unit are flipped in all comparisons at once. A corrected p-value is the share of sign flips in which
    the largest |mean| / root mean square of any comparison is at least that of the comparison itself (Westfall and
    Young 1993). So comparisons that are alike count little more than one, where Holm counts each as a test of its own.

    >>> gain = [0.8, 1.1, 1.9, 1.2, 1.6, 0.9]
    >>> adjust_together([gain]), adjust_together([gain, gain, gain])
    ([0.03125], [0.03125, 0.03125, 0.03125])

    Args:
        differences: One row for each comparison, with one difference for each unit.
    """
    import numpy as np

    rows = np.array(differences, dtype=float)
    sizes = np.sqrt((rows * rows).sum(1, keepdims=True))  # not changed by flips
    columns = np.divide(rows, sizes, out=np.zeros_like(rows), where=sizes > ROUNDING).T
    flips = 1 - 2 * _subsets(len(columns))[0]
    parts = np.array_split(flips, max(1, len(flips) // 1000))  # of a size that fits into memory
    largest = np.concatenate([np.abs(part @ columns).max(1) for part in parts])
    observed = np.abs(columns.sum(0))
    return [float((largest >= value - ROUNDING).mean()) for value in observed]


def adjust_p_values(p_values: Sequence[float | None]) -> list[float | None]:
    """Correct p-values for the number of tests among them (Holm 1979); None (no test) stays None and does not count.

    >>> [p and round(p, 3) for p in adjust_p_values([0.01, None, 0.04, 0.03])]
    [0.03, None, 0.06, 0.06]
    """
    tests = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    adjusted, largest = list(p_values), 0.0
    for rank, (p, place) in enumerate(tests):
        adjusted[place] = largest = max(largest, min(1.0, (len(tests) - rank) * p))
    return adjusted
