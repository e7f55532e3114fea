"""Model selection: the run and step that represent a method on each target and trial, and their accuracy there.

A *candidate* is a run and, for live weights, a step; an average is evaluated at the end of training. A selection gives
every candidate a score and takes the highest; of equal scores the earliest step. The target domain must not influence
the choice, so scores are computed from rows of source domains alone, except by the oracles:

    iid                mean accuracy, or another metric, on the sources' validation splits, at any step
    last               the same, at the last step
    lodo               mean accuracy on sources that were held out together with the target
    oracle             accuracy on the target's validation split, at the last step
    oracle_best_step   the same, at any step (the published code's definition)

Runs imported from DomainBed are selected by its rules among equals (see `swad.testbed.results.domainbed`).

    results = select(runs, "iid", "swad")     # the results of one method, one row for each target and trial
    collect_results(runs)                     # those of all methods, dataset by dataset, and what is missing

The columns of results are `RESULTS`: `run` is the place in the list of runs, `score` what decided, `value` the
accuracy (or another metric) on the target, and `source` the mean on the sources, both at `step`. `weights_step` is the
step of the weights themselves: `best` is evaluated at the end, but is of an earlier step.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count, permutations
from typing import TYPE_CHECKING, Any, NamedTuple

from swad.testbed.results import domainbed
from swad.testbed.results.labels import LIVE_WEIGHTS, is_erm, shared_label
from swad.testbed.results.metrics import CLASS_ACCURACY, OF_CLASS, get_metric
from swad.testbed.results.records import LIVE
from swad.testbed.results.run_data import RunData
from swad.testbed.results.runs import RunList, SkippedRun, once
from swad.util.grouping import group_by
from swad.util.names import NO_TARGET, choice_problem
from swad.util.statistics import mean

if TYPE_CHECKING:
    import pandas as pd

SELECTIONS = ("iid", "last", "lodo", "oracle", "oracle_best_step")
ORACLES = ("oracle", "oracle_best_step")
"""Selections that look at the target."""

RESULTS = (
    *("method", "algorithm", "weights", "target", "trial", "run", "step", "score", "value", "source", "weights_step"),
)
MISSING = ("method", "algorithm", "weights", "target", "trial", "reason")
"""Columns of what has no result although there are runs of it; without a trial, it is the whole target."""

CANDIDATES = ("unit", "dataset", "method", "algorithm", "weights", "target", "trial", "run", "evaluated")
"""Columns of the runs to choose from: a unit has one result, and `evaluated` says whether the run has its weights."""

EVALUATION = ["run", "weights", "at"]
"""What is evaluated: live weights at a step, an average at the end."""
AT_END = -1


class SelectionError(ValueError):
    """The records do not allow a selection. The message is one line that says what is missing."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))  # the name of a domain may hold a line break


class Options(NamedTuple):
    """How results are selected, and what is reported of them."""

    selection: str = "iid"
    split: str = "in"
    """The split of the held-out domain."""
    metric: str = "accuracy"
    select_by: str = "accuracy"
    """The metric by which runs are selected."""


class Choice(NamedTuple):
    """The run that was chosen, and the step of its live weights; None stands for the last step.

    `score` is what decided; None if there was one run and nothing to compare.
    """

    run: int
    step: int | None
    score: float | None = None


# ------------------------------------------------------------ values of a metric


@once
def records_of(runs: RunList, metric: str) -> pd.DataFrame:
    """Return the records that a metric is read from, where `on_target` tells whether the run holds the domain out."""
    import numpy as np

    rows = runs.records
    rows = rows[((rows.metric == get_metric(metric).recorded) & rows.domain.notna()).to_numpy()]
    if rows.empty and metric != "accuracy":
        option = CLASS_ACCURACY if metric.startswith(OF_CLASS) else metric
        raise SelectionError(f"no run has recorded {metric}: train with --metrics {option}, or choose another metric")
    codes = {name: code for code, name in enumerate(rows.domain.cat.categories)}
    held_out = np.zeros((len(runs), len(codes)), bool)
    for number, run in enumerate(runs):
        held_out[number, [codes[name] for name in run.targets if name in codes]] = True
    on_target = held_out[rows.run.to_numpy(), rows.domain.cat.codes.to_numpy()]
    if len(runs.repeats):  # of values that were recorded twice, the last one counts
        key = ["run", "weights", "split", "step", "domain"]
        kept = ~rows.duplicated(key, keep="last").to_numpy()
        rows, on_target = rows[kept], on_target[kept]
    return rows.drop(columns="metric").assign(on_target=on_target)


@once
def evaluated_weights(runs: RunList, metric: str) -> list[dict[str, bool]]:
    """Return the weights of each run that were evaluated, and whether on a target, or without any on sources."""
    from swad.testbed.results.frames import distinct

    rows = records_of(runs, metric)
    evaluated: list[dict[str, bool]] = [{} for _ in runs]
    for number, weights in distinct(rows[rows.on_target], "weights"):
        evaluated[number][weights] = True
    for number, weights in distinct(rows[~rows.on_target], "weights"):
        evaluated[number].setdefault(weights, not runs[number].targets)
    return evaluated


@once
def _evaluations(runs: RunList, metric: str, weights: tuple[str, ...]) -> pd.DataFrame:
    """Return what a metric is over domains: run weights on_target split step value at, with steps in order."""
    rows = records_of(runs, metric)
    return _over_domains(runs, rows[rows.weights.isin(weights).to_numpy()], metric)


def _over_domains(runs: RunList, rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Combine domains at the steps that all domains of a run, weights, side and split have.

    An interrupted run may have recorded some domains of a step. A mean over those would not be comparable. Live weights
    keep every step, averages the last one.
    """
    import numpy as np

    step, domain = rows.step.to_numpy(), rows.domain.cat
    series = rows.run.to_numpy(np.int64)
    for codes, n_codes in (
        (rows.weights.cat.codes, len(rows.weights.cat.categories)),
        (rows.split.cat.codes, len(rows.split.cat.categories)),
        (rows.on_target, 2),
    ):
        series = series * n_codes + codes.to_numpy()
    of_domains = np.sort(series * len(domain.categories) + domain.codes.to_numpy())
    of_domains = of_domains[np.diff(of_domains, prepend=-1) != 0] // max(len(domain.categories), 1)
    known, n_domains = np.unique(of_domains, return_counts=True)
    order = np.lexsort((step, series))  # stable, so domains stay in the order of the records
    series, step = series[order], step[order]
    starts = np.flatnonzero((np.diff(series, prepend=-1) != 0) | (np.diff(step, prepend=-1) != 0))
    ends = np.append(starts[1:], len(order))
    complete = ends - starts == n_domains[np.searchsorted(known, series[starts])]
    starts, ends = starts[complete], ends[complete]
    is_live = (rows.weights == LIVE).to_numpy()[order[starts]]
    kept = is_live | (np.diff(series[starts], append=-1) != 0)
    starts, ends = starts[kept], ends[kept]
    found = rows[["run", "weights", "on_target", "split", "step"]].take(order[starts]).reset_index(drop=True)
    values = rows.value.to_numpy()[order].tolist()
    combine = get_metric(metric).over_domains
    # DomainBed's rounding decides between its runs.
    imported = domainbed.mean if combine is mean else combine
    combine_of = [combine if domainbed.seed_of(run.config) is None else imported for run in runs]
    groups = zip(found.run.tolist(), starts.tolist(), ends.tolist(), strict=True)
    found["value"] = [combine_of[run](values[start:end]) for run, start, end in groups]
    return found.assign(at=found.step.where(found.weights == LIVE, AT_END))


def _on_sources(runs: RunList, metric: str, weights: tuple[str, ...]) -> pd.DataFrame:
    """Return the evaluations on the sources' test splits if they have any (60/20/20), else on validation splits."""
    import pandas as pd

    rows = _evaluations(runs, metric, weights)
    rows = rows[~rows.on_target]
    return pd.concat([rows[rows.split == split] for split in ("test", "out")]).drop_duplicates(EVALUATION)


# ------------------------------------------------------------ the choice


def _scores(runs: RunList, selection: str, weights: tuple[str, ...], select_by: str) -> pd.DataFrame:
    """Return what a selection, except lodo, scores candidates by: run weights step at score."""
    rows = _evaluations(runs, select_by, weights)
    rows = rows[(rows.on_target == (selection in ORACLES)) & (rows.split == "out")]
    if selection in ("last", "oracle"):
        rows = rows.drop_duplicates(["run", "weights"], keep="last")
    return rows.rename(columns={"value": "score"})


@once
def _lodo_index(runs: RunList) -> tuple[list[str], dict[int, list[str]], dict[tuple[object, ...], int]]:
    """Return the search settings of runs, their sources, and the runs that hold out a target together with a source."""
    from swad.testbed.results.frames import distinct

    settings = [
        run.search_settings if (seed := domainbed.seed_of(run.config)) is None else f"hparams_seed {seed}"
        for run in runs
    ]
    rows = records_of(runs, "accuracy")
    # In the order of the records, which decides how DomainBed's means round.
    sources: dict[int, list[str]] = defaultdict(list)
    for number, domain in distinct(rows[~rows.on_target & (rows.split == "out")], "domain"):
        sources[number].append(domain)
    pairs: dict[tuple[object, ...], int] = {
        (runs[number].dataset, runs[number].algorithm, weights, target, runs[number].trial, settings[number], source): (
            number
        )
        for number, evaluated in enumerate(evaluated_weights(runs, "accuracy"))
        for weights in evaluated
        for target, source in permutations(runs[number].targets, 2)
    }
    return settings, sources, pairs


def _pairs(runs: RunList, candidates: pd.DataFrame) -> pd.DataFrame:
    """Return for each candidate and source the run that holds out the source, too: unit run weights domain pair.

    `pair` is nan where no such run has the candidate's settings.
    """
    import pandas as pd

    settings, sources, pairs = _lodo_index(runs)
    columns = candidates[["unit", "run", "weights"]].itertuples(index=False)
    of_settings = {(unit, settings[run]): (unit, run, weights) for unit, run, weights in columns}
    rows = []
    for (_, setting), (unit, number, weights) in of_settings.items():
        run = runs[number]
        for source in sources[number]:
            key = (run.dataset, run.algorithm, weights, run.target, run.trial, setting, source)
            rows.append((unit, number, weights, source, pairs.get(key, math.nan)))
    return pd.DataFrame(rows, columns=["unit", "run", "weights", "domain", "pair"])


def _lodo_scores(runs: RunList, candidates: pd.DataFrame, select_by: str) -> pd.DataFrame:
    """Score a setting by the runs that hold out the target and each source in turn.

    Every setting needs one run with the target alone held out, which can be selected, and for each source one run
    with the target and that source held out, which gives the score on that source.
    """
    import pandas as pd

    rows, asked = records_of(runs, select_by), _pairs(runs, candidates)
    candidate = ["run", "weights"]
    asked = asked[asked.pair.notna().groupby([asked.run, asked.weights]).transform("all").astype(bool)]
    asked = asked.astype({"run": int, "pair": int, "weights": rows.weights.dtype, "domain": rows.domain.dtype})
    left_out = rows[rows.on_target & (rows.split == "in")].sort_values("step", kind="stable")
    left_out = left_out[(left_out.weights == LIVE) | ~left_out.duplicated([*candidate, "domain"], keep="last")]
    left_out = left_out.rename(columns={"run": "pair"})
    found = asked.merge(left_out, on=["pair", "weights", "domain"])
    n_sources = asked.groupby(candidate, observed=True).domain.size().rename("n_sources")
    n_found = found.groupby(candidate, observed=True).domain.nunique().rename("n_found")
    both = pd.concat([n_sources, n_found], axis=1)
    complete = both[both.n_sources == both.n_found].reset_index()[candidate].astype({"weights": rows.weights.dtype})
    scores = _over_domains(runs, found, select_by).merge(complete).rename(columns={"value": "score"})
    own = _scores(runs, "iid", (LIVE,), select_by)[EVALUATION]  # an unfinished run lacks the last steps
    return pd.concat([scores[scores.weights == LIVE].merge(own), scores[scores.weights != LIVE]])


def _best(runs: RunList, scores: pd.DataFrame, by: str) -> pd.DataFrame:
    """Return the highest score that is not nan; of equal scores the earliest step.

    Of equal runs of DomainBed, the one with the largest seed comes first.
    """
    valid = scores[scores.score.notna()]
    seeds = [domainbed.seed_of(runs[number].config) or 0 for number in valid.run]
    order = ["score", "seed", "step", "run"]
    return valid.assign(seed=seeds).sort_values(order, ascending=[False, False, True, True]).drop_duplicates(by)


def _choose(
    runs: RunList, selection: str, candidates: pd.DataFrame, select_by: str
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the candidates, and the best one of each unit that its scores allow."""
    if selection == "lodo":
        scores = _lodo_scores(runs, candidates, select_by)
    else:
        scores = _scores(runs, selection, _names(candidates), select_by)
    candidates = candidates.astype({"weights": runs.records.weights.dtype})
    with_scores = candidates.merge(scores[["run", "weights", "step", "at", "score"]], on=["run", "weights"])
    if selection == "lodo":  # a run without its pairs is no candidate
        candidates = with_scores[candidates.columns].drop_duplicates()
    return candidates, _best(runs, with_scores, "unit")


def choose(runs: RunList, target: str, selection: str, weights: str, select_by: str = "accuracy") -> Choice:
    """Choose among the runs of a target and trial, by `run` as the place in the list. Their results are not read."""
    _require_selection(selection)
    members = [number for number, run in enumerate(runs) if selection != "lodo" or run.target == target]
    candidates = _frame([(0, runs[0].table_name, "", runs[0].algorithm, weights, target, 0, n, True) for n in members])
    _, best = _choose(runs, selection, candidates, select_by)
    if len(best):
        run, step, score = best[["run", "step", "score"]].astype(object).iloc[0]
        return Choice(run, step, score)
    if selection == "lodo" or len(runs) > 1:
        raise SelectionError(_why_no_choice(runs, selection, select_by, candidates))
    return Choice(0, None)


def _require_selection(selection: str) -> None:
    if selection not in SELECTIONS:
        raise SelectionError(choice_problem("method", selection, SELECTIONS))


# ------------------------------------------------------------ results


def select(
    runs: Iterable[RunData],
    selection: str = "iid",
    weights: str = LIVE,
    *,
    split: str = "in",
    targets: Sequence[str] | None = None,
    metric: str = "accuracy",
    select_by: str = "accuracy",
) -> pd.DataFrame:
    """Return the results of one method on every target and trial, with the columns `RESULTS`.

    A run without a target is reported with its mean on the sources, as the target "none". Trials that do not allow
    a selection are left out; if a target has no other, the error says why. `collect_results` lists them.

    Args:
        runs: Runs of one dataset and algorithm.
        selection: "iid", "last", "lodo", "oracle" or "oracle_best_step".
        weights: The weights to report, such as "swad" or "best"; "live" for the live weights at the selected step.
        split: The split of the held-out domain to report: "in" (as in the paper), "out", "full" or "test".
        targets: Targets to report; all by default.
        metric: The metric to report; see `swad.testbed.results.metrics`.
        select_by: The metric by which runs are selected.
    """
    runs = RunList.of(runs)
    candidates = _candidates(runs, metric, lambda members: [weights])
    if targets is not None:
        candidates = candidates[candidates.target.isin(targets)]
    if candidates.empty:
        raise SelectionError("selection needs a run with at most one target: train with one domain held out")
    results, missing = _select(runs, Options(selection, split, metric, select_by), candidates)
    whole = missing[missing.trial.isna()]
    if len(whole):
        raise SelectionError(whole.reason.iloc[0])
    return results[list(RESULTS)]


def _candidates(runs: RunList, metric: str, weights_of: Callable[[Sequence[int]], Sequence[str]]) -> pd.DataFrame:
    """Return the runs that hold out at most one domain for each set of weights, with the columns `CANDIDATES`.

    They are in the order of the tables: ERM first, because the other algorithms are compared with it. `weights_of` says
    which weights are reported of the runs of one dataset and algorithm.
    """
    evaluated = evaluated_weights(runs, metric)
    groups = group_by(range(len(runs)), lambda number: (runs[number].table_name, runs[number].algorithm))
    rows: list[tuple[Any, ...]] = []
    number_of_unit = count()
    for (dataset, algorithm), members in sorted(groups.items(), key=lambda item: not is_erm(item[0][1])):
        alone = group_by(members, lambda number: (runs[number].target, runs[number].trial))
        alone = {key: numbers for key, numbers in sorted(alone.items()) if len(runs[numbers[0]].targets) < 2}
        for name in weights_of(members):
            own = [runs[number] for number in members if name in evaluated[number]]
            label = shared_label(own, None if name == LIVE else name) if own else ""
            for key, numbers in alone.items():
                unit = (next(number_of_unit), dataset, label, algorithm, name, *key)
                rows += [(*unit, number, name in evaluated[number]) for number in numbers]
    return _frame(rows)


def _names(candidates: pd.DataFrame) -> tuple[str, ...]:
    return tuple(dict.fromkeys(candidates.weights))


def _frame(candidates: Sequence[tuple[Any, ...]]) -> pd.DataFrame:
    import pandas as pd

    frame = pd.DataFrame(candidates, columns=list(CANDIDATES))
    return frame.astype({"unit": int, "run": int, "trial": int, "evaluated": bool})


def _select(runs: RunList, options: Options, candidates: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the results of candidates, and which units have none and why."""
    import pandas as pd

    selection, split, metric, select_by = options
    _require_selection(selection)
    has_split = (candidates.target != NO_TARGET) | (selection in ("iid", "last"))
    allowed = candidates[candidates.evaluated & has_split]
    scored, best = _choose(runs, selection, allowed, select_by)
    weights = _names(allowed)
    rows, sources = _evaluations(runs, metric, weights), _on_sources(runs, metric, weights)
    without_target = sources.run.isin([number for number, run in enumerate(runs) if not run.targets])
    reported = pd.concat([rows[rows.on_target & (rows.split == split)], sources[without_target]])
    # One candidate needs no score: there is nothing to compare.
    alone = scored[~scored.unit.duplicated(keep=False) & ~scored.unit.isin(best.unit)]
    last = reported.drop_duplicates(["run", "weights"], keep="last")[[*EVALUATION, "step"]]
    chosen = pd.concat([best, alone.merge(last, on=["run", "weights"], how="left")])
    found = chosen.drop(columns="step").merge(reported[[*EVALUATION, "step", "value"]], on=EVALUATION)
    source = sources[[*EVALUATION, "value"]].rename(columns={"value": "source"})
    found = found.merge(source, on=EVALUATION, how="left").sort_values("unit", ignore_index=True)
    found = found.assign(weights=found.weights.astype(str), weights_step=_weights_steps(runs, found))
    return found[["dataset", *RESULTS]], _missing(runs, options, candidates, chosen, set(found.unit))


def _weights_steps(runs: RunList, results: pd.DataFrame) -> pd.Series:
    """Return the step of the weights of each result. Only records of source domains decide which that is for `best`."""
    is_best = results.weights == LIVE_WEIGHTS[0]
    if not is_best.any():
        return results.step
    steps: dict[int, int] = {}
    for metric, members in group_by(results.run[is_best].unique(), lambda number: runs[number].select_by).items():
        rows = records_of(runs, metric)
        rows = rows[(rows.weights == LIVE) & (rows.split == "out") & ~rows.on_target & rows.run.isin(members)]
        scores = _over_domains(runs, rows, metric).rename(columns={"value": "score"})
        steps |= _best(runs, scores, "run").set_index("run").step.to_dict()
    return results.step.mask(is_best, results.run.map(steps).fillna(results.step)).astype(int)


# ------------------------------------------------------------ what is missing


def _missing(
    runs: RunList, options: Options, candidates: pd.DataFrame, chosen: pd.DataFrame, found: Collection[int]
) -> pd.DataFrame:
    """Say which units have no result and why; once for a target that has none, where a selection failed."""
    import pandas as pd

    lacking = candidates[~candidates.unit.isin(found)]
    choices = {row.unit: row for row in chosen[chosen.unit.isin(lacking.unit)].itertuples()}
    target = ["dataset", *MISSING[:4]]
    n_trials = candidates.groupby(target).trial.nunique()
    rows: list[tuple[Any, ...]] = []
    for place, of_target in lacking.groupby(target, sort=False):
        reasons = [
            (members.trial.iloc[0], *_why_missing(runs, options, members, choices.get(unit)))
            for unit, members in of_target.groupby("unit", sort=False)
        ]
        if any(failed for *_, failed in reasons) and len(reasons) == n_trials[place]:
            reasons = [(None, next(reason for _, reason, failed in reasons if failed), True)]
        rows += [(*place, trial, reason) for trial, reason, _ in reasons]
    return pd.DataFrame(rows, columns=["dataset", *MISSING]).astype({"trial": "Int64"})


def _why_missing(runs: RunList, options: Options, members: pd.DataFrame, choice: Any) -> tuple[str, bool]:
    """Return why a unit has no result, and whether its selection failed."""
    selection, split, metric, select_by = options
    target, weights, label = members.target.iloc[0], members.weights.iloc[0], get_metric(metric).label
    if target == NO_TARGET and selection not in ("iid", "last"):
        return f"{selection} needs runs with a target: select by iid or last", True
    if not members.evaluated.any():
        run = runs[members.run.iloc[0]]
        state = f"has no {label} of these weights" if run.finished else "is unfinished"
        return f"the run {run.path.name} {state}", False
    if choice is None:
        return _why_no_choice(runs, selection, select_by, members[members.evaluated]), True
    problem = f"the run {runs[choice.run].path.name} has no {label}"
    name = "the live weights" if weights == LIVE else weights
    if target == NO_TARGET:
        return f"{problem} of {name}: train it to the end", True
    if weights != LIVE:
        hint = "train with --split 60/20/20" if split == "test" else "choose another --target-split"
        return f"the split {split!r} of the target was not evaluated: {hint}", True
    step = None if math.isnan(choice.at) else int(choice.at)
    return (
        f"{problem} of {name} on split {split!r} of target {target} at step {step}: "
        "evaluate the target at every evaluation, or report best or last, which are evaluated at the end"
    ), True


def _why_no_choice(runs: RunList, selection: str, select_by: str, candidates: pd.DataFrame) -> str:
    """Say why the selection for one unit failed."""
    if selection != "lodo":
        return (
            f"cannot select from {len(candidates)} runs without a validation {get_metric(select_by).label}: "
            "evaluate every average on the validation splits, or keep one run per target and trial"
        )
    has_pair = _pairs(runs, candidates).groupby("domain").pair.count() > 0
    return (
        "lodo needs runs with the target and each source in turn held out together: "
        f"the sources are {', '.join(has_pair.index)}, and there are pairs with "
        f"{', '.join(has_pair.index[has_pair]) or 'none'}; "
        "train the missing pairs with --target TARGET+SOURCE, or use iid"
    )


# ------------------------------------------------------------ what tables report


def reported_weights(
    runs: RunList, selection: str = "iid", metric: str = "accuracy", members: Iterable[int] | None = None
) -> list[str]:
    """Return the weights that tables report of runs, or of some: those evaluated on targets, or without on sources.

    Live weights come first, and SWAD last. The live weights at the step that is selected get a row of their own only
    with "oracle_best_step", or if the runs have neither `best` nor `last`.
    """
    evaluated = evaluated_weights(runs, metric)
    numbers = range(len(runs)) if members is None else members
    names = {name: None for number in numbers for name, is_reported in evaluated[number].items() if is_reported}
    if selection != "oracle_best_step" and any(name in names for name in LIVE_WEIGHTS):
        names.pop(LIVE, None)
    return sorted(names, key=lambda name: (name not in (LIVE, *LIVE_WEIGHTS), name.startswith("swad")))


def run_scores(
    runs: RunList, selection: str, weights: Sequence[str], select_by: str = "accuracy"
) -> dict[tuple[int, str], float]:
    """Return by run and weights what a selection would choose a run by: its best score that is not nan."""
    by_run = _scores(runs, selection, tuple(weights), select_by).groupby(["run", "weights"], observed=True).score
    best: dict[tuple[int, str], float] = by_run.max().dropna().to_dict()
    return best


# ------------------------------------------------------------ the results of a dataset


@dataclass(frozen=True)
class DatasetResults:
    """The results of all methods on one dataset, of runs with a target or of runs without."""

    dataset: str
    """Name of the dataset, with ", no target" where there is none."""
    selection: str
    split: str
    runs: RunList = field(repr=False)
    """All runs that were selected from, which `run` in the frames refers to."""
    members: tuple[RunData, ...] = field(repr=False)
    """Those on this dataset."""
    targets: tuple[str, ...]
    """The domains that runs hold out."""
    missing_targets: tuple[str, ...]
    """Domains of the dataset that no run with results holds out."""
    results: pd.DataFrame = field(repr=False)
    """One row for each method, target and trial, with the columns `RESULTS`."""
    missing: pd.DataFrame = field(repr=False)
    """What has no result, and why, with the columns `MISSING`."""
    skipped: tuple[SkippedRun, ...] = ()
    has_test: bool = False
    """Whether any run evaluated a test split."""
    has_live: bool = True
    """Whether the live weights of any run were evaluated on its target."""
    metric: str = "accuracy"
    """What is reported."""
    select_by: str = "accuracy"
    """The metric by which runs were selected."""
    derived: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What was built from the results; see `once`."""

    @property
    def has_target(self) -> bool:
        """Whether the values are those of held-out domains, not of sources."""
        return self.targets != (NO_TARGET,)

    @cached_property
    def methods(self) -> list[str]:
        """The methods with results, in the order of the tables."""
        return list(dict.fromkeys(self.results.method))

    @cached_property
    def units(self) -> pd.DataFrame:
        """The values on the targets, with a row for each target and trial and a column for each method."""
        return self._units("value")

    @cached_property
    def source_units(self) -> pd.DataFrame:
        """The same on the sources."""
        return self._units("source")

    def _units(self, column: str) -> pd.DataFrame:
        from swad.testbed.results.compare import units_of

        rows = self.results.drop_duplicates(["method", "target", "trial"], keep="last")
        return units_of(rows, column, self.targets)


def same_kind(results: Iterable[DatasetResults]) -> bool:
    """Return whether all or none have targets: a mean over both kinds of values would mean nothing."""
    return len({each.has_target for each in results}) < 2


def collect_results(
    runs: Iterable[RunData],
    selection: str = "iid",
    split: str = "in",
    metric: str = "accuracy",
    select_by: str | None = None,
) -> list[DatasetResults]:
    """Select the results of every method, dataset by dataset.

    Args:
        runs: The runs.
        selection: "iid", "last", "lodo", "oracle" or "oracle_best_step".
        split: The split of the held-out domain to report: "in", "out", "full" or "test".
        metric: The metric to report; see `swad.testbed.results.metrics`.
        select_by: The metric by which runs are selected. Default: that by which the runs chose their own `best`
            weights, or accuracy if they differ.
    """
    from swad.testbed.results.frames import distinct

    runs = RunList.of(runs)
    if select_by is None:
        trained = {run.select_by for run in runs}
        select_by = trained.pop() if len(trained) == 1 else "accuracy"
    options = Options(selection, split, metric, select_by)
    candidates = _candidates(runs, metric, lambda members: reported_weights(runs, selection, metric, members))
    results, missing = _select(runs, options, candidates)
    evaluated, rows = evaluated_weights(runs, metric), records_of(runs, metric)
    with_test = set(rows.run[rows.split == "test"])
    domains = group_by(distinct(runs.records, "domain"), lambda pair: pair[0])
    by_dataset = group_by(range(len(runs)), lambda number: runs[number].table_name)
    collected = []
    for name, numbers in sorted(by_dataset.items(), key=lambda item: not runs[item[1][0]].targets):  # no target is last
        members = [runs[number] for number in numbers]
        # A skipped run whose dataset is unknown, or has no table, is mentioned in every table.
        others = by_dataset.keys() - {name}
        skipped = tuple(entry for entry in runs.skipped if entry.run is None or entry.run.table_name not in others)
        # Every run evaluates its sources, so the domains of the dataset are known from the records. An unfinished run
        # may hold out a domain that does not exist; a finished one does not.
        finished = [entry.run for entry in skipped if entry.run is not None and entry.run.finished]
        known = {domain for number in numbers for _, domain in domains.get(number, ())}
        known |= {target for run in (*members, *finished) for target in run.targets}
        targets = tuple(sorted({run.target for run in members if len(run.targets) < 2}))
        collected.append(
            DatasetResults(
                dataset=name,
                **options._asdict(),
                runs=runs,
                members=tuple(members),
                targets=targets,
                missing_targets=() if targets == (NO_TARGET,) else tuple(sorted(known - {*targets})),
                results=results[results.dataset == name].drop(columns="dataset"),
                missing=missing[missing.dataset == name].drop(columns="dataset"),
                skipped=skipped,
                has_test=not with_test.isdisjoint(numbers),
                has_live=any(evaluated[number].get(LIVE, False) for number in numbers),
            )
        )
    return collected
