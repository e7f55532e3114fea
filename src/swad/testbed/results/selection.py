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
accuracy on the target, and `source` the mean accuracy on the sources, both at `step`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from swad.testbed.results import domainbed
from swad.testbed.results.labels import LIVE_WEIGHTS, is_erm, shared_label
from swad.testbed.results.metrics import CLASS_ACCURACY, OF_CLASS, get_metric
from swad.testbed.results.records import LIVE
from swad.testbed.results.run_data import RunData
from swad.testbed.results.runs import RunList, SkippedRun
from swad.testbed.results.training_curves import ByStep, mean_by_step
from swad.util.grouping import group_by
from swad.util.names import NO_TARGET, choice_problem

if TYPE_CHECKING:
    import pandas

P = ParamSpec("P")
T = TypeVar("T")

SELECTIONS = ("iid", "last", "lodo", "oracle", "oracle_best_step")
ORACLES = ("oracle", "oracle_best_step")
"""Selections that look at the target."""

RESULTS = ("method", "algorithm", "weights", "target", "trial", "run", "step", "score", "value", "source")
MISSING = ("method", "algorithm", "weights", "target", "trial", "reason")
"""Columns of what has no result although there are runs of it; without a trial, it is the whole target."""

Scores = Mapping[tuple[int, str], ByStep]
"""Scores or accuracies by run, weights and step."""


class SelectionError(ValueError):
    """The records do not allow a selection. The message is one line that says what is missing."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))  # the name of a domain may hold a line break


class Choice(NamedTuple):
    """The run that was chosen, and the step of its live weights; None stands for the last step.

    `score` is the accuracy that decided; None if there was one run and nothing to compare.
    """

    run: int
    step: int | None
    score: float | None = None


# ------------------------------------------------------------ accuracies


class Accuracies:
    """The accuracies of runs, or another metric, where those on held-out domains are apart from those on sources."""

    def __init__(self, runs: RunList, metric: str = "accuracy") -> None:
        import numpy as np

        self.runs, self.metric = runs, get_metric(metric)
        records = runs.records
        rows = records[((records.metric == self.metric.recorded) & records.domain.notna()).to_numpy()]
        if rows.empty and metric != "accuracy":
            option = CLASS_ACCURACY if metric.startswith(OF_CLASS) else metric
            raise SelectionError(
                f"no run has recorded {metric}: train with --metrics {option}, or choose another metric"
            )
        codes = {name: code for code, name in enumerate(rows.domain.cat.categories)}
        on_target = np.zeros(len(rows), bool)
        for place in range(max((len(run.targets) for run in runs), default=0)):
            of_run = [codes.get(run.targets[place], -2) if place < len(run.targets) else -2 for run in runs]
            on_target |= rows.domain.cat.codes.to_numpy() == np.array(of_run)[rows.run.to_numpy()]
        self.on_target, self.on_sources = rows[on_target], rows[~on_target]
        self._means: dict[Hashable, Scores] = {}

    @classmethod
    def of(cls, runs: RunList, metric: str = "accuracy") -> Accuracies:
        """Return the accuracies of runs, which are collected once."""
        if ("accuracies", metric) not in runs.derived:
            runs.derived["accuracies", metric] = cls(runs, metric)
        accuracies: Accuracies = runs.derived["accuracies", metric]
        return accuracies

    @cached_property
    def evaluated(self) -> dict[tuple[int, str], bool]:
        """The weights of every run that were evaluated, and whether they were on a target, or without any on sources.

        In the order of the records, which is that of tables.
        """
        evaluated: dict[tuple[int, str], bool] = {}
        from swad.testbed.results.frames import distinct

        for rows, reported in ((self.on_target, True), (self.on_sources, False)):
            for run, weights in distinct(rows, "weights"):
                evaluated[run, weights] = reported or evaluated.get((run, weights), not self.runs[run].targets)
        return evaluated

    def source_scores(self, weights: Iterable[str], runs: Iterable[int] | None = None) -> Scores:
        """Return the mean accuracy on the sources' validation splits; the target's rows are not among those read."""
        # DomainBed's rounding decides between its runs.
        of_domains = self.metric.over_domains
        return self.on_split("out", weights, runs, lambda run: domainbed.mean if run in self.imported else of_domains)

    @cached_property
    def imported(self) -> set[int]:
        """The runs of DomainBed."""
        return {n for n, run in enumerate(self.runs) if domainbed.seed_of(run.config) is not None}

    def on_split(
        self,
        split: str,
        weights: Iterable[str],
        runs: Iterable[int] | None = None,
        mean_of: Callable[[int], Callable[[list[float]], float]] | None = None,
    ) -> Scores:
        """Return the mean accuracy on a split of the sources, which is computed once where all means are alike."""
        key = split, frozenset(weights), None if runs is None else frozenset(runs)
        if mean_of is not None and self.imported:
            return mean_by_step(self._rows(*key), mean_of)
        if key not in self._means:
            self._means[key] = mean_by_step(self._rows(*key), lambda run: self.metric.over_domains)
        return self._means[key]

    def _rows(self, split: str, weights: Collection[str], runs: Collection[int] | None) -> pandas.DataFrame:
        rows = self.on_sources
        rows = rows[((rows.split == split) & rows.weights.isin(list(weights))).to_numpy()]
        return rows if runs is None else rows[rows.run.isin(list(runs)).to_numpy()]

    def target_scores(self, weights: Iterable[str], split: str = "out") -> Scores:
        """Return the accuracy on a split of the target."""
        rows = self.on_target
        return mean_by_step(rows[((rows.split == split) & rows.weights.isin(list(weights))).to_numpy()])

    def scores(self, selection: str, weights: Iterable[str]) -> Scores:
        """Return what a selection, except lodo, scores runs by."""
        scores = self.target_scores(weights) if selection in ORACLES else self.source_scores(weights)
        at_end = selection in ("last", "oracle")
        return {key: _last(each) if at_end or key[1] != LIVE else each for key, each in scores.items()}


def _last(by_step: ByStep) -> ByStep:
    return {max(by_step): by_step[max(by_step)]} if by_step else {}


# ------------------------------------------------------------ the choice


class Chooser:
    """Chooses among candidates by one selection.

    Args:
        accuracies: The accuracies of all runs.
        selection: "iid", "last", "lodo", "oracle" or "oracle_best_step".
        weights: The weights that are reported.
    """

    def __init__(self, accuracies: Accuracies, selection: str, weights: Iterable[str]) -> None:
        if selection not in SELECTIONS:
            raise SelectionError(choice_problem("method", selection, SELECTIONS))
        weights = list(weights)
        self._runs, self._selection, self._over_domains = accuracies.runs, selection, accuracies.metric.over_domains
        self._scores = accuracies.scores("iid" if selection == "lodo" else selection, weights)
        self._seeds = [domainbed.seed_of(run.config) for run in self._runs]
        if selection == "lodo":
            rows = accuracies.on_target
            rows = rows[((rows.split == "in") & rows.weights.isin(weights)).to_numpy()]
            self._left_out = {
                domain: mean_by_step(own) for domain, own in rows.groupby("domain", observed=True, sort=False)
            }
            from swad.testbed.results.frames import distinct

            records = self._runs.records
            out = records[((records.split == "out") & records.domain.notna()).to_numpy()]
            self._validated: dict[int, list[str]] = defaultdict(list)  # in the order of the records
            for run, domain in distinct(out, "domain"):
                if domain not in self._runs[run].targets:
                    self._validated[run].append(domain)

    def choose(self, candidates: Sequence[int], target: str, weights: str) -> Choice:
        """Choose the run and step; the candidates have the same trial, and weights that were evaluated."""
        if self._selection == "lodo":
            return self._lodo(candidates, target, weights)
        return self._best({run: self._scores.get((run, weights), {}) for run in candidates})

    def _best(self, scores: Mapping[int, ByStep]) -> Choice:
        """Return the highest score that is not nan; of equal scores the earliest step.

        Of equal runs of DomainBed, the one with the largest seed comes first.
        """
        valid = [
            (score, self._seeds[run] or 0, -step, run)
            for run, by_step in scores.items()
            for step, score in by_step.items()
            if not math.isnan(score)
        ]
        if not valid:
            if len(scores) == 1:
                return Choice(next(iter(scores)), None)
            raise SelectionError(
                f"cannot select from {len(scores)} runs without a validation accuracy: "
                "evaluate every average on the validation splits, or keep one run per target and trial"
            )
        score, _, step, run = max(valid, key=lambda candidate: candidate[:3])
        return Choice(run, -step, score)

    def _lodo(self, candidates: Sequence[int], target: str, weights: str) -> Choice:
        """Score a setting by the runs that hold out the target and each source in turn.

        Every setting needs one run with the target alone held out, which can be selected, and for each source one run
        with the target and that source held out, which gives the accuracy on that source.
        """
        alone: dict[str, int] = {}
        held_out: dict[str, dict[str, ByStep]] = defaultdict(dict)  # by settings and source: scores by step
        for run in candidates:
            seed = self._seeds[run]
            settings = self._runs[run].search_settings if seed is None else f"hparams_seed {seed}"
            source = next((name for name in self._runs[run].targets if name != target), None)
            if source is None:
                alone[settings] = run
            else:
                scores = self._left_out.get(source, {}).get((run, weights), {})
                held_out[settings][source] = scores if weights == LIVE else _last(scores)
        # In the order of the records, which decides how DomainBed's means round.
        sources = list(dict.fromkeys(domain for run in alone.values() for domain in self._validated[run]))
        complete: dict[int, ByStep] = {run: {} for run in alone.values()}
        for settings, run in alone.items():
            by_source = held_out[settings]
            if set(by_source) == set(sources):
                steps = set.intersection(*(set(by_step) for by_step in by_source.values())) if by_source else set()
                if weights == LIVE:  # an unfinished run lacks the last steps
                    steps &= self._scores.get((run, weights), {}).keys()
                rounded = self._over_domains if self._seeds[run] is None else domainbed.mean
                complete[run] = {step: rounded([by_source[name][step] for name in sources]) for step in sorted(steps)}
        if not any(complete.values()):
            raise SelectionError(
                "lodo needs runs with the target and each source in turn held out together: "
                f"the sources are {', '.join(sorted(sources))}, and there are pairs with "
                f"{', '.join(sorted({name for by_source in held_out.values() for name in by_source})) or 'none'}; "
                "train the missing pairs with --target TARGET+SOURCE, or use iid"
            )
        return self._best(complete)


def choose(runs: RunList, target: str, selection: str, weights: str) -> Choice:
    """Choose among the runs of a target and trial, by `run` as the place in the list."""
    return Chooser(Accuracies.of(runs), selection, [weights]).choose(range(len(runs)), target, weights)


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
) -> pandas.DataFrame:
    """Return the results of one method on every target and trial, with the columns `RESULTS`.

    A run without a target is reported with its accuracy on the sources, as the target "none". Trials that do not allow
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
    selector = _Selector(runs, selection, split, [weights], metric, select_by)
    if targets is None:
        targets = sorted({run.target for run in runs if len(run.targets) < 2})
    if not targets:
        raise SelectionError("selection needs a run with at most one target: train with one domain held out")
    results, missing = selector.frames({("", ""): list(enumerate(runs))}, {"": list(targets)}, {("", ""): [weights]})
    whole = missing[missing.trial.isna()]
    if len(whole):
        raise SelectionError(whole.reason.iloc[0])
    return results.drop(columns="dataset")


@dataclass(frozen=True)
class Method:
    """An algorithm and the weights of it that were evaluated, under the name that tables give it."""

    label: str
    algorithm: str
    weights: str


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
    results: pandas.DataFrame = field(repr=False)
    """One row for each method, target and trial, with the columns `RESULTS`."""
    missing: pandas.DataFrame = field(repr=False)
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
        """Whether the accuracies are those of held-out domains, not of sources."""
        return self.targets != (NO_TARGET,)

    @cached_property
    def methods(self) -> list[Method]:
        """The methods with results, in the order of the tables."""
        names = self.results[["method", "algorithm", "weights"]].drop_duplicates()
        return [Method(*each) for each in names.itertuples(index=False)]

    @cached_property
    def _by_method(self) -> dict[str, list[Any]]:
        return group_by(self.results.itertuples(index=False), lambda row: str(row.method))

    def has(self, method: str) -> bool:
        """Whether a method has results."""
        return method in self._by_method

    def of(self, method: str) -> list[Any]:
        """Return the rows of one method."""
        return self._by_method.get(method, [])

    @cached_property
    def units(self) -> pandas.DataFrame:
        """The accuracies on the targets, with a row for each target and trial and a column for each method."""
        return self._units("value")

    @cached_property
    def source_units(self) -> pandas.DataFrame:
        """The same on the sources."""
        return self._units("source")

    def _units(self, column: str) -> pandas.DataFrame:
        from swad.testbed.results.compare import units_of

        rows = self.results.drop_duplicates(["method", "target", "trial"], keep="last")
        return units_of(rows, column, self.targets)

    def accuracies(self, method: str, column: str = "value") -> dict[tuple[str, int], float]:
        """Return the accuracies of a method by target and trial; `column` is "source" for those on the sources."""
        return {
            (row.target, row.trial): getattr(row, column)
            for row in self.of(method)
            if not math.isnan(getattr(row, column))
        }


def once(build: Callable[Concatenate[DatasetResults, P], T]) -> Callable[Concatenate[DatasetResults, P], T]:
    """Keep what a function builds from results, as a report prints it and shows it on its page."""

    @wraps(build)
    def build_once(results: DatasetResults, /, *args: P.args, **kwargs: P.kwargs) -> T:
        key = (build.__name__, args, *kwargs.items())
        if key not in results.derived:
            results.derived[key] = build(results, *args, **kwargs)
        built: T = results.derived[key]
        return built

    return build_once


def same_kind(results: Iterable[DatasetResults]) -> bool:
    """Return whether all or none have targets: a mean over both kinds of accuracy would mean nothing."""
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
    accuracies = Accuracies.of(runs, metric)
    by_dataset = group_by(enumerate(runs), lambda item: item[1].table_name)
    by_algorithm = group_by(enumerate(runs), lambda item: (item[1].table_name, item[1].algorithm))
    # ERM comes first, because the other algorithms are compared with it.
    methods = dict(sorted(by_algorithm.items(), key=lambda item: not is_erm(item[0][1])))
    weights = _reported(methods, accuracies, selection)
    targets = {
        name: sorted({run.target for _, run in members if len(run.targets) < 2}) for name, members in by_dataset.items()
    }
    names = {name for names in weights.values() for name in names}
    selector = _Selector(runs, selection, split, names, metric, select_by)
    results, missing = selector.frames(methods, targets, weights)
    evaluated = group_by(distinct(runs.records, "domain"), lambda pair: pair[0])
    tested = set(accuracies.on_sources.run[accuracies.on_sources.split == "test"]) | set(
        accuracies.on_target.run[accuracies.on_target.split == "test"]
    )
    collected = []
    for name, members in sorted(by_dataset.items(), key=lambda item: not item[1][0][1].targets):  # no target comes last
        # A skipped run whose dataset is unknown, or has no table, is mentioned in every table.
        others = by_dataset.keys() - {name}
        skipped = tuple(entry for entry in runs.skipped if entry.run is None or entry.run.table_name not in others)
        # Every run evaluates its sources, so the domains of the dataset are known from the records.
        known = {domain for number, _ in members for _, domain in evaluated.get(number, ())}
        known |= {target for _, run in members for target in run.targets}
        # An unfinished run may hold out a domain that does not exist; a finished one does not.
        finished = (entry.run for entry in skipped if entry.run is not None and entry.run.finished)
        known |= {target for run in finished for target in run.targets}
        own = tuple(targets[name])
        collected.append(
            DatasetResults(
                dataset=name,
                selection=selection,
                split=split,
                metric=metric,
                select_by=select_by,
                runs=runs,
                members=tuple(run for _, run in members),
                targets=own,
                missing_targets=() if own == (NO_TARGET,) else tuple(sorted(known - set(own))),
                results=results[results.dataset == name].drop(columns="dataset"),
                missing=missing[missing.dataset == name].drop(columns="dataset"),
                skipped=skipped,
                has_test=any(number in tested for number, _ in members),
                has_live=any(accuracies.evaluated.get((number, LIVE), False) for number, _ in members),
            )
        )
    return collected


def reported_weights(runs: Iterable[RunData], selection: str = "iid") -> list[str]:
    """Return the names of the weights that were evaluated on the targets, or without any on the sources.

    Live weights come first, and SWAD last. The live weights at the step that is selected get a row of their own only
    with "oracle_best_step", or if the runs have neither `best` nor `last`.
    """
    runs = RunList.of(runs)
    return _reported({("", ""): list(enumerate(runs))}, Accuracies.of(runs), selection)["", ""]


_Members = Mapping[tuple[str, str], Sequence[tuple[int, RunData]]]


def _reported(members: _Members, accuracies: Accuracies, selection: str) -> dict[tuple[str, str], list[str]]:
    """Return the weights that are reported for each dataset and algorithm."""
    of_run: dict[int, list[str]] = defaultdict(list)
    for (run, weights), reported in accuracies.evaluated.items():
        if reported:
            of_run[run].append(weights)

    def order(name: str) -> int:
        if name in (LIVE, *LIVE_WEIGHTS):
            return 0
        return 2 if name.startswith("swad") else 1

    reported_by = {}
    for key, runs in members.items():
        names = dict.fromkeys(name for number, _ in runs for name in of_run[number])
        if selection != "oracle_best_step" and any(name in names for name in LIVE_WEIGHTS):
            names.pop(LIVE, None)
        reported_by[key] = sorted(names, key=order)
    return reported_by


class _Selector:
    """Selects for many methods, targets and trials at once, and reads the accuracies of what was selected."""

    def __init__(
        self,
        runs: RunList,
        selection: str,
        split: str,
        weights: Iterable[str],
        metric: str,
        select_by: str,
    ) -> None:
        self._runs, self._selection, self._split = runs, selection, split
        weights = list(weights)
        self._accuracies = Accuracies.of(runs, metric)
        self._chooser = Chooser(Accuracies.of(runs, select_by), selection, weights)
        self._on_target = self._accuracies.target_scores(weights, split)
        self._on_sources = [self._accuracies.on_split(name, weights) for name in ("test", "out")]

    def frames(
        self, methods: _Members, targets: Mapping[str, Sequence[str]], weights: Mapping[tuple[str, str], Sequence[str]]
    ) -> tuple[pandas.DataFrame, pandas.DataFrame]:
        """Return the results, and what is missing, by dataset and algorithm."""
        import pandas

        results: list[tuple[Any, ...]] = []
        missing: list[tuple[Any, ...]] = []
        evaluated = self._accuracies.evaluated
        for (dataset, algorithm), members in methods.items():
            groups: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
            for number, run in members:
                for target in {run.target, *(run.targets if self._selection == "lodo" else ())}:
                    groups[target][run.trial].append(number)
            for name in weights[dataset, algorithm]:
                own = [run for number, run in members if (number, name) in evaluated]
                label = shared_label(own, None if name == LIVE else name) if own else ""
                for target in targets[dataset]:
                    of_method = (dataset, label, algorithm, name, target)
                    found, lacking, error = self._target(groups.get(target, {}), target, name)
                    if error and not found:
                        missing.append((*of_method, None, error))
                    else:
                        results += [(*of_method, *row) for row in found]
                        missing += [(*of_method, *row) for row in lacking]
        frame = pandas.DataFrame(results, columns=["dataset", *RESULTS]).astype({"score": float, "source": float})
        return frame, pandas.DataFrame(missing, columns=["dataset", *MISSING]).astype({"trial": "Int64"})

    def _target(
        self, trials: Mapping[int, Sequence[int]], target: str, weights: str
    ) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]], str]:
        """Return the results by trial, the trials without one and why, and the first error of a selection."""
        if target == NO_TARGET and self._selection not in ("iid", "last"):
            return [], [], f"{self._selection} needs runs with a target: select by iid or last"
        results: list[tuple[Any, ...]] = []
        missing: list[tuple[Any, ...]] = []
        first_error = ""
        for trial, members in sorted(trials.items()):
            alone = [number for number in members if self._runs[number].target == target]
            if not alone:
                continue
            candidates = [number for number in members if (number, weights) in self._accuracies.evaluated]
            if not any(number in candidates for number in alone):
                run = self._runs[alone[0]]
                lacks = f"has no {self._accuracies.metric.label} of these weights"
                state = lacks if run.finished else "is unfinished"
                missing.append((trial, f"the run {run.path.name} {state}"))
                continue
            try:
                choice = self._chooser.choose(candidates, target, weights)
                step = choice.step if weights == LIVE else None
                value, at = self._value(choice.run, target, weights, step)
            except SelectionError as error:
                first_error = first_error or str(error)
                missing.append((trial, str(error)))
                continue
            source = self._source(choice.run, weights, at if weights == LIVE else None)
            results.append((trial, choice.run, at, choice.score, value, None if source is None else source[0]))
        return results, missing, first_error

    def _value(self, number: int, target: str, weights: str, step: int | None) -> tuple[float, int]:
        """Return the accuracy on the target at a step, or at the last one for None, and the step."""
        run, name = self._runs[number], "the live weights" if weights == LIVE else weights
        if target == NO_TARGET:
            accuracy = self._source(number, weights, step)
            if accuracy is None:
                raise SelectionError(f"the run {run.path.name} has no accuracy of {name}: train it to the end")
            return accuracy
        by_step = self._on_target.get((number, weights), {})
        if step is None and by_step:
            step = max(by_step)
        if not by_step and weights != LIVE:
            hint = "train with --split 60/20/20" if self._split == "test" else "choose another --target-split"
            raise SelectionError(f"the split {self._split!r} of the target was not evaluated: {hint}")
        if step is None or step not in by_step:
            raise SelectionError(
                f"the run {run.path.name} has no accuracy of {name} on split {self._split!r} of target "
                f"{target} at step {step}: evaluate the target at every evaluation, or report best or last, which are "
                "evaluated at the end"
            )
        return by_step[step], step

    def _source(self, number: int, weights: str, step: int | None) -> tuple[float, int] | None:
        """Return the mean accuracy on the sources' test splits if they have any (60/20/20), else on validation splits.

        It is that at `step`, or at the last step for None, which is returned, too. None if it was not evaluated.
        """
        for scores in self._on_sources:
            by_step: ByStep = scores.get((number, weights), {})
            if weights != LIVE:
                by_step = _last(by_step)
            if by_step and (step is None or step in by_step or weights != LIVE):
                at = step if step is not None and step in by_step else max(by_step)
                return by_step[at], at
        return None


# ------------------------------------------------------------ more about runs


def run_scores(
    runs: RunList, selection: str, weights: Sequence[str], select_by: str = "accuracy"
) -> dict[tuple[int, str], float]:
    """Return by run and weights what a selection would choose a run by: its best score that is not nan."""
    scores = Accuracies.of(runs, select_by).scores(selection, weights)
    best = {key: max((s for s in each.values() if not math.isnan(s)), default=None) for key, each in scores.items()}
    return {key: score for key, score in best.items() if score is not None}


def weights_steps(runs: RunList, results: pandas.DataFrame) -> list[int]:
    """Return the step of the weights of each result: `best` is evaluated at the end, but is of an earlier step.

    Only records of source domains decide which step that is, so the target has no influence.
    """
    best = {run for run, weights in zip(results.run, results.weights, strict=True) if weights == LIVE_WEIGHTS[0]}
    steps: dict[int, int] = {}
    for metric, members in group_by(best, lambda run: runs[run].select_by).items():
        for (run, _), by_step in Accuracies.of(runs, metric).source_scores([LIVE], members).items():
            valid = {step: score for step, score in by_step.items() if not math.isnan(score)}
            if valid:
                steps[run] = max(valid, key=lambda step: (valid[step], -step))
    return [
        steps.get(run, step) if weights == LIVE_WEIGHTS[0] else step
        for run, weights, step in zip(results.run.tolist(), results.weights, results.step.tolist(), strict=True)
    ]
