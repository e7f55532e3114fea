"""The accuracy that represents a method on each target and trial, of the run and step that a selector chooses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swad.testbed.results.labels import LIVE_WEIGHTS
from swad.testbed.results.records import make_frame
from swad.testbed.results.run_data import RunData
from swad.testbed.results.selectors import (
    ORACLES,
    SELECTORS,
    SelectionError,
    iid,
    mean_scores,
    oracle_view,
    source_view,
)
from swad.util.grouping import group_by
from swad.util.names import NO_TARGET, choice_problem

if TYPE_CHECKING:
    import pandas


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

    @classmethod
    def join(cls, selections: Sequence[Selection]) -> Selection:
        """Join the results of several targets."""
        return cls(
            (result for selection in selections for result in selection),
            (trial for selection in selections for trial in selection.incomplete),
        )

    def accuracies(self) -> dict[tuple[str, int], float]:
        """Return the accuracy on the target by target and trial."""
        return {(result.target, result.trial): result.accuracy for result in self}

    def source_accuracies(self) -> dict[tuple[str, int], float]:
        """Return the mean accuracy on the sources of the same runs, where it was evaluated."""
        accuracies = {
            (r.target, r.trial): source_accuracy(r.run, r.average, r.step if r.average is None else None) for r in self
        }
        return {key: accuracy[0] for key, accuracy in accuracies.items() if accuracy is not None}

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
        raise SelectionError(choice_problem("method", method, SELECTORS))
    runs = list(runs)
    if targets is None:
        targets = sorted({run.target for run in runs if len(run.targets) < 2})
    if not targets:
        raise SelectionError("selection needs a run with at most one target: train with one domain held out")
    return Selection.join([_select_target(runs, target, method, average, split) for target in targets])


def _select_target(runs: Sequence[RunData], target: str, method: str, average: str | None, split: str) -> Selection:
    """Select a run for every trial of one target; raise the error of the first trial if no trial has a result."""
    if target == NO_TARGET and method not in ("iid", "last"):
        raise SelectionError(f"{method} needs runs with a target: select by iid or last")
    of_target = (run for run in runs if run.target == target or (target in run.targets and method == "lodo"))
    view = oracle_view if method in ORACLES else source_view
    results, incomplete, errors = [], [], []
    for trial, members in sorted(group_by(of_target, lambda run: run.trial).items()):
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
        accuracy = source_accuracy(run, average, step)
        if accuracy is None:
            weights = average or "the live weights"
            raise SelectionError(f"the run {run.path.name} has no accuracy of {weights}: train it to the end")
        return accuracy
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
    by_step = mean_scores((series for name, series in by_domain.items() if name not in run.targets), average)
    return max((score for score in by_step.values() if not math.isnan(score)), default=None)


def source_accuracy(run: RunData, average: str | None, step: int | None = None) -> tuple[float, int] | None:
    """Return the mean accuracy on the sources' test splits if they have any (60/20/20), else on validation splits.

    It is that at `step`, or at the last step for None, which is returned, too. None if it was not evaluated.
    """
    for split in ("test", "out"):
        by_domain = run.table.find("accuracy", split, average)
        sources = (series for name, series in by_domain.items() if name not in (None, *run.targets))
        by_step = mean_scores(sources, average)
        if by_step and (step is None or step in by_step or average is not None):
            at = step if step is not None and step in by_step else max(by_step)
            return by_step[at], at
    return None
