"""The runs of a sweep: each has a key, a directory and settings that do not depend on the machine.

>>> spec = SweepSpec(datasets=("digits",), targets=("paper",), trials=(0, 1))
>>> plan = expand(spec, "sweep")
>>> [str(run.config.output) for run in plan.runs]
['sweep/runs/digits/erm/paper-0/6ee9f5c70977', 'sweep/runs/digits/erm/paper-1/bc054952ae7c']
>>> plan = expand(SweepSpec(protocol="paper"), "sweep")
>>> len(plan.runs), plan.pending
(396, 44)
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from swad.testbed.algorithms.registry import canonical_name, get_algorithm
from swad.testbed.data import benchmarks
from swad.testbed.sweep.search import Point, points
from swad.testbed.sweep.spec import SweepSpec, canonical_algorithms, selected_name
from swad.testbed.training.config import SETTINGS, RunConfig
from swad.testbed.training.recipes import default_hyperparameters
from swad.util.grouping import group_by
from swad.util.names import NO_TARGET

RUNS = "runs"
"""The folder of the runs in the directory of a sweep."""

Stage = Literal["search", "repeat"]


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep.

    Args:
        key: Unique in the sweep, and the same on every machine.
        config: Its settings, as requested: defaults are filled in on the machine that trains it.
        stage: "repeat" for the runs whose hyperparameters were chosen by the search of the first trial.
    """

    key: str
    config: RunConfig
    stage: Stage = "search"


@dataclass(frozen=True)
class Search:
    """The runs of the first trial among which the hyperparameters of a target's other trials are chosen."""

    dataset: str
    algorithm: str
    target: str
    runs: tuple[PlannedRun, ...]
    """The runs that hold out the target, alone or with another domain."""
    lodo: bool
    choose_by: str
    repeats: tuple[tuple[tuple[str, ...], int], ...]
    """The held-out domains and the trial of every run that repeats the choice."""

    @property
    def pending(self) -> int:
        """The largest number of runs that repeat the choice."""
        return len(self.repeats)

    @property
    def name(self) -> str:
        """The search in messages."""
        return f"{self.algorithm} on {self.dataset}, target {self.target}"


@dataclass(frozen=True)
class SweepPlan:
    """The runs that are known now, and the searches whose choice is not known yet."""

    runs: tuple[PlannedRun, ...]
    searches: tuple[Search, ...] = ()

    @property
    def pending(self) -> int:
        """The number of runs that wait for a choice; with `lodo` their largest number."""
        return sum(search.pending for search in self.searches)

    @property
    def total(self) -> int:
        """The number of all runs."""
        return len(self.runs) + self.pending

    @property
    def groups(self) -> dict[tuple[str, str], list[PlannedRun]]:
        """The runs that are known, by dataset and algorithm."""
        return group_by(self.runs, run_group)

    @property
    def counts(self) -> Counter[tuple[str, str, str]]:
        """The number of runs by dataset, algorithm and stage."""
        counts: Counter[tuple[str, str, str]] = Counter((*run_group(run), run.stage) for run in self.runs)
        for search in self.searches:
            counts[search.dataset, search.algorithm, "repeat"] += search.pending
        return counts


def path_in_sweep(output: Path) -> str:
    """Return the directory of a run as messages name it: DATASET/ALGORITHM/TARGET-TRIAL/KEY."""
    return "/".join(output.parts[-4:])


def run_group(run: PlannedRun) -> tuple[str, str]:
    """Return the dataset and the algorithm of a run, as its directory names them."""
    parts = run.config.output.parts
    return parts[-4], parts[-3]


Choose = Callable[[Search], Point | None]
"""Returns the chosen point of a search; None if it is not complete."""


def expand(spec: SweepSpec, directory: Path | str, choose: Choose = lambda search: None) -> SweepPlan:
    """Return the runs of a valid spec.

    Args:
        spec: What to compare.
        directory: The directory of the sweep.
        choose: Returns the chosen point of a search, where it is known.
    """
    runs: dict[str, PlannedRun] = {}
    searches: list[Search] = []
    for dataset, algorithm in itertools.product(spec.datasets, canonical_algorithms(spec)):
        factory = _Factory(spec, dataset, algorithm, Path(directory))
        trials = spec.trials[:1] if spec.searches_first_trial else spec.trials
        first = [run for trial in trials for run in factory.trial(trial)]
        runs.update((run.key, run) for run in first if run.key not in runs)
        for search in factory.searches(first) if spec.searches_first_trial else ():
            if (point := choose(search)) is None:
                searches.append(search)
                continue
            for targets, trial in search.repeats:
                repeated = factory.runs(trial, [point], [targets], "repeat")
                runs.update((run.key, run) for run in repeated if run.key not in runs)
    return SweepPlan(tuple(runs.values()), tuple(searches))


def merge(plans: Sequence[SweepPlan]) -> SweepPlan:
    """Return the union of plans. Of runs with one key the last is kept, whose machine settings are the latest."""
    runs = {run.key: run for plan in plans for run in plan.runs}
    searches: list[Search] = []
    waiting: set[tuple[Any, ...]] = set()
    for search in (search for plan in plans for search in plan.searches):
        # Two requests with the same search, such as one for more trials, make the same choice: count its runs once.
        choice = (search.target, search.choose_by, search.lodo, *(run.key for run in search.runs))
        repeats = tuple(name for name in search.repeats if (choice, name) not in waiting)
        waiting.update((choice, name) for name in repeats)
        searches.append(dataclasses.replace(search, repeats=repeats))
    return SweepPlan(tuple(runs.values()), tuple(searches))


# -- targets ------------------------------------------------------------------------------------------------------


def single_targets(spec: SweepSpec, dataset: str) -> list[str]:
    """Return the domains of a dataset that are held out one by one, and "none" if no domain is held out."""
    domains = spec.domain_names(dataset)
    if not spec.targets:
        return list(domains) if len(domains) != 1 else [NO_TARGET]
    return [name for name in (*domains, NO_TARGET) if name in spec.targets]


def target_sets(spec: SweepSpec, dataset: str, algorithm: str) -> list[tuple[str, ...]]:
    """Return the sets of domains that are held out together: single targets, and for `lodo` pairs with each of them.

    Pairs are left out where too few domains would remain for the algorithm.
    """
    domains, singles = spec.domain_names(dataset), single_targets(spec, dataset)
    pairs: list[tuple[str, ...]] = []
    if spec.plans_pairs and len(domains) - 2 >= get_algorithm(algorithm).min_domains:
        pairs = [pair for pair in itertools.combinations(domains, 2) if set(pair) & set(singles)]
    return [*((name,) for name in singles), *pairs]


# -- settings and keys --------------------------------------------------------------------------------------------


def run_options(spec: SweepSpec) -> dict[str, Any]:
    """Return the settings that all runs of a sweep share, by name."""
    return {**spec.options, "averages": spec.averages, "data_dir": spec.data}


class _Factory:
    """Makes the runs of one dataset and algorithm. What they share is built once: a sweep may have 100,000 runs."""

    def __init__(self, spec: SweepSpec, dataset: str, algorithm: str, directory: Path) -> None:
        self.spec, self.directory = spec, directory
        self.name, self.dataset = benchmarks.label(dataset, spec.data), benchmarks.get(dataset).name
        self.algorithm = canonical_name(algorithm)
        self.root = directory / RUNS / self.name / self.algorithm
        self.targets, self.sets = single_targets(spec, dataset), target_sets(spec, dataset, algorithm)
        self.defaults = default_hyperparameters(self.dataset, self.algorithm, spec.options.get("recipe"))
        self.template = RunConfig.from_options(
            output=self.root, dataset=self.dataset, algorithm=self.algorithm, target="", **run_options(spec)
        )
        self.shared_key = _shared_key(self.template, self.name)

    def trial(self, trial: int) -> Iterator[PlannedRun]:
        """Return the runs of one trial: every point for every set of targets, or what was selected before."""
        if not self.spec.selected:
            yield from self.runs(trial, points(self.spec, self.algorithm, self.dataset, trial), self.sets)
            return
        for target in self.targets:
            settings = dict(self.spec.selected[selected_name(self.name, self.algorithm, target, trial)])
            point = settings.pop("hyperparameters", {})
            spec = dataclasses.replace(self.spec, options={**settings, **self.spec.options})  # what was requested wins
            factory = _Factory(spec, self.dataset, self.algorithm, self.directory)
            yield from factory.runs(trial, [point], [targets for targets in self.sets if target in targets])

    def runs(
        self, trial: int, points: Sequence[Point], sets: Sequence[tuple[str, ...]], stage: Stage = "search"
    ) -> Iterator[PlannedRun]:
        """Return a run with every point for every set of targets."""
        settings = [self._hyperparameters(point) for point in points]
        for targets in sets:
            folder = self.root / f"{'+'.join(targets)}-{trial}"
            run_name = json.dumps([targets, trial])
            for hyperparameters in settings:
                key = _key(f"{self.shared_key}|{run_name}|{json.dumps(hyperparameters)}")
                own: dict[str, Any] = {"target": targets, "trial": trial, "hyperparameters": hyperparameters}
                yield PlannedRun(key, dataclasses.replace(self.template, output=folder / key, **own), stage)

    def searches(self, runs: Sequence[PlannedRun]) -> Iterator[Search]:
        """Return the search of every target among the runs of the first trial."""
        lodo, later = self.spec.select == "lodo", self.spec.trials[1:]
        for target in self.targets:
            members = tuple(run for run in runs if target in (run.config.targets or (NO_TARGET,)))
            repeats = tuple((targets, trial) for trial in later for targets in self.sets if target in targets)
            yield Search(self.name, self.algorithm, target, members, lodo, self.spec.choose_by, repeats)

    def _hyperparameters(self, point: Point) -> dict[str, Any]:
        """Return the hyperparameters at a point, without those that are defaults."""
        requested = {**self.template.hyperparameters, **point}
        values = {}
        for name, value in sorted(requested.items()):
            default = self.defaults.get(name)
            # 1 and 1.0 are the same value and must have the same key.
            value = float(value) if isinstance(default, float) and not isinstance(value, bool) else value
            if value != default:
                values[name] = value
        return values


def _shared_key(config: RunConfig, dataset: str) -> str:
    """Return the settings that all runs of a dataset and an algorithm share and that change their results, as text."""
    # This text and those of `_key` must never change: they name the directory of every finished run.
    values = {}
    for name, value in config.options().items():
        setting = SETTINGS[name]
        varied = name in ("target", "trial", "hyperparameters", "dataset")
        if not varied and not setting.free_on_resume and value != setting.default:
            values[name] = sorted(value) if name == "averages" else value
    return json.dumps({"dataset": dataset, **values}, sort_keys=True, default=str)


def _key(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def same_request(first: SweepSpec, second: SweepSpec) -> bool:
    """Whether two specs plan the same runs and differ at most in settings of the machine, such as the device."""
    return _request(first) == _request(second)


def _request(spec: SweepSpec) -> Mapping[str, Any]:
    """Return what a spec asks for, without the settings of the machine, such as the device."""
    content = spec.to_json()
    own_folder = any(benchmarks.get(name).name == benchmarks.OWN_FOLDER for name in spec.datasets)
    content["data"] = content["data"] if own_folder else None
    content["options"] = {
        name: value for name, value in content["options"].items() if not SETTINGS[name].free_on_resume
    }
    return content
