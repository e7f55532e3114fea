"""Comparisons of the accuracies of methods, as data frames with the columns `TESTS`, and as sentences.

Statistics are those of `swad.testbed.results.compare`: two methods share splits and seeds within a trial, so they are
compared pair by pair, and all comparisons on a dataset are corrected together.

    tests = compare_methods(results, baseline="ERM (best)")       # every method against one, on one dataset
    tests = compare_over_datasets(collected)                      # on each dataset, and over all held-out domains
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from swad.testbed.results import compare as statistics
from swad.testbed.results.compare import compare, compare_domains, is_clear, p_text
from swad.testbed.results.labels import is_erm
from swad.testbed.results.runs import once
from swad.testbed.results.selection import DatasetResults
from swad.util.names import did_you_mean, plain

if TYPE_CHECKING:
    import pandas as pd

TESTS = ("dataset", *statistics.TESTS[1:], "missing_targets")
"""Columns of comparisons: those of `compare`, and domains without results, which a comparison therefore lacks."""

BASELINE = "ERM (best)"
"""The method that others are compared with by default."""

ALL_DOMAINS = "all held-out domains"
"""Name of the dataset of comparisons over the targets of several datasets."""


@once
def compare_methods(results: DatasetResults, baseline: str | None = BASELINE, *, unit: str = "auto") -> pd.DataFrame:
    """Compare every method on a dataset with a baseline, or all pairs of methods, over the targets of the runs.

    The comparisons of a dataset are one family, and their p-values are corrected for its size. Methods that share no
    complete trial with the baseline are left out.

    Args:
        results: The results of all methods on one dataset.
        baseline: Label of the method to compare with; None for all pairs.
        unit: Unit of the paired test: "auto", "runs", "trials" or "targets"; see `swad.testbed.results.compare.UNITS`.
    """
    baseline = None if baseline is None else find_method([results], baseline)
    return on_dataset(compare(results.units, baseline, unit), results.dataset, results.missing_targets)


def on_dataset(tests: pd.DataFrame, dataset: str, missing_targets: Sequence[str] = ()) -> pd.DataFrame:
    """Return tests of `compare` as comparisons on a dataset."""
    missing = [tuple(missing_targets)] * len(tests)
    return tests.assign(dataset=dataset, missing_targets=missing)[list(TESTS)]


def compare_over_datasets(
    results: Sequence[DatasetResults], baseline: str = BASELINE, *, unit: str = "auto"
) -> pd.DataFrame:
    """Compare every method with a baseline on each dataset, and then over the held-out domains of all datasets.

    Over datasets, each held-out domain is one unit: the mean over its trials. These comparisons are a family of their
    own, and need a method to have results on every dataset that the baseline has.
    """
    import pandas as pd

    baseline = find_method(results, baseline)
    several = [each for each in results if baseline in each.methods]
    tests = [compare_methods(each, baseline, unit=unit) for each in several]
    if len(several) > 1 and all(each.has_target for each in several):
        missing = [f"{each.dataset}/{target}" for each in several for target in each.missing_targets]
        over_all = compare_domains([each.units for each in several], baseline)
        tests.append(on_dataset(over_all, ALL_DOMAINS, missing))
    return pd.concat(tests, ignore_index=True)


def not_compared(results: Sequence[DatasetResults], tests: pd.DataFrame, baseline: str) -> list[str]:
    """Return a sentence for each dataset on which methods could not be compared with the baseline."""
    baseline = find_method(results, baseline)
    compared = set(zip(tests["dataset"], tests["method"], strict=True))
    sentences = []
    for each in results:
        left_out = [name for name in each.methods if name != baseline and (each.dataset, name) not in compared]
        if left_out and baseline not in each.methods:
            sentences.append(f"Not compared on {each.dataset}: {baseline} has no results there.")
        elif left_out:
            reason = f"no trial has results of it and of {baseline} on every target"
            sentences.append(f"Not compared on {each.dataset}: {', '.join(left_out)}: {reason}.")
    return sentences


def default_baseline(results: Sequence[DatasetResults]) -> str | None:
    """Return ERM (best) if any dataset has it, else the first method of ERM, or else of all; None without methods."""
    methods = {row.method: is_erm(row.algorithm) for each in results for row in each.results.itertuples()}
    if BASELINE in methods:
        return BASELINE
    return max(methods, key=lambda name: methods[name], default=None)


def find_method(results: Sequence[DatasetResults], name: str) -> str:
    """Return the label of a method in the spelling of the tables; raise an error that names the methods there are."""
    labels = list(dict.fromkeys(name for each in results for name in each.methods))
    matching = [label for label in labels if plain(label) == plain(name)]
    if not matching:
        raise ValueError(
            f"a baseline must be one of the methods {', '.join(labels) or '(none has results)'}; got {name!r}"
            + (f": {question}" if (question := did_you_mean(name, labels)) else "")
        )
    return name if name in matching else matching[0]


# ------------------------------------------------------------ in words


def compare_in_words(results: DatasetResults, baseline: str = BASELINE, *, unit: str = "auto") -> str:
    """Compare SWAD with a baseline in one or two sentences that claim no more than the corrected test shows.

    Empty if either method lacks results, or if a mean over targets would lack one.
    """
    method = "SWAD"
    n_targets = len(results.targets)
    if not {method, baseline} <= {*results.methods} or (results.missing_targets and n_targets > 1):
        return ""
    tests = {test.method: test for test in compare_methods(results, baseline, unit=unit).itertuples()}
    if method not in tests:
        return ""
    test = tests[method]
    targets = f"on average over {n_targets} targets" if n_targets > 1 else f"on the target {results.targets[0]}"
    if not results.has_target:
        targets = "on the sources, without a target"
    means = f"{method} reaches {100 * test.value:.1f} % {targets}, and {baseline} {100 * test.baseline_value:.1f} %."
    return f"{means} {_verdict(test)}"


def _verdict(test: Any) -> str:
    if math.isnan(test.p):
        if test.n_trials == 1:
            return "One trial: no interval, so this shows no difference between the methods."
        return f"All {test.n} paired differences are the same, so they have no interval and show no difference."
    corrected = f", corrected for {test.n_comparisons} comparisons" if test.n_comparisons > 1 else ""
    evidence = (
        f"95 % interval of the difference over {test.n} paired {test.unit}: {100 * test.low:+.1f} to "
        f"{100 * test.high:+.1f} points; p = {p_text(test.corrected_p)}{corrected}"
    )
    if not is_clear(test):
        return f"The {test.unit} do not show a difference ({evidence})."
    more = "more" if test.difference > 0 else "less"
    return f"{test.method} reaches {abs(100 * test.difference):.1f} points {more} ({evidence})."
