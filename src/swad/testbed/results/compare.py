"""Means over trials and paired differences of any quantity, as functions from data frames to data frames.

Both take *units*: a frame with a value for each target and trial (rows) and method (columns).

    units = units_of(results)                      # accuracies, or the values of any measurement
    means(units)                                   # mean, error, low, high, n by method
    compare(units, baseline="ERM (best)")          # one row for each test, corrected together

The *unit of a test* says what the sample is, and so where a difference is expected to hold again; see `UNITS`. Two
methods share splits and seeds within a trial, so they are compared pair by pair. A p-value is exact (signs of the
differences are flipped) where enough units allow it, else Student's t; see `swad.util.paired`. All tests of a call are
one family: `p` is of one test, `corrected_p` is Holm's for the family. One trial shows no spread between trainings, so
nothing is claimed from it.

>>> import pandas as pd
>>> values = {"ERM": [0.5, 0.5, 0.6, 0.5, 0.4, 0.5], "SWAD": [0.6, 0.7, 0.7, 0.6, 0.6, 0.8]}
>>> rows = [{"method": m, "target": "a", "trial": n, "value": v} for m in values for n, v in enumerate(values[m])]
>>> units = units_of(pd.DataFrame(rows))
>>> means(units).loc["SWAD"].round(3).to_dict()
{'mean': 0.667, 'error': 0.03, 'low': 0.581, 'high': 0.752, 'n': 6.0}
>>> compare(units, "ERM")[["method", "difference", "p", "corrected_p", "n", "unit"]].round(4).to_dict("records")
[{'method': 'SWAD', 'difference': 0.1667, 'p': 0.0312, 'corrected_p': 0.0312, 'n': 6, 'unit': 'trials'}]
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

from swad.util.names import require_choice
from swad.util.paired import (
    ALPHA,
    PairedTest,
    adjust_p_values,
    adjust_together,
    paired_test,
    paired_tests,
    uses_sign_flips,
)
from swad.util.statistics import mean, student_quantile

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

UNITS: dict[str, str] = {
    "runs": "another training on these targets",
    "trials": "another training on these targets, also where the targets of a trial vary together",
    "targets": "other targets",
    "domains": "other domains of such datasets",
}
"""Where a difference is expected to hold again, by unit: a target and trial; the mean over targets within a trial; the
mean over trials on a target; the same, over the targets of several datasets."""

UNIT_CHOICES = ("auto", "runs", "trials", "targets")
"""What a user may choose; auto: trials where these are enough for an exact test, else runs."""

TESTS = (
    *("quantity", "method", "baseline", "value", "baseline_value", "difference", "low", "high", "p", "corrected_p"),
    *("n", "unit", "test", "n_trials", "n_comparisons"),
)
"""Columns of a frame of tests. `value` and `baseline_value` are the means whose difference is tested."""


def units_of(rows: pd.DataFrame, value: str = "value", targets: Sequence[str] = ()) -> pd.DataFrame:
    """Return a value by target and trial (rows) and method (columns), nan where there is none.

    Args:
        rows: One row for each method, target and trial.
        value: The column of the values.
        targets: Further targets, which have no rows.
    """
    import pandas as pd

    units = rows.pivot(index=["target", "trial"], columns="method", values=value)
    names, trials = sorted({*targets, *rows["target"]}), sorted({*rows["trial"]})
    index = pd.MultiIndex.from_product([names, trials], names=["target", "trial"])
    return units.reindex(index).reindex(columns=list(dict.fromkeys(rows["method"])))


def units_of_methods(
    values: Mapping[str, Mapping[tuple[str, int], float]], targets: Sequence[str] = ()
) -> pd.DataFrame:
    """Return the units of methods whose values are given by target and trial."""
    import pandas as pd

    rows = [(method, *unit, value) for method, by_unit in values.items() for unit, value in by_unit.items()]
    return units_of(pd.DataFrame(rows, columns=["method", "target", "trial", "value"]), targets=targets).reindex(
        columns=[*values]
    )


def _cube(units: pd.DataFrame) -> np.ndarray[Any, Any]:
    """Return the values as targets x trials x methods."""
    n_targets = len(units.index.unique("target"))
    cube: np.ndarray[Any, Any] = units.to_numpy(dtype=float).reshape(n_targets, -1, len(units.columns))
    return cube


def means(units: pd.DataFrame) -> pd.DataFrame:
    """Return mean, error, low, high and n (trials) by method: the mean over targets in each trial, then over trials.

    `error` is the standard error, as in DomainBed and the paper, which tables print after ±. `low` and `high` are
    Student's 95 % interval over trials, for bands. A method that lacks a target has no mean; one of which a target
    lacks a trial has neither error nor interval.
    """
    import numpy as np
    import pandas as pd

    cube = _cube(units)
    rows = []
    for values in np.moveaxis(cube, 2, 0):  # targets x trials of one method
        present = ~np.isnan(values)
        if not present.any(1).all():
            rows.append((math.nan,) * 4 + (0,))
            continue
        trials = values[:, present.any(0)]
        if np.isnan(trials).any():  # a target lacks a trial that another one has
            rows.append((mean(mean(row[~np.isnan(row)]) for row in values), *[math.nan] * 3, trials.shape[1]))
            continue
        by_trial = [mean(column) for column in trials.T]
        center, n = mean(by_trial), len(by_trial)
        error = spread = math.nan
        if n > 1:
            variance = mean((value - center) ** 2 for value in by_trial)
            error = math.sqrt(variance / n)
            with suppress(ImportError):  # without scipy, tables still have means and errors
                spread = student_quantile(n) * math.sqrt(variance / (n - 1))
        rows.append((center, error, center - spread, center + spread, n))
    return pd.DataFrame(rows, index=units.columns, columns=["mean", "error", "low", "high", "n"])


def compare(
    family: pd.DataFrame | Mapping[Any, pd.DataFrame],
    baseline: str | None,
    unit: str = "auto",
    *,
    together: bool = False,
) -> pd.DataFrame:
    """Compare methods with a baseline, or all pairs, on the trials in which both have every target.

    Args:
        family: Units, or units of several quantities by name. All tests are corrected for their number.
        baseline: The method to compare with; None for all pairs.
        unit: "auto", "runs", "trials" or "targets"; see `UNITS`.
        together: Flip the signs of a unit in all comparisons at once instead of Holm's correction, which counts each as
            a test of its own: for many methods that are alike, such as averages that overlap (Westfall and Young 1993).
            With too few units for sign flips, the correction is Holm's.

    Returns:
        The tests, with the columns `TESTS`. Methods that share no complete trial are left out.
    """
    require_choice("unit", unit, UNIT_CHOICES)
    groups: list[_Pairs] = []
    quantities = family if isinstance(family, Mapping) else {"": family}
    for number, (quantity, units) in enumerate(quantities.items()):
        methods = list(units.columns)
        names = [(second, first) for first, second in combinations(methods, 2)]
        if baseline is not None:
            names = [(method, baseline) for method in methods if method != baseline and baseline in methods]
        groups += _pairs(quantity, units, names, number)
    n_tests = max(1, sum(len(group.names) for group in groups if group.n_trials > 1))
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    by_unit: dict[tuple[int, int], Any] = {}
    for group in groups:
        flips = uses_sign_flips(group.n_trials, 1 if together else n_tests)
        by = unit if unit != "auto" else "trials" if flips else "runs"
        differences = group.values - group.others  # pairs x targets x trials
        if by == "runs":
            differences = differences.reshape(len(differences), -1)
        else:
            differences = differences.mean(1 if by == "trials" else 2)
        tests = paired_tests(differences, 1 if together else n_tests)
        if group.n_trials == 1:  # also where there are several targets: they show no spread between trainings
            tests = [PairedTest(test.difference, None, None, None, test.n, None) for test in tests]
        of_means = (values.mean((1, 2)).tolist() for values in (group.values, group.others))
        known = {"quantity": group.quantity, "unit": by, "n_trials": group.n_trials, "n_comparisons": n_tests}
        columns = (group.places, group.names, differences, *of_means, tests)
        for place, (method, other), by_unit[place], value, other_value, test in zip(*columns, strict=True):
            of_pair = {"method": method, "baseline": other, "value": value, "baseline_value": other_value}
            rows[place] = known | of_pair | vars(test)
    ordered = [rows[place] for place in sorted(rows)]
    if not together:
        return _corrected(ordered)
    if ordered and all(row["test"] == "sign flips" and row["n"] == ordered[0]["n"] for row in ordered):
        return _corrected(ordered, adjust_together([by_unit[place] for place in sorted(rows)]))
    return compare(family, baseline, unit)


class _Pairs(NamedTuple):
    """Pairs of methods that share the same trials, and their values on these: pairs x targets x trials."""

    quantity: Any
    names: list[tuple[str, str]]
    places: list[tuple[int, int]]
    values: Any
    others: Any
    n_trials: int


def _pairs(quantity: Any, units: pd.DataFrame, names: Sequence[tuple[str, str]], place: int = 0) -> list[_Pairs]:
    """Group pairs of methods by the trials in which both have every target; pairs without such a trial are left out."""
    import numpy as np

    if not names:
        return []
    cube = _cube(units).transpose(2, 0, 1)
    complete = ~np.isnan(cube).any(1)  # methods x trials
    methods, others = (units.columns.get_indexer(list(column)) for column in zip(*names, strict=True))
    shared, group_of = np.unique(complete[methods] & complete[others], axis=0, return_inverse=True)
    groups = []
    for number, trials in enumerate(shared):
        members = np.flatnonzero(group_of == number)
        if trials.any():
            values, other_values = (cube[column[members]][:, :, trials] for column in (methods, others))
            places = [(place, int(member)) for member in members]
            of_group = [names[int(member)] for member in members]
            groups.append(_Pairs(quantity, of_group, places, values, other_values, int(trials.sum())))
    return groups


def compare_domains(several: Sequence[pd.DataFrame], baseline: str) -> pd.DataFrame:
    """Compare methods with a baseline over the targets of several datasets, each of which is one unit.

    A unit is the mean over the trials that both methods have on every target of its dataset. Methods that lack a
    dataset are left out. The tests are a family of their own.
    """
    import numpy as np

    names = [(method, baseline) for method in several[0].columns if method != baseline]
    by_pair: dict[tuple[str, str], list[tuple[Any, Any, int]]] = {name: [] for name in names}
    for units in several:
        for group in _pairs("", units, [name for name in names if name[0] in units.columns]):
            for name, values, others in zip(group.names, group.values, group.others, strict=True):
                by_pair[name].append((values.mean(1), others.mean(1), group.n_trials))
    complete = {name: parts for name, parts in by_pair.items() if len(parts) == len(several)}
    rows = []
    for (method, _), parts in complete.items():
        values, others = (np.concatenate([part[column] for part in parts]) for column in (0, 1))
        row: dict[str, Any] = {"quantity": "", "method": method, "baseline": baseline, "unit": "domains"}
        row |= {"value": mean(values), "baseline_value": mean(others)}
        row |= {"n_trials": min(n for *_, n in parts), "n_comparisons": len(complete)}
        rows.append(row | vars(paired_test(values - others, len(complete))))
    return _corrected(rows)


def _corrected(rows: Sequence[Mapping[str, Any]], corrected: Sequence[float | None] = ()) -> pd.DataFrame:
    """Return tests as a frame, with p-values corrected by Holm unless they are given."""
    import pandas as pd

    corrected = corrected or adjust_p_values([row["p"] for row in rows])
    tests = [{**row, "corrected_p": p} for row, p in zip(rows, corrected, strict=True)]
    return pd.DataFrame(tests, columns=list(TESTS)).astype(dict.fromkeys(("low", "high", "p", "corrected_p"), float))


def complete_trials(units: pd.DataFrame) -> pd.DataFrame:
    """Return the units of the trials in which every method has every target."""
    trials = units.index.get_level_values("trial")
    return units[~trials.isin(trials[units.isna().any(axis=1)])]


def is_clear(test: Any) -> bool:
    """Whether the corrected test of a row shows a difference. The interval excludes 0 then."""
    return bool(test.corrected_p <= ALPHA)  # nan is not


def arrow(test: Any) -> str:
    """Return a clear gain as ↑, a clear loss as ↓, no clear difference as –, and an empty text without a test."""
    if math.isnan(test.p):
        return ""
    return ("↑" if test.difference > 0 else "↓") if is_clear(test) else "–"


VERDICTS = {"↑": "better", "↓": "worse", "–": "not shown", "": "no test"}
"""The word for each arrow."""


def lower_than_best(units: pd.DataFrame, best: str) -> set[str]:
    """Return the methods that are significantly below the best one.

    Which one is the best depends on chance, too, so the tests of all pairs are corrected for the number of pairs: if no
    method differs from another, one is returned with a probability of at most 5 %.
    """
    tests = compare(units, None)
    tests = tests[tests["corrected_p"] <= ALPHA]
    above = tests["baseline"][(tests["method"] == best) & (tests["difference"] > 0)]
    return {*above, *tests["method"][(tests["baseline"] == best) & (tests["difference"] < 0)]}


def p_text(p: float | None) -> str:
    """Return a p-value with two significant digits, and more where they decide.

    >>> p_text(0.03125), p_text(0.5), p_text(0.00002), p_text(0.0503), p_text(None)
    ('0.031', '0.50', '<0.0001', '0.0503', '–')
    """
    if p is None or math.isnan(p):
        return "–"
    if p < 0.0001:
        return "<0.0001"
    text = f"{p:.2f}" if p >= 0.1 else f"{p:.3f}" if p >= 0.01 else f"{p:.4f}"
    return text if (float(text) <= ALPHA) == (p <= ALPHA) else f"{p:.4f}"
