"""Selectors: choose the run and the step that represent a method, from records alone.

The target domain must not influence the choice, so a selector never sees it. A selector receives `SourceView`s, which
hold copies of the source domains' records and no reference to the run. It returns a `SelectedStep`, and only then is
the target's accuracy read. The oracles are the exception: they show how much knowledge of the target would be worth,
and receive an `OracleView`.

    iid               best mean accuracy on the sources' validation splits, over steps and hyperparameters
    last              the last step; hyperparameters as in `iid`
    lodo              best mean accuracy on a source that was also held out (needs runs with two targets)
    oracle            the last step; hyperparameters by the target's validation split (DomainBed's definition)
    oracle_best_step  step and hyperparameters by the target's validation split (the published code's definition)

A step is selected for the live weights only. An average is evaluated at the end of training.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from swad.testbed.results import domainbed
from swad.testbed.results.record_table import RecordTable, Series, mean_by_step
from swad.testbed.results.run_data import RunData
from swad.util.statistics import mean


class SelectionError(ValueError):
    """The records do not allow a selection. The message is one line that says what is missing."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))  # the name of a domain may hold a line break


# ------------------------------------------------------------ the input of a selector


@dataclass(frozen=True)
class SourceView:
    """The part of a run that a selector may see: the records of its source domains.

    `index` identifies the run and `settings` its hyperparameters. `held_out` is the source domain that was held out
    together with the target, in runs for `lodo`. `seed` is DomainBed's number of the hyperparameters, in a run that
    was imported from there: such runs are selected by its rules among equals (see `swad.testbed.results.domainbed`).
    """

    index: int
    settings: str
    records: RecordTable = field(repr=False)
    held_out: str | None = None
    seed: int | None = None

    def mean(self, values: Iterable[float]) -> float:
        """Return the mean of accuracies; DomainBed's rounding decides between its runs."""
        return mean(values) if self.seed is None else domainbed.mean(list(values))


@dataclass(frozen=True)
class OracleView(SourceView):
    """A `SourceView` with the target's records, for the oracles."""

    target_records: RecordTable = field(default_factory=RecordTable, repr=False)


@dataclass(frozen=True)
class SelectedStep:
    """A selector's answer: the index of a run, and the step of its live weights. None stands for the last step.

    `score` is the accuracy that decided; None if there was one run and nothing to compare.
    """

    index: int
    step: int | None
    score: float | None = None


Selector = Callable[[Sequence[Any], str | None], SelectedStep]


def source_view(run: RunData, target: str, index: int = 0) -> SourceView:
    """Copy the part of `run` that a selector may see when `target` is the domain to be evaluated on.

    Records without a domain are left out, because the target may have influenced them.
    """
    others = [name for name in run.targets if name != target]
    records = run.table.of_other_domains(target)
    seed = domainbed.seed_of(run.config)
    settings = run.search_settings if seed is None else f"hparams_seed {seed}"
    return SourceView(index, settings, records, others[0] if others else None, seed)


def oracle_view(run: RunData, target: str, index: int = 0) -> OracleView:
    """Copy the part of `run` that an oracle may see: every record with a domain."""
    view = source_view(run, target, index)
    return OracleView(view.index, view.settings, view.records, view.held_out, view.seed, run.table.of_domain(target))


# ------------------------------------------------------------ selectors


def iid(views: Sequence[SourceView], average: str | None) -> SelectedStep:
    """Select by mean accuracy on the sources' validation splits; of equal steps, the earliest."""
    return _best({view.index: _source_scores(view, average) for view in views}, views)


def last(views: Sequence[SourceView], average: str | None) -> SelectedStep:
    """Select the last step of the run with the best mean source-validation accuracy at that step."""
    return _best({view.index: last_score(_source_scores(view, average)) for view in views}, views)


def oracle(views: Sequence[OracleView], average: str | None) -> SelectedStep:
    """Select the last step of the run with the best accuracy on the target's validation split at that step."""
    return _best({view.index: last_score(_target_scores(view, average)) for view in views}, views)


def oracle_best_step(views: Sequence[OracleView], average: str | None) -> SelectedStep:
    """Select step and run by the accuracy on the target's validation split."""
    return _best({view.index: _target_scores(view, average) for view in views}, views)


def lodo(views: Sequence[SourceView], average: str | None) -> SelectedStep:
    """Select by the mean accuracy on sources that were held out together with the target.

    Every setting needs one run with the target alone held out, which can be selected, and for each source one run with
    the target and that source held out, which gives the accuracy on that source.
    """
    candidates = {view.settings: view for view in views if view.held_out is None}
    # In the order of the records, which decides how DomainBed's means round.
    sources = list(
        dict.fromkeys(
            key.domain
            for view in candidates.values()
            for key in view.records.series
            if key.domain is not None and key.split == "out"
        )
    )
    held_out: dict[str, dict[str, dict[int, float]]] = defaultdict(dict)  # by settings and source: scores by step
    for view in views:
        if view.held_out is not None:
            by_domain = view.records.find("accuracy", "in", average)
            own = [series for name, series in by_domain.items() if name == view.held_out]
            held_out[view.settings][view.held_out] = mean_scores(own, average)
    scores: dict[int, dict[int, float]] = {}
    for settings, view in candidates.items():
        by_source = held_out[settings]
        if set(by_source) != set(sources):
            continue
        steps = set.intersection(*(set(by_step) for by_step in by_source.values()))
        if average is None:  # an unfinished run lacks the last steps
            steps &= _source_scores(view, average).keys()
        scores[view.index] = {step: view.mean(by_source[source][step] for source in sources) for step in sorted(steps)}
    if not any(scores.values()):
        raise SelectionError(
            "lodo needs runs with the target and each source in turn held out together: "
            f"the sources are {', '.join(sorted(sources))}, and there are pairs with "
            f"{', '.join(sorted({name for by_source in held_out.values() for name in by_source})) or 'none'}; "
            "train the missing pairs with --target TARGET+SOURCE, or use iid"
        )
    return _best(scores, list(candidates.values()))


SELECTORS: dict[str, Selector] = {
    "iid": iid,
    "last": last,
    "lodo": lodo,
    "oracle": oracle,
    "oracle_best_step": oracle_best_step,
}
ORACLES = ("oracle", "oracle_best_step")
"""Selections that look at the target."""


def _best(scores: Mapping[int, Mapping[int, float]], views: Sequence[SourceView]) -> SelectedStep:
    """Return the run and step with the highest score that is not nan; of equal scores, the earliest step.

    `scores` are by index of the run and step. Of equal runs of DomainBed, the one with the largest seed comes first.
    """
    scored = {(index, step): score for index, by_step in scores.items() for step, score in by_step.items()}
    valid = {candidate: score for candidate, score in scored.items() if not math.isnan(score)}
    if not valid:
        if len(views) == 1:
            return SelectedStep(views[0].index, None)
        raise SelectionError(
            f"cannot select from {len(views)} runs without a validation accuracy: "
            "evaluate every average on the validation splits, or keep one run per target and trial"
        )
    seeds = {view.index: view.seed or 0 for view in views}
    index, step = max(valid, key=lambda candidate: (valid[candidate], seeds[candidate[0]], -candidate[1]))
    return SelectedStep(index, step, valid[index, step])


def _source_scores(view: SourceView, average: str | None) -> dict[int, float]:
    by_domain = view.records.find("accuracy", "out", average)
    return mean_scores((series for name, series in by_domain.items() if name != view.held_out), average, view.mean)


def _target_scores(view: OracleView, average: str | None) -> dict[int, float]:
    return mean_scores(view.target_records.find("accuracy", "out", average).values(), average)


def mean_scores(
    series: Iterable[Series], average: str | None, mean: Callable[[Iterable[float]], float] = mean
) -> dict[int, float]:
    """Return the mean accuracy over domains by step; for an average, only that of its last step."""
    means = mean_by_step(series, mean)
    return means if average is None else last_score(means)


def last_score(by_step: Mapping[int, float]) -> dict[int, float]:
    """Keep the score of the last step."""
    return {max(by_step): by_step[max(by_step)]} if by_step else {}
