"""Model selection: choose the run and the step that represent a method, from records alone.

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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swad.results import domainbed
from swad.results.labels import LIVE_WEIGHTS
from swad.results.record_table import RecordTable, Series
from swad.results.records import make_frame
from swad.results.runs import RunData
from swad.util.names import NO_TARGET
from swad.util.statistics import mean

if TYPE_CHECKING:
    import pandas


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
    was imported from there: such runs are selected by its rules among equals (see `swad.results.domainbed`).
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
    settings = hyperparameters(run) if seed is None else f"hparams_seed {seed}"
    return SourceView(index, settings, records, others[0] if others else None, seed)


def oracle_view(run: RunData, target: str, index: int = 0) -> OracleView:
    """Copy the part of `run` that an oracle may see: every record with a domain."""
    view = source_view(run, target, index)
    return OracleView(view.index, view.settings, view.records, view.held_out, view.seed, run.table.of_domain(target))


def hyperparameters(run: RunData) -> str:
    """Return the hyperparameters as text; runs that differ only in target, trial, seed or machine have the same.

    >>> from pathlib import Path
    >>> roles = {"lr": "hyperparameter", "trial": "identity", "engine": "machine"}
    >>> first = RunData(Path("a"), {"lr": 5e-5, "trial": 0, "engine": "eager"}, (), True, roles)
    >>> second = RunData(Path("b"), {"lr": 5e-5, "trial": 2, "engine": "graph"}, (), True, roles)
    >>> hyperparameters(first) == hyperparameters(second)
    True
    """
    return run.search_settings


# ------------------------------------------------------------ selectors


def iid(views: Sequence[SourceView], average: str | None) -> SelectedStep:
    """Select by mean accuracy on the sources' validation splits; of equal steps, the earliest."""
    scores = {(view.index, step): score for view in views for step, score in _source_scores(view, average).items()}
    return _best(scores, views)


def last(views: Sequence[SourceView], average: str | None) -> SelectedStep:
    """Select the last step of the run with the best mean source-validation accuracy at that step."""
    return _best(_last_scores({view.index: _source_scores(view, average) for view in views}), views)


def oracle(views: Sequence[OracleView], average: str | None) -> SelectedStep:
    """Select the last step of the run with the best accuracy on the target's validation split at that step."""
    return _best(_last_scores({view.index: _target_scores(view, average) for view in views}), views)


def oracle_best_step(views: Sequence[OracleView], average: str | None) -> SelectedStep:
    """Select step and run by the accuracy on the target's validation split."""
    scores = {(view.index, step): score for view in views for step, score in _target_scores(view, average).items()}
    return _best(scores, views)


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
            held_out[view.settings][view.held_out] = _by_step({view.held_out: by_domain.get(view.held_out)}, average)
    scores: dict[tuple[int, int], float] = {}
    for settings, view in candidates.items():
        by_source = held_out[settings]
        if set(by_source) != set(sources):
            continue
        steps = set.intersection(*(set(by_step) for by_step in by_source.values()))
        if average is None:  # an unfinished run lacks the last steps
            steps &= _source_scores(view, average).keys()
        for step in sorted(steps):
            scores[view.index, step] = view.mean(by_source[source][step] for source in sources)
    if not scores:
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


def _best(scores: Mapping[tuple[int, int], float], views: Sequence[SourceView]) -> SelectedStep:
    """Return the run and step with the highest score that is not nan; of equal scores, the earliest step.

    Of equal runs of DomainBed, the one with the largest seed comes first.
    """
    valid = {candidate: score for candidate, score in scores.items() if not math.isnan(score)}
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


def _last_scores(scores: Mapping[int, Mapping[int, float]]) -> dict[tuple[int, int], float]:
    """Keep the score of each run's last step."""
    return {(index, max(by_step)): by_step[max(by_step)] for index, by_step in scores.items() if by_step}


def _source_scores(view: SourceView, average: str | None) -> dict[int, float]:
    by_domain = view.records.find("accuracy", "out", average)
    return _by_step({name: series for name, series in by_domain.items() if name != view.held_out}, average, view.mean)


def _target_scores(view: OracleView, average: str | None) -> dict[int, float]:
    return _by_step(view.target_records.find("accuracy", "out", average), average)


def _by_step(
    by_domain: Mapping[str | None, Series | None],
    average: str | None,
    mean: Callable[[Iterable[float]], float] = mean,
) -> dict[int, float]:
    """Return the mean accuracy over domains by step; for an average, only that of its last step."""
    values: dict[int, dict[str | None, float]] = defaultdict(dict)
    recorded = {domain: series for domain, series in by_domain.items() if series is not None}
    for domain, series in recorded.items():
        for step, value in zip(*series, strict=True):
            values[step][domain] = value
    # An interrupted run may have recorded some domains of a step. A mean over those would not be comparable.
    means = {step: mean(each.values()) for step, each in values.items() if len(each) == len(recorded)}
    if average is not None and means:
        return {max(means): means[max(means)]}
    return means


# ------------------------------------------------------------ results


@dataclass(frozen=True)
class TargetResult:
    """The accuracy reported for one target and trial, with the run, step and weights it comes from."""

    target: str
    trial: int
    accuracy: float
    run: RunData = field(repr=False)
    step: int
    average: str | None = None
    """The weights, such as "swad" or "best"; None for the live weights at `step`."""
    score: float | None = None
    """The accuracy by which the run was selected: of source domains, except with an oracle."""

    @property
    def directory(self) -> Path:
        """The directory of the selected run."""
        return self.run.path

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """The hyperparameters of the selected run."""
        return self.run.hyperparameters


@dataclass(frozen=True)
class IncompleteTrial:
    """A trial without a result, although runs of it exist."""

    target: str
    trial: int
    reason: str


class Selection(list[TargetResult]):
    """The results of one method by target and trial, with the trials that lack one in `incomplete`."""

    def __init__(self, results: Iterable[TargetResult] = (), incomplete: Iterable[IncompleteTrial] = ()) -> None:
        super().__init__(results)
        self.incomplete = tuple(incomplete)

    def to_frame(self) -> pandas.DataFrame:
        """Return the results as a pandas data frame, with the hyperparameters of the selected runs as columns."""
        columns = ["dataset", "algorithm", "target", "trial", "average", "accuracy", "step", "directory"]
        names = dict.fromkeys(f"hyperparameter.{name}" for result in self for name in result.hyperparameters)
        rows = [
            {
                "dataset": result.run.dataset,
                "algorithm": result.run.algorithm,
                "target": result.target,
                "trial": result.trial,
                "average": result.average,
                "accuracy": result.accuracy,
                "step": result.step,
                "directory": str(result.directory),
                **{f"hyperparameter.{name}": value for name, value in result.hyperparameters.items()},
            }
            for result in self
        ]
        return make_frame(rows, [*columns, *names])


def select(
    runs: Iterable[RunData],
    method: str = "iid",
    average: str | None = None,
    *,
    split: str = "in",
    targets: Sequence[str] | None = None,
) -> Selection:
    """Select a run for every target and trial, then read the target's accuracy from its records.

    A run without a target is reported with its accuracy on the sources, as the target "none".
    A trial that does not allow a selection is in the result's `incomplete`, as long as its target has another trial.

    Args:
        runs: Runs of one dataset and algorithm.
        method: Name of a selector: "iid", "last", "lodo", "oracle" or "oracle_best_step".
        average: The weights to report, such as "swad" or "best"; None for the live weights at the selected step.
        split: The split of the held-out domain to report: "in" (as in the paper), "out", "full" or "test".
        targets: Targets to report; all by default.
    """
    if method not in SELECTORS:
        raise SelectionError(f"method must be one of {', '.join(SELECTORS)}; got {method!r}")
    runs = list(runs)
    if targets is None:
        targets = sorted({run.target for run in runs if len(run.targets) < 2})
    if not targets:
        raise SelectionError("selection needs a run with at most one target: train with one domain held out")
    by_target = [_select_target(runs, target, method, average, split) for target in targets]
    return Selection(
        (result for selection in by_target for result in selection),
        (trial for selection in by_target for trial in selection.incomplete),
    )


def _select_target(runs: Sequence[RunData], target: str, method: str, average: str | None, split: str) -> Selection:
    """Select a run for every trial of one target; raise the error of the first trial if no trial has a result."""
    if target == NO_TARGET and method not in ("iid", "last"):
        raise SelectionError(f"{method} needs runs with a target: select by iid or last")
    by_trial: dict[int, list[RunData]] = defaultdict(list)
    for run in runs:
        if run.target == target or (target in run.targets and method == "lodo"):
            by_trial[run.trial].append(run)
    view = oracle_view if method in ORACLES else source_view
    results, incomplete, errors = [], [], []
    for trial, members in sorted(by_trial.items()):
        if not any(run.target == target for run in members):
            continue
        candidates = [run for run in members if average in run.table.evaluated_averages]
        if not any(run.target == target for run in candidates):
            run = next(run for run in members if run.target == target)
            state = "has no accuracy of these weights" if run.finished else "is unfinished"
            incomplete.append(IncompleteTrial(target, trial, f"the run {run.path.name} {state}"))
            continue
        try:
            selected = SELECTORS[method]([view(run, target, index) for index, run in enumerate(candidates)], average)
            run = candidates[selected.index]
            accuracy, step = target_accuracy(run, target, average, split, selected.step if average is None else None)
        except SelectionError as error:
            errors.append(error)
            incomplete.append(IncompleteTrial(target, trial, str(error)))
            continue
        results.append(TargetResult(target, trial, accuracy, run, step, average, selected.score))
    if errors and not results:
        raise errors[0]
    return Selection(results, incomplete)


def target_accuracy(run: RunData, target: str, average: str | None, split: str, step: int | None) -> tuple[float, int]:
    """Return the target's accuracy at `step`, or at the last step for None, and the step.

    Without a target it is the mean accuracy on the sources; see `source_accuracy`.
    """
    if target == NO_TARGET:
        found = _source_accuracy(run, average, step)
        if found is None:
            weights = average or "the live weights"
            raise SelectionError(f"the run {run.path.name} has no accuracy of {weights}: train it to the end")
        return found
    series = run.table.find("accuracy", split, average).get(target)
    by_step = {} if series is None else dict(zip(*series, strict=True))
    if step is None and by_step:
        step = max(by_step)
    if not by_step and average is not None:
        hint = "train with --split 60/20/20" if split == "test" else "choose another --target-split"
        raise SelectionError(f"the split {split!r} of the target was not evaluated: {hint}")
    if step is None or step not in by_step:
        raise SelectionError(
            f"the run {run.path.name} has no accuracy of {average or 'the live weights'} on split {split!r} of target "
            f"{target} at step {step}: evaluate the target at every evaluation, or report best or last, which are "
            "evaluated at the end"
        )
    return by_step[step], step


def weights_step(result: TargetResult) -> int:
    """Return the step of the selected weights: `best` is evaluated at the end, but its weights are of an earlier step.

    Only records of source domains decide which step that is, so the target has no influence.
    """
    if result.average != LIVE_WEIGHTS[0]:
        return result.step
    step = iid([source_view(result.run, result.target)], None).step
    return result.step if step is None else step


def validation_accuracy(run: RunData, average: str | None) -> float | None:
    """Return the mean accuracy on the validation splits of the sources; None if it was not evaluated.

    Of an average it is the last one, of the live weights (None) that of the best step.
    """
    by_domain = run.table.find("accuracy", "out", average)
    by_step = _by_step({name: series for name, series in by_domain.items() if name not in run.targets}, average)
    return max((score for score in by_step.values() if not math.isnan(score)), default=None)


def source_accuracy(run: RunData, average: str | None, step: int | None = None) -> float | None:
    """Return the mean accuracy on the sources' test splits if they have any (60/20/20), else on validation splits."""
    found = _source_accuracy(run, average, step)
    return None if found is None else found[0]


def _source_accuracy(run: RunData, average: str | None, step: int | None) -> tuple[float, int] | None:
    for split in ("test", "out"):
        by_domain = run.table.find("accuracy", split, average)
        sources = {name: series for name, series in by_domain.items() if name not in (None, *run.targets)}
        by_step = _by_step(sources, average)
        if by_step and (step is None or step in by_step or average is not None):
            at = step if step is not None and step in by_step else max(by_step)
            return by_step[at], at
    return None
