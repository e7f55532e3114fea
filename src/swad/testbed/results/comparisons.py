"""Comparisons of methods: paired differences of accuracy, with intervals and tests, corrected for their number.

Two methods share splits and seeds within a trial, so accuracies are compared pair by pair. The *unit* says what the
sample is, and so where a difference is expected to hold again:

    runs       one difference for each target and trial: holds for another training on these targets
    trials     the mean over targets within each trial: the same, also where the targets of a trial vary together
    targets    the mean over trials on each target: holds for other targets
    domains    the same, over the targets of several datasets

By default ("auto") the units are trials where these are enough for an exact test, else runs.
A p-value is exact (signs of the differences are flipped) where enough units allow it, else Student's t; see
`swad.util.paired`. One trial shows no spread between trainings, so nothing is claimed from it.

    comparisons = compare_methods(results, baseline="ERM (best)")      # every method against one, corrected by Holm
    arrows(accuracies)                                                 # {"SWAD": "↑", "EMA": "–"}
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from swad.testbed.results.labels import is_erm
from swad.testbed.results.selection import DatasetResults
from swad.util.grouping import group_by
from swad.util.names import did_you_mean, plain, require_choice
from swad.util.paired import ALPHA, PairedTest, adjust_p_values, adjust_together, paired_test, uses_sign_flips
from swad.util.statistics import mean

Accuracies = Mapping[tuple[str, int], float]
"""The accuracies of one method by target and trial."""

UNITS: dict[str, str] = {
    "runs": "another training on these targets",
    "trials": "another training on these targets, also where the targets of a trial vary together",
    "targets": "other targets",
    "domains": "other domains of such datasets",
}
"""Where a difference between methods is expected to hold again, by unit."""

UNIT_CHOICES = ("auto", "runs", "trials", "targets")
"""What a user may choose as the unit."""

BASELINE = "ERM (best)"
"""The method that others are compared with by default."""

ALL_DOMAINS = "all held-out domains"
"""Name of the dataset of comparisons over the targets of several datasets."""


@dataclass(frozen=True)
class Comparison:
    """The accuracies of two methods on the same units, the test of their difference, and its corrected p-value."""

    dataset: str
    method: str
    baseline: str
    accuracy: float
    baseline_accuracy: float
    test: PairedTest
    n_trials: int
    unit: str
    n_comparisons: int = 1
    """Number of tests that `corrected_p` accounts for."""
    corrected_p: float | None = None
    missing_targets: tuple[str, ...] = ()
    """Domains of the dataset without results as target, which the comparison therefore lacks."""

    @property
    def difference(self) -> float:
        """The method's accuracy minus the baseline's."""
        return self.test.difference

    @property
    def is_clear(self) -> bool:
        """Whether the corrected test shows a difference. The interval excludes 0 then."""
        return self.corrected_p is not None and self.corrected_p <= ALPHA

    @property
    def is_clear_alone(self) -> bool:
        """Whether the test by itself, not corrected for others, shows a difference."""
        return self.test.p is not None and self.test.p <= ALPHA

    @property
    def arrow(self) -> str:
        """A clear gain as ↑, a clear loss as ↓, no clear difference as –, and an empty text without a test."""
        if self.test.p is None:
            return ""
        return ("↑" if self.difference > 0 else "↓") if self.is_clear else "–"


# ------------------------------------------------------------ two methods


def compare(
    first: Accuracies,
    second: Accuracies,
    targets: Sequence[str],
    unit: str = "auto",
    n_comparisons: int = 1,
    names: tuple[str, str, str] = ("", "", ""),
) -> Comparison | None:
    """Compare two methods on the trials in which both have an accuracy on every target; None if there is no such trial.

    Args:
        first: Accuracies of the method.
        second: Accuracies of the baseline.
        targets: The targets that are compared.
        unit: Unit of the paired test: "auto", "runs", "trials" or "targets"; see above.
        n_comparisons: Number of comparisons that the p-value will be corrected for.
        names: Dataset, method and baseline, for the result.
    """
    require_choice("unit", unit, UNIT_CHOICES)
    trials = complete_trials(targets, first, second)
    if not trials or not targets:
        return None
    if unit == "auto":  # decided by the numbers of trials and comparisons alone
        unit = "trials" if uses_sign_flips(len(trials), n_comparisons) else "runs"
    test = paired_test(_unit_differences(first, second, targets, trials, unit), n_comparisons)
    if len(trials) == 1:  # also where there are several targets: they show no spread between trainings
        test = PairedTest(test.difference, None, None, None, test.n, None)
    accuracy, baseline_accuracy = (mean(each[t, n] for t in targets for n in trials) for each in (first, second))
    return Comparison(*names, accuracy, baseline_accuracy, test, len(trials), unit, n_comparisons, test.p)


def _unit_differences(
    first: Accuracies, second: Accuracies, targets: Sequence[str], trials: Sequence[int], unit: str
) -> list[float]:
    differences = {(t, n): first[t, n] - second[t, n] for t in targets for n in trials}
    if unit == "runs":
        return list(differences.values())
    if unit == "trials":
        return [mean(differences[target, trial] for target in targets) for trial in trials]
    return [mean(differences[target, trial] for trial in trials) for target in targets]


def complete_trials(targets: Sequence[str], *methods: Collection[tuple[str, int]]) -> list[int]:
    """Return the trials in which all methods, given by target and trial of their results, have every target."""
    trials = sorted({trial for _, trial in methods[0]})
    return [n for n in trials if all((target, n) in results for results in methods for target in targets)]


def correct(comparisons: Iterable[Comparison]) -> list[Comparison]:
    """Correct the p-values of comparisons that are read together for their number."""
    comparisons = list(comparisons)
    adjusted = adjust_p_values([comparison.test.p for comparison in comparisons])
    return [replace(comparison, corrected_p=p) for comparison, p in zip(comparisons, adjusted, strict=True)]


# ------------------------------------------------------------ many methods


def compare_methods(
    results: DatasetResults,
    baseline: str | None = BASELINE,
    *,
    unit: str = "auto",
) -> list[Comparison]:
    """Compare every method on a dataset with a baseline, or all pairs of methods, over the targets of the runs.

    The comparisons of a dataset are one family, and their p-values are corrected for its size. Methods that share no
    complete trial with the baseline are left out.

    Args:
        results: The results of all methods on one dataset.
        baseline: Label of the method to compare with; None for all pairs.
        unit: Unit of the paired test: "auto", "runs", "trials" or "targets".
    """
    accuracies = {method.label: results.accuracies(method.label) for method in results.methods}
    baseline = None if baseline is None else find_method([results], baseline)
    comparisons = compare_accuracies(accuracies, baseline, results.targets, unit=unit, dataset=results.dataset)
    return [replace(comparison, missing_targets=results.missing_targets) for comparison in comparisons]


def compare_accuracies(
    accuracies: Mapping[str, Accuracies],
    baseline: str | None,
    targets: Sequence[str] | None = None,
    *,
    unit: str = "auto",
    dataset: str = "",
) -> list[Comparison]:
    """Compare methods by their accuracies, by default on all targets that these have; see `compare_methods`."""
    if targets is None:
        targets = sorted({target for each in accuracies.values() for target, _ in each})
    if baseline is None:
        pairs = [(second, first) for first, second in combinations(accuracies, 2)]
    else:
        pairs = [(label, baseline) for label in accuracies if label != baseline]
    n_trials = [len(complete_trials(targets, accuracies[first], accuracies[second])) for first, second in pairs]
    n_comparisons = max(1, sum(n > 1 for n in n_trials))  # those with a test
    comparisons = (
        compare(accuracies[first], accuracies[second], targets, unit, n_comparisons, (dataset, first, second))
        for first, second in pairs
    )
    return correct(filter(None, comparisons))


def compare_together(accuracies: Mapping[str, Accuracies], baseline: str, dataset: str = "") -> list[Comparison]:
    """Compare many methods that are alike, with accuracies of the same runs, such as averages that overlap.

    Signs are flipped in all comparisons at once, which corrects for their number without counting likenesses twice; see
    `swad.util.paired.adjust_together`. With too few units for sign flips, the correction is Holm's.
    """
    second = accuracies[baseline]
    targets = sorted({target for target, _ in second})
    others = {label: first for label, first in accuracies.items() if label != baseline}
    alone = (compare(first, second, targets, names=(dataset, label, baseline)) for label, first in others.items())
    comparisons = list(filter(None, alone))
    if not comparisons:
        return []
    if any(comparison.n_trials == 1 or comparison.test.test != "sign flips" for comparison in comparisons):
        return compare_accuracies(accuracies, baseline, targets, dataset=dataset)
    trials = complete_trials(targets, second)
    units = [_unit_differences(first, second, targets, trials, comparisons[0].unit) for first in others.values()]
    return [
        replace(comparison, n_comparisons=len(comparisons), corrected_p=p)
        for comparison, p in zip(comparisons, adjust_together(units), strict=True)
    ]


def compare_over_datasets(
    results: Sequence[DatasetResults], baseline: str = BASELINE, *, unit: str = "auto"
) -> list[Comparison]:
    """Compare every method with a baseline on each dataset, and then over the held-out domains of all datasets.

    Over datasets, each held-out domain is one unit: the mean over its trials. These comparisons are a family of their
    own, and need a method to have results on every dataset that the baseline has.
    """
    baseline = find_method(results, baseline)
    with_baseline = [each for each in results if each.has(baseline)]
    comparisons = [c for each in with_baseline for c in compare_methods(each, baseline, unit=unit)]
    if len(with_baseline) < 2 or not all(each.has_target for each in with_baseline):
        return comparisons
    by_method = group_by(comparisons, lambda comparison: comparison.method)
    complete = [label for label, each in by_method.items() if len(each) == len(with_baseline)]
    return comparisons + correct(_over_domains(with_baseline, label, baseline, len(complete)) for label in complete)


def _over_domains(results: Sequence[DatasetResults], method: str, baseline: str, n_comparisons: int) -> Comparison:
    means: list[tuple[float, float]] = []  # of method and baseline, by held-out domain
    n_trials = []
    for each in results:
        both = [each.accuracies(label) for label in (method, baseline)]
        trials = complete_trials(each.targets, *both)
        means += [(mean(both[0][t, n] for n in trials), mean(both[1][t, n] for n in trials)) for t in each.targets]
        n_trials.append(len(trials))
    first, second = (mean(column) for column in zip(*means, strict=True))
    test = paired_test([a - b for a, b in means], n_comparisons)
    missing = tuple(f"{each.dataset}/{target}" for each in results for target in each.missing_targets)
    return Comparison(
        ALL_DOMAINS, method, baseline, first, second, test, min(n_trials), "domains", n_comparisons, None, missing
    )


def not_compared(results: Sequence[DatasetResults], comparisons: Iterable[Comparison], baseline: str) -> list[str]:
    """Return a sentence for each dataset on which methods could not be compared with the baseline."""
    baseline = find_method(results, baseline)
    compared = {(comparison.dataset, comparison.method) for comparison in comparisons}
    sentences = []
    for each in results:
        left_out = [m.label for m in each.methods if m.label != baseline and (each.dataset, m.label) not in compared]
        if left_out and not each.has(baseline):
            sentences.append(f"Not compared on {each.dataset}: {baseline} has no results there.")
        elif left_out:
            reason = f"no trial has results of it and of {baseline} on every target"
            sentences.append(f"Not compared on {each.dataset}: {', '.join(left_out)}: {reason}.")
    return sentences


def default_baseline(results: Sequence[DatasetResults]) -> str | None:
    """Return ERM (best) if any dataset has it, else the first method of ERM, or else of all; None without methods."""
    methods = [method for each in results for method in each.methods]
    if any(method.label == BASELINE for method in methods):
        return BASELINE
    methods.sort(key=lambda method: not is_erm(method.algorithm))
    return methods[0].label if methods else None


def find_method(results: Sequence[DatasetResults], name: str) -> str:
    """Return the label of a method in the spelling of the tables; raise an error that names the methods there are."""
    labels = list(dict.fromkeys(method.label for each in results for method in each.methods))
    matching = [label for label in labels if plain(label) == plain(name)]
    if not matching:
        raise ValueError(
            f"a baseline must be one of the methods {', '.join(labels) or '(none has results)'}; got {name!r}"
            + (f": {question}" if (question := did_you_mean(name, labels)) else "")
        )
    return name if name in matching else matching[0]


def arrows(accuracies: Mapping[str, Accuracies], baseline: str = BASELINE) -> dict[str, str]:
    """Return the arrows of Table 3: which methods are clearly better (↑) or worse (↓) than the baseline.

    The paper marks "statistically significant" changes and does not say by which test. Here, it is the paired test over
    trials or runs, corrected for the number of methods. Without a clear difference the arrow is –, and with a
    single trial it is empty. There are none without accuracies of the baseline.

    Args:
        accuracies: Accuracies by method, either out-of-domain or in-domain.
        baseline: The method to compare with.
    """
    if baseline not in accuracies:
        return {}
    return {comparison.method: comparison.arrow for comparison in compare_accuracies(accuracies, baseline)}


# ------------------------------------------------------------ in words


def compare_in_words(results: DatasetResults, baseline: str = BASELINE, *, unit: str = "auto") -> str:
    """Compare SWAD with a baseline in one or two sentences that claim no more than the corrected test shows.

    Empty if either method lacks results, or if a mean over targets would lack one.
    """
    method = "SWAD"
    n_targets = len(results.targets)
    if not results.has(method) or not results.has(baseline) or (results.missing_targets and n_targets > 1):
        return ""
    comparisons = {comparison.method: comparison for comparison in compare_methods(results, baseline, unit=unit)}
    if method not in comparisons:
        return ""
    comparison = comparisons[method]
    targets = f"on average over {n_targets} targets" if n_targets > 1 else f"on the target {results.targets[0]}"
    if not results.has_target:
        targets = "on the sources, without a target"
    means = (
        f"{method} reaches {100 * comparison.accuracy:.1f} % {targets}, "
        f"and {baseline} {100 * comparison.baseline_accuracy:.1f} %."
    )
    return f"{means} {_verdict(comparison)}"


def _verdict(comparison: Comparison) -> str:
    test = comparison.test
    if test.p is None or test.low is None or test.high is None or comparison.corrected_p is None:
        if comparison.n_trials == 1:
            return "One trial: no interval, so this shows no difference between the methods."
        return f"All {test.n} paired differences are the same, so they have no interval and show no difference."
    corrected = f", corrected for {comparison.n_comparisons} comparisons" if comparison.n_comparisons > 1 else ""
    evidence = (
        f"95 % interval of the difference over {test.n} paired {comparison.unit}: {100 * test.low:+.1f} to "
        f"{100 * test.high:+.1f} points; p = {p_text(comparison.corrected_p)}{corrected}"
    )
    if not comparison.is_clear:
        return f"The {comparison.unit} do not show a difference ({evidence})."
    more = "more" if test.difference > 0 else "less"
    return f"{comparison.method} reaches {abs(100 * test.difference):.1f} points {more} ({evidence})."


def p_text(p: float | None) -> str:
    """Return a p-value with two significant digits, and more where they decide.

    >>> p_text(0.03125), p_text(0.5), p_text(0.00002), p_text(0.0503), p_text(None)
    ('0.031', '0.50', '<0.0001', '0.0503', '–')
    """
    if p is None:
        return "–"
    if p < 0.0001:
        return "<0.0001"
    text = f"{p:.2f}" if p >= 0.1 else f"{p:.3f}" if p >= 0.01 else f"{p:.4f}"
    return text if (float(text) <= ALPHA) == (p <= ALPHA) else f"{p:.4f}"
