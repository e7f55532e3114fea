"""Model selection: which run and which step stand for a method, decided from records alone.

The target domain must not influence the choice. Here it cannot: a selector is handed `SourceView`s, which
are built by copying the records of source domains and hold neither the others nor a way back to the run. A
selector answers with a `Choice`, and only then is the target's accuracy looked up. Only the oracles, which
exist to show what such knowledge would be worth, get an `OracleView`.

    iid               best mean accuracy on the sources' validation splits, over steps and hyperparameters
    last              the last step; hyperparameters as in `iid`
    lodo              best mean accuracy on a source that was held out too (needs runs with two targets)
    oracle            the last step; hyperparameters by the target's validation split (DomainBed's definition)
    oracle_best_step  step and hyperparameters by the target's validation split (the published code's)

Steps are a choice for the live weights only. An average is what it is at the end of training, so of an
average's rows just the last counts.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from swad.results.records import Record
from swad.results.runs import RunData


class SelectionError(ValueError):
    """A choice that the records do not allow; its message is one line that says what is missing."""


# ------------------------------------------------------------ what selectors see


@dataclass(frozen=True)
class SourceView:
    """What a selector may know of a run: the records of its source domains, and a number to name it by.

    `held_out` is the source domain that was also left out of training, for runs made for `lodo`.
    """

    key: int
    group: str
    records: tuple[Record, ...] = field(repr=False)
    held_out: str | None = None


@dataclass(frozen=True)
class OracleView(SourceView):
    """A `SourceView` with the target's records added; only the oracles ask for it."""

    target_records: tuple[Record, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Choice:
    """A selector's answer: which run, and the step of its live weights or, with None, the last there is."""

    key: int
    step: int | None


Selector = Callable[[Sequence[Any], str | None], Choice]


def source_view(run: RunData, target: str, key: int = 0) -> SourceView:
    """Copy what a selector may see of `run` when `target` is the domain to be judged on.

    Records without a domain go too: nobody can tell what went into them.
    """
    others = [name for name in run.targets if name != target]
    records = tuple(record for record in run.records if record.domain is not None and record.domain != target)
    return SourceView(key, hyperparameters(run), records, others[0] if others else None)


def oracle_view(run: RunData, target: str, key: int = 0) -> OracleView:
    """Copy what an oracle may see: everything with a domain."""
    view = source_view(run, target, key)
    seen = tuple(record for record in run.records if record.domain == target)
    return OracleView(view.key, view.group, view.records, view.held_out, seen)


def hyperparameters(run: RunData) -> str:
    """Name the setting of a run: runs that differ only in target, trial, seed or machine have the same name.

    >>> from pathlib import Path
    >>> roles = {"lr": "hyperparameter", "trial": "identity", "engine": "machine"}
    >>> first = RunData(Path("a"), {"lr": 5e-5, "trial": 0, "engine": "eager"}, (), True, roles)
    >>> second = RunData(Path("b"), {"lr": 5e-5, "trial": 2, "engine": "graph"}, (), True, roles)
    >>> hyperparameters(first) == hyperparameters(second)
    True
    """
    return json.dumps(run.settings("hyperparameter", "protocol"), default=str)


# ------------------------------------------------------------ selectors


def iid(views: Sequence[SourceView], average: str | None) -> Choice:
    """Choose by mean accuracy on the sources' validation splits; the earlier of equals wins."""
    scores = {(view.key, step): score for view in views for step, score in _source(view, average).items()}
    return _best(scores, views)


def last(views: Sequence[SourceView], average: str | None) -> Choice:
    """Take the last step, of the run with the best mean source-validation accuracy there."""
    scores = {}
    for view in views:
        steps = _source(view, average)
        if steps:
            scores[view.key, max(steps)] = steps[max(steps)]
    return _best(scores, views)


def oracle(views: Sequence[OracleView], average: str | None) -> Choice:
    """Take the last step, of the run with the best accuracy on the target's validation split there."""
    scores = {}
    for view in views:
        steps = _by_step(view.target_records, "out", average)
        if steps:
            scores[view.key, max(steps)] = steps[max(steps)]
    return _best(scores, views)


def oracle_best_step(views: Sequence[OracleView], average: str | None) -> Choice:
    """Choose step and run by the accuracy on the target's validation split."""
    return _best(
        {
            (view.key, step): score
            for view in views
            for step, score in _by_step(view.target_records, "out", average).items()
        },
        views,
    )


def lodo(views: Sequence[SourceView], average: str | None) -> Choice:
    """Choose by how well the setting does on sources held out besides the target, averaged over them.

    For every setting there must be one run with the target alone held out, which is the one chosen, and
    for each source one run with that source held out as well, which is the one asked.
    """
    single = {view.group: view for view in views if view.held_out is None}
    sources = {record.domain for view in single.values() for record in view.records if record.split == "out"}
    asked: dict[str, dict[str, dict[int, float]]] = defaultdict(dict)
    for view in views:
        if view.held_out is not None:
            records = [record for record in view.records if record.domain == view.held_out]
            asked[view.group][view.held_out] = _by_step(records, "in", average)
    scores: dict[tuple[int, int], float] = {}
    for group, view in single.items():
        by_source = asked[group]
        if set(by_source) != sources:
            continue
        steps = set.intersection(*(set(found) for found in by_source.values()))
        for step in sorted(steps):
            scores[view.key, step] = _mean(found[step] for found in by_source.values())
    if not scores:
        raise SelectionError(
            "lodo needs runs with the target and each source in turn held out together: "
            f"the sources are {', '.join(sorted(map(str, sources)))}, and there are pairs with "
            f"{', '.join(sorted({name for found in asked.values() for name in found})) or 'none'}; "
            "train them with --target TARGET+SOURCE, or use iid"
        )
    return _best(scores, list(single.values()))


SELECTORS: dict[str, Selector] = {
    "iid": iid,
    "last": last,
    "lodo": lodo,
    "oracle": oracle,
    "oracle_best_step": oracle_best_step,
}
_ORACLES = frozenset({"oracle", "oracle_best_step"})


def _best(scores: Mapping[tuple[int, int], float], views: Sequence[SourceView]) -> Choice:
    finite = {place: score for place, score in scores.items() if not math.isnan(score)}
    if not finite:
        if len(views) == 1:  # nothing was measured to choose by, but there is nothing to choose either
            return Choice(views[0].key, None)
        raise SelectionError(
            f"{len(views)} runs to choose from and no validation accuracy to choose by: "
            "evaluate every average on the validation splits, or keep one run per target and trial"
        )
    key, step = max(finite, key=lambda place: (finite[place], -place[1]))
    return Choice(key, step)


def _source(view: SourceView, average: str | None) -> dict[int, float]:
    return _by_step((record for record in view.records if record.domain != view.held_out), "out", average)


def _by_step(records: Iterable[Record], split: str, average: str | None) -> dict[int, float]:
    """Mean accuracy over domains by step; for an average its last step alone."""
    found: dict[int, dict[str | None, float]] = defaultdict(dict)
    domains: set[str | None] = set()
    for record in records:
        if record.metric == "accuracy" and record.split == split and record.average == average:
            found[record.step][record.domain] = record.value
            domains.add(record.domain)
    # A step that a killed run had half recorded must not be judged on the domains that came out well.
    steps = {step: _mean(values.values()) for step, values in found.items() if len(values) == len(domains)}
    if average is not None and steps:
        return {max(steps): steps[max(steps)]}
    return steps


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return math.fsum(numbers) / len(numbers)


# ------------------------------------------------------------ outcomes


@dataclass(frozen=True)
class Outcome:
    """The accuracy reported for one target and trial, and where it came from."""

    target: str
    trial: int
    value: float
    run: RunData = field(repr=False)
    step: int


@dataclass(frozen=True)
class Summary:
    """Mean over trials with its standard error: population standard deviation / sqrt(n).

    From one trial there is no error to tell, so `error` is None.

    >>> summarize([0.0, 0.0, 1.0, 1.0])
    Summary(mean=0.5, error=0.25, n=4)
    """

    mean: float
    error: float | None
    n: int


def summarize(values: Iterable[float]) -> Summary:
    """Give mean and standard error over trials."""
    numbers = list(values)
    if not numbers:
        raise SelectionError("a mean needs one value at least, got none")
    mean = _mean(numbers)
    if len(numbers) == 1:
        return Summary(mean, None, 1)
    variance = _mean((number - mean) ** 2 for number in numbers)
    return Summary(mean, math.sqrt(variance / len(numbers)), len(numbers))


def select(
    runs: Iterable[RunData],
    method: str = "iid",
    average: str | None = None,
    *,
    split: str = "in",
    search_trial: int | None = None,
    targets: Sequence[str] | None = None,
) -> list[Outcome]:
    """Choose a run for every target and trial, and only then read the target's accuracy off it.

    `runs` are of one dataset and algorithm. `split` is the part of the target reported: "in" as the paper
    does, "out", or "full". With `search_trial`, hyperparameters are chosen on that trial and used for all,
    as in the paper; otherwise each trial chooses its own, as in DomainBed. `targets`: all, by default.
    """
    if method not in SELECTORS:
        raise SelectionError(f"no selection {method!r}: choose one of {', '.join(SELECTORS)}")
    runs = list(runs)
    if targets is None:
        targets = sorted({run.targets[0] for run in runs if len(run.targets) == 1})
    if not targets:
        raise SelectionError("no run with a single target: train with one domain held out")
    outcomes = []
    for target in targets:
        about = [run for run in runs if target in run.targets]
        if method != "lodo":
            about = [run for run in about if len(run.targets) == 1]
        about = [run for run in about if _measured(run, average)]
        trials = sorted({run.trial for run in about})
        setting = None
        if search_trial is not None and trials:
            if search_trial not in trials:
                raise SelectionError(f"no runs of trial {search_trial} for target {target}: there are {trials}")
            chosen, _ = _choose([run for run in about if run.trial == search_trial], target, method, average)
            setting = hyperparameters(chosen)
        for trial in trials:
            candidates = [
                run for run in about if run.trial == trial and (setting is None or hyperparameters(run) == setting)
            ]
            if not any(len(run.targets) == 1 for run in candidates):
                continue
            run, step = _choose(candidates, target, method, average)
            value, step = target_accuracy(run, target, average, split, step if average is None else None)
            outcomes.append(Outcome(target, trial, value, run, step))
    return outcomes


def target_accuracy(run: RunData, target: str, average: str | None, split: str, step: int | None) -> tuple[float, int]:
    """Look up the target's accuracy at `step`, or the last step there is; return it with that step."""
    found = {
        record.step: record.value
        for record in run.records
        if record.metric == "accuracy"
        and record.domain == target
        and record.split == split
        and record.average == average
    }
    if step is None and found:
        step = max(found)
    if not found and average is not None:
        hint = "train with --split 60/20/20" if split == "test" else "choose another --split"
        raise SelectionError(f"the split {split!r} of the target was not measured: {hint}")
    if step not in found or step is None:
        raise SelectionError(
            f"{run.path}: target {target} has no accuracy on split {split!r} for "
            f"{average or 'the live weights'} at step {step}; evaluate the target at every evaluation, "
            "or ask for best or last, which are measured at the end"
        )
    return found[step], step


def source_accuracy(run: RunData, average: str | None, step: int | None = None) -> float | None:
    """Give the mean accuracy on the sources' test splits where there are any (60/20/20), else validation."""
    sources = [record for record in run.records if record.domain not in (None, *run.targets)]
    for split in ("test", "out"):
        found = _by_step(sources, split, average)
        if found and (step is None or step in found or average is not None):
            return found[step if step in found else max(found)]
    return None


def _measured(run: RunData, average: str | None) -> bool:
    return any(record.average == average and record.metric == "accuracy" for record in run.records)


def _choose(runs: Sequence[RunData], target: str, method: str, average: str | None) -> tuple[RunData, int | None]:
    view = oracle_view if method in _ORACLES else source_view
    choice = SELECTORS[method]([view(run, target, key) for key, run in enumerate(runs)], average)
    return runs[choice.key], choice.step
