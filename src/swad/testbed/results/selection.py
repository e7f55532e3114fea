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

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import permutations
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

EVALUATION = ["run", "weights", "at"]
"""What is evaluated: live weights at a step, an average at the end."""
AT_END = -1


class SelectionError(ValueError):
    """The records do not allow a selection. The message is one line that says what is missing."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))  # the name of a domain may hold a line break


class Unit(NamedTuple):
    """What has one result."""

    dataset: str
    method: str
    algorithm: str
    weights: str
    target: str
    trial: int


Units = Mapping[Unit, Sequence[int]]
"""The runs of each unit that hold out its target alone, in the order of the tables."""


class Options(NamedTuple):
    """How results are selected, and what is reported of them."""

    selection: str
    split: str
    """The split of the held-out domain."""
    metric: str
    select_by: str
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
    return rows.drop(columns="metric").assign(on_target=on_target)


@once
def evaluated_weights(runs: RunList, metric: str) -> dict[tuple[int, str], bool]:
    """Return the weights of every run that were evaluated, and whether on a target, or without any on sources."""
    from swad.testbed.results.frames import distinct

    rows = records_of(runs, metric)
    evaluated = dict.fromkeys(distinct(rows[rows.on_target], "weights"), True)
    for run, weights in distinct(rows[~rows.on_target], "weights"):
        evaluated.setdefault((run, weights), not runs[run].targets)
    return evaluated


def _means(runs: RunList, rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Combine domains by run, weights and step, at the steps that all domains of a run's weights have.

    An interrupted run may have recorded some domains of a step. A mean over those would not be comparable. Of values
    that were recorded twice, the last one counts.
    """
    import numpy as np

    rows = rows.drop_duplicates(["run", "weights", "step", "domain"], keep="last")
    run, step, domain, codes = rows.run.to_numpy(), rows.step.to_numpy(), rows.domain.cat, rows.weights.cat.codes
    series = run.astype(np.int64) * len(rows.weights.cat.categories) + codes.to_numpy()
    of_domains = np.unique(series * len(domain.categories) + domain.codes.to_numpy()) // max(len(domain.categories), 1)
    known, n_domains = np.unique(of_domains, return_counts=True)
    order = np.lexsort((step, series))  # stable, so domains stay in the order of the records
    series, step = series[order], step[order]
    starts = np.flatnonzero((np.diff(series, prepend=-1) != 0) | (np.diff(step, prepend=-1) != 0))
    ends = np.append(starts[1:], len(order))
    complete = ends - starts == n_domains[np.searchsorted(known, series[starts])]
    starts, ends = starts[complete], ends[complete]
    means = rows[["run", "weights", "step"]].take(order[starts]).reset_index(drop=True)
    values = rows.value.to_numpy()[order].tolist()
    combine = get_metric(metric).over_domains
    # DomainBed's rounding decides between its runs.
    imported = domainbed.mean if combine is mean else combine
    combine_of = [combine if domainbed.seed_of(run.config) is None else imported for run in runs]
    groups = zip(means.run.tolist(), starts.tolist(), ends.tolist(), strict=False)
    return means.assign(score=[combine_of[run](values[start:end]) for run, start, end in groups])


def _evaluations(means: pd.DataFrame) -> pd.DataFrame:
    """Keep every step of live weights and the last one of averages, and add the column `at`."""
    means = means[(means.weights == LIVE) | ~means.duplicated(["run", "weights"], keep="last")]
    return means.assign(at=means.step.where(means.weights == LIVE, AT_END))


def _on_split(runs: RunList, weights: Collection[str], split: str, on_target: bool, metric: str) -> pd.DataFrame:
    rows = records_of(runs, metric)
    rows = rows[(rows.on_target == on_target) & (rows.split == split) & rows.weights.isin(weights)]
    return _means(runs, rows, metric)


def _on_sources(runs: RunList, weights: Collection[str], metric: str) -> pd.DataFrame:
    """Return the means on the sources' test splits if they have any (60/20/20), else on validation splits."""
    import pandas as pd

    splits = [_evaluations(_on_split(runs, weights, split, False, metric)) for split in ("test", "out")]
    return pd.concat(splits).drop_duplicates(EVALUATION)


# ------------------------------------------------------------ the choice


def scores(runs: RunList, selection: str, weights: Collection[str], select_by: str) -> pd.DataFrame:
    """Return what a selection, except lodo, scores candidates by: run weights step score at."""
    means = _on_split(runs, weights, "out", selection in ORACLES, select_by)
    if selection in ("last", "oracle"):
        means = means.drop_duplicates(["run", "weights"], keep="last")
    return _evaluations(means)


class _Pairs:
    """The runs that hold out a target together with a source, by the settings of a search; DomainBed numbers those."""

    def __init__(self, runs: RunList) -> None:
        from swad.testbed.results.frames import distinct

        self.settings = [
            run.search_settings if (seed := domainbed.seed_of(run.config)) is None else f"hparams_seed {seed}"
            for run in runs
        ]
        self.sources: dict[int, list[str]] = defaultdict(list)
        """The sources of a run in the order of its records, which decides how DomainBed's means round."""
        rows = records_of(runs, "accuracy")
        for number, domain in distinct(rows[~rows.on_target & (rows.split == "out")], "domain"):
            self.sources[number].append(domain)
        self._pairs: dict[tuple[object, ...], dict[str, int]] = defaultdict(dict)
        for number, weights in evaluated_weights(runs, "accuracy"):
            run = runs[number]
            for target, source in permutations(run.targets, 2):
                key = (run.dataset, run.algorithm, weights, target, run.trial, self.settings[number])
                self._pairs[key][source] = number
        self._runs = runs

    def of_unit(self, unit: Unit, members: Sequence[int]) -> dict[int, dict[str, int | None]]:
        """Return for each run, by source, the run that holds it out too with the same settings; None without one."""
        found = {}
        for setting, number in {self.settings[number]: number for number in members}.items():
            run = self._runs[number]
            pairs = self._pairs.get((run.dataset, run.algorithm, unit.weights, unit.target, unit.trial, setting), {})
            found[number] = {source: pairs.get(source) for source in self.sources[number]}
        return found


@once
def _pairs(runs: RunList) -> _Pairs:
    return _Pairs(runs)


def _lodo_scores(runs: RunList, units: Units, weights: Collection[str], select_by: str) -> pd.DataFrame:
    """Score a setting by the runs that hold out the target and each source in turn.

    Every setting needs one run with the target alone held out, which can be selected, and for each source one run
    with the target and that source held out, which gives the score on that source.
    """
    import pandas as pd

    rows, pairs = records_of(runs, select_by), _pairs(runs)
    of_sources = [
        (number, unit.weights, domain, pair)
        for unit, members in units.items()
        for number, by_source in pairs.of_unit(unit, members).items()
        if None not in by_source.values()
        for domain, pair in by_source.items()
    ]
    asked = pd.DataFrame(of_sources, columns=["run", "weights", "domain", "pair"])
    asked = asked.astype({"run": int, "pair": int, "weights": rows.weights.dtype, "domain": rows.domain.dtype})
    n_sources = asked.groupby(["run", "weights"], observed=True).size().rename("n_sources").reset_index()
    left_out = rows[rows.on_target & (rows.split == "in") & rows.weights.isin(weights)]
    left_out = left_out.drop_duplicates(["run", "weights", "domain", "step"], keep="last").sort_values("step")
    left_out = left_out[(left_out.weights == LIVE) | ~left_out.duplicated(["run", "weights", "domain"], keep="last")]
    left_out = left_out.rename(columns={"run": "pair"}).drop(columns="split")
    found = asked.merge(left_out, on=["pair", "weights", "domain"])
    n_found = found.groupby(["run", "weights"], observed=True).domain.nunique().rename("n_found").reset_index()
    complete = n_sources.merge(n_found).query("n_sources == n_found")[["run", "weights"]]
    means = _evaluations(_means(runs, found, select_by)).merge(complete)
    live = [LIVE] if LIVE in weights else []
    own = scores(runs, "iid", live, select_by)[EVALUATION]  # an unfinished run lacks the last steps
    return pd.concat([means.merge(own), means[means.weights != LIVE]])


def _best(runs: RunList, candidates: pd.DataFrame, by: str) -> pd.DataFrame:
    """Return the highest score that is not nan; of equal scores the earliest step.

    Of equal runs of DomainBed, the one with the largest seed comes first.
    """
    valid = candidates[candidates.score.notna()]
    seeds = [domainbed.seed_of(runs[number].config) or 0 for number in valid.run]
    order = ["score", "seed", "step", "run"]
    return valid.assign(seed=seeds).sort_values(order, ascending=[False, False, True, True]).drop_duplicates(by)


def _choose(runs: RunList, selection: str, units: Units, select_by: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the candidates, with the number of their unit, and the best one of each unit that its scores allow."""
    import pandas as pd

    weights = {unit.weights for unit in units}
    rows = [(place, n, unit.weights) for place, (unit, members) in enumerate(units.items()) for n in members]
    candidates = pd.DataFrame(rows, columns=["unit", "run", "weights"])
    candidates = candidates.astype({"unit": int, "run": int, "weights": runs.records.weights.dtype})
    if selection == "lodo":
        with_scores = candidates.merge(_lodo_scores(runs, units, weights, select_by), on=["run", "weights"])
        candidates = with_scores[candidates.columns].drop_duplicates()  # a run without its pairs is no candidate
    else:
        with_scores = candidates.merge(scores(runs, selection, weights, select_by), on=["run", "weights"])
    return candidates, _best(runs, with_scores, "unit")


def choose(runs: RunList, target: str, selection: str, weights: str, select_by: str = "accuracy") -> Choice:
    """Choose among the runs of a target and trial, by `run` as the place in the list. Their results are not read."""
    _require_selection(selection)
    members = [number for number, run in enumerate(runs) if selection != "lodo" or run.target == target]
    unit = Unit(runs[0].table_name, "", runs[0].algorithm, weights, target, runs[0].trial)
    _, best = _choose(runs, selection, {unit: members}, select_by)
    if len(best):
        run, step, score = best[["run", "step", "score"]].astype(object).iloc[0]
        return Choice(run, step, score)
    if selection == "lodo" or len(runs) > 1:
        raise SelectionError(_why_no_choice(runs, selection, select_by, unit, members))
    return Choice(0, None)


def _require_selection(selection: str) -> None:
    if selection not in SELECTIONS:
        raise SelectionError(choice_problem("method", selection, SELECTIONS))


def _why_no_choice(runs: RunList, selection: str, select_by: str, unit: Unit, members: Sequence[int]) -> str:
    """Say why the selection for one unit failed."""
    if selection != "lodo":
        return (
            f"cannot select from {len(members)} runs without a validation {get_metric(select_by).label}: "
            "evaluate every average on the validation splits, or keep one run per target and trial"
        )
    sources: dict[str, bool] = {}
    for by_source in _pairs(runs).of_unit(unit, members).values():
        sources |= {name: pair is not None or sources.get(name, False) for name, pair in by_source.items()}
    return (
        "lodo needs runs with the target and each source in turn held out together: "
        f"the sources are {', '.join(sorted(sources))}, and there are pairs with "
        f"{', '.join(sorted(name for name in sources if sources[name])) or 'none'}; "
        "train the missing pairs with --target TARGET+SOURCE, or use iid"
    )


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
    groups = _groups(runs)
    units = _units(runs, groups, {key: [weights] for key in groups}, metric)
    units = {unit: members for unit, members in units.items() if targets is None or unit.target in targets}
    if not units:
        raise SelectionError("selection needs a run with at most one target: train with one domain held out")
    results, missing = _select(runs, Options(selection, split, metric, select_by), units)
    whole = missing[missing.trial.isna()]
    if len(whole):
        raise SelectionError(whole.reason.iloc[0])
    return results[list(RESULTS)]


_Groups = Mapping[tuple[str, str], Sequence[int]]
"""The numbers of the runs by dataset and algorithm."""


def _groups(runs: RunList) -> _Groups:
    """Return the groups; ERM comes first, because the other algorithms are compared with it."""
    groups = group_by(range(len(runs)), lambda number: (runs[number].table_name, runs[number].algorithm))
    return dict(sorted(groups.items(), key=lambda item: not is_erm(item[0][1])))


def _units(
    runs: RunList, groups: _Groups, weights: Mapping[tuple[str, str], Sequence[str]], metric: str
) -> dict[Unit, list[int]]:
    """Return the units of all runs that hold out at most one domain."""
    evaluated = evaluated_weights(runs, metric)
    units: dict[Unit, list[int]] = {}
    for (dataset, algorithm), members in groups.items():
        alone = group_by(members, lambda number: (runs[number].target, runs[number].trial))
        alone = {key: numbers for key, numbers in sorted(alone.items()) if len(runs[numbers[0]].targets) < 2}
        for name in weights[dataset, algorithm]:
            own = [runs[number] for number in members if (number, name) in evaluated]
            label = shared_label(own, None if name == LIVE else name) if own else ""
            units |= {Unit(dataset, label, algorithm, name, *key): numbers for key, numbers in alone.items()}
    return units


def _select(runs: RunList, options: Options, units: Units) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the results of units, and which have none and why."""
    import numpy as np
    import pandas as pd

    selection, split, metric, select_by = options
    _require_selection(selection)
    weights = {unit.weights for unit in units}
    evaluated = evaluated_weights(runs, metric)
    allowed = {
        unit: [number for number in members if (number, unit.weights) in evaluated]
        for unit, members in units.items()
        if unit.target != NO_TARGET or selection in ("iid", "last")
    }
    names = list(allowed)
    candidates, best = _choose(runs, selection, allowed, select_by)
    sources = _on_sources(runs, weights, metric)
    without_target = sources.run.isin([number for number, run in enumerate(runs) if not run.targets])
    on_target = _evaluations(_on_split(runs, weights, split, True, metric))
    reported = pd.concat([on_target, sources[without_target]]).rename(columns={"score": "value"})
    # One candidate needs no score: there is nothing to compare.
    alone = candidates[~candidates.unit.duplicated(keep=False) & ~candidates.unit.isin(best.unit)]
    choices: dict[Unit, tuple[int, int | None]] = {}
    choices |= {names[unit]: (run, None) for unit, run in alone[["unit", "run"]].itertuples(index=False)}
    choices |= {names[unit]: (run, at) for unit, run, at in best[["unit", "run", "at"]].itertuples(index=False)}
    last = reported.drop_duplicates(["run", "weights"], keep="last")[EVALUATION]
    alone = alone.merge(last, on=["run", "weights"]).assign(score=np.nan)
    found = pd.concat([best[alone.columns], alone]).merge(reported, on=EVALUATION).sort_values("unit")
    found = found.merge(sources.drop(columns="step").rename(columns={"score": "source"}), on=EVALUATION, how="left")
    found["weights_step"] = _weights_steps(runs, found)
    results = pd.DataFrame([names[place] for place in found.unit], columns=list(Unit._fields))
    results = results.join(found.drop(columns="weights"))[["dataset", *RESULTS]]
    return results, _missing(runs, options, units, choices, {names[place] for place in found.unit})


def _weights_steps(runs: RunList, results: pd.DataFrame) -> pd.Series:
    """Return the step of the weights of each result. Only records of source domains decide which that is for `best`."""
    is_best = results.weights == LIVE_WEIGHTS[0]
    if not is_best.any():
        return results.step
    steps: dict[int, int] = {}
    for metric, members in group_by(results.run[is_best].unique(), lambda number: runs[number].select_by).items():
        rows = records_of(runs, metric)
        rows = rows[(rows.weights == LIVE) & (rows.split == "out") & ~rows.on_target & rows.run.isin(members)]
        steps |= _best(runs, _means(runs, rows, metric), "run").set_index("run").step.to_dict()
    return results.step.mask(is_best, results.run.map(steps).fillna(results.step)).astype(int)


def _missing(
    runs: RunList,
    options: Options,
    units: Units,
    choices: Mapping[Unit, tuple[int, int | None]],
    found: Collection[Unit],
) -> pd.DataFrame:
    """Say which units have no result and why; once for a target that has none, where a selection failed."""
    import pandas as pd

    rows: list[tuple[Any, ...]] = []
    for target, of_target in group_by(units, lambda unit: unit[:-1]).items():
        reasons: list[tuple[int | None, str]] = []
        failed: list[str] = []
        for unit in of_target:
            if unit not in found:
                reason, is_failure = _why_missing(runs, options, unit, units[unit], choices.get(unit))
                reasons.append((unit.trial, reason))
                failed += [reason] * is_failure
        if failed and len(reasons) == len(of_target):
            reasons = [(None, failed[0])]
        rows += [(*target, *reason) for reason in reasons]
    return pd.DataFrame(rows, columns=["dataset", *MISSING]).astype({"trial": "Int64"})


def _why_missing(
    runs: RunList, options: Options, unit: Unit, members: Sequence[int], choice: tuple[int, int | None] | None
) -> tuple[str, bool]:
    """Return why a unit has no result, and whether its selection failed."""
    selection, split, metric, select_by = options
    if unit.target == NO_TARGET and selection not in ("iid", "last"):
        return f"{selection} needs runs with a target: select by iid or last", True
    candidates = [number for number in members if (number, unit.weights) in evaluated_weights(runs, metric)]
    label = get_metric(metric).label
    if not candidates:
        run = runs[members[0]]
        state = f"has no {label} of these weights" if run.finished else "is unfinished"
        return f"the run {run.path.name} {state}", False
    if choice is None:
        return _why_no_choice(runs, selection, select_by, unit, candidates), True
    number, step = choice
    return _why_no_value(f"the run {runs[number].path.name} has no {label}", step, unit, split), True


def _why_no_value(problem: str, step: int | None, unit: Unit, split: str) -> str:
    name = "the live weights" if unit.weights == LIVE else unit.weights
    if unit.target == NO_TARGET:
        return f"{problem} of {name}: train it to the end"
    if unit.weights != LIVE:
        hint = "train with --split 60/20/20" if split == "test" else "choose another --target-split"
        return f"the split {split!r} of the target was not evaluated: {hint}"
    return (
        f"{problem} of {name} on split {split!r} of target {unit.target} at step {step}: "
        "evaluate the target at every evaluation, or report best or last, which are evaluated at the end"
    )


def _reported(runs: RunList, groups: _Groups, selection: str, metric: str) -> dict[tuple[str, str], list[str]]:
    """Return the weights of each dataset and algorithm that were evaluated on targets, or without any on sources.

    Live weights come first, and SWAD last. The live weights at the step that is selected get a row of their own only
    with "oracle_best_step", or if the runs have neither `best` nor `last`.
    """
    of_run: dict[int, list[str]] = defaultdict(list)
    for (number, name), is_reported in evaluated_weights(runs, metric).items():
        if is_reported:
            of_run[number].append(name)
    reported = {}
    for key, members in groups.items():
        names = dict.fromkeys(name for number in members for name in of_run[number])
        if selection != "oracle_best_step" and any(name in names for name in LIVE_WEIGHTS):
            names.pop(LIVE, None)
        reported[key] = sorted(names, key=lambda name: (name not in (LIVE, *LIVE_WEIGHTS), name.startswith("swad")))
    return reported


def reported_weights(runs: RunList, selection: str = "iid") -> list[str]:
    """Return the names of the weights that tables report."""
    return _reported(runs, {("", ""): range(len(runs))}, selection, "accuracy")["", ""]


def run_scores(
    runs: RunList, selection: str, weights: Sequence[str], select_by: str = "accuracy"
) -> dict[tuple[int, str], float]:
    """Return by run and weights what a selection would choose a run by: its best score that is not nan."""
    by_run = scores(runs, selection, weights, select_by).groupby(["run", "weights"], observed=True).score
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
    groups, rows = _groups(runs), records_of(runs, metric)
    units = _units(runs, groups, _reported(runs, groups, selection, metric), metric)
    results, missing = _select(runs, options, units)
    with_live = {
        n for (n, name), is_reported in evaluated_weights(runs, metric).items() if is_reported and name == LIVE
    }
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
                has_live=not with_live.isdisjoint(numbers),
            )
        )
    return collected
