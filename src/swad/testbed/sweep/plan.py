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
from swad.testbed.training.defaults import default_hyperparameters
from swad.util.data_path import data_name
from swad.util.grouping import group_by
from swad.util.names import NO_TARGET

RUNS = "runs"
"""The folder of the runs in the directory of a sweep."""

FOLDER = "folder"
"""The dataset that is any directory of images."""

Stage = Literal["search", "repeat"]


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep.

    Args:
        key: Unique in the sweep, and the same on every machine.
        config: Its settings, as requested: defaults are filled in on the machine that trains it.
        stage: "repeat" for the runs whose hyperparameters were chosen by the search of the first trial.
        trajectory: The same for runs that differ in their averages only.
    """

    key: str
    config: RunConfig
    stage: Stage = "search"
    trajectory: str = ""


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
    follow: tuple[tuple[tuple[str, ...], int], ...]
    """The held-out domains and the trial of every run that follows the choice."""
    repeat: Callable[[Point], list[PlannedRun]]
    """Returns the runs that repeat a point in the other trials."""

    @property
    def pending(self) -> int:
        """The largest number of runs that follow the choice."""
        return len(self.follow)

    @property
    def name(self) -> str:
        """The search in messages."""
        return f"{self.algorithm} on {self.dataset}, target {self.target}"


@dataclass(frozen=True)
class Plan:
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


def expand(
    spec: SweepSpec,
    directory: Path | str,
    choose: Choose = lambda search: None,
    covering: Mapping[str, PlannedRun] | None = None,
) -> Plan:
    """Return the runs of a valid spec.

    Args:
        spec: What to compare.
        directory: The directory of the sweep.
        choose: Returns the chosen point of a search, where it is known.
        covering: Runs by trajectory that have all averages of the spec, and take the place of its own.
    """
    runs: dict[str, PlannedRun] = {}
    searches: list[Search] = []
    for dataset, algorithm in itertools.product(spec.datasets, canonical_algorithms(spec)):
        factory = _Factory(spec, dataset, algorithm, Path(directory), covering or {})
        trials = spec.trials[:1] if spec.searches_first_trial else spec.trials
        for trial in trials:
            searched = factory.runs(trial, points(spec, algorithm, factory.dataset, trial))
            for run in factory.selected_runs(trial) if spec.selected else searched:
                runs.setdefault(run.key, run)
        if spec.searches_first_trial:
            for search in factory.searches(list(runs.values())):
                point = choose(search)
                if point is None:
                    searches.append(search)
                else:
                    runs.update((run.key, run) for run in search.repeat(point) if run.key not in runs)
    return Plan(tuple(runs.values()), tuple(searches))


def merge(plans: Sequence[Plan]) -> Plan:
    """Return the union of plans. Of runs with one key the last is kept, whose machine settings are the latest."""
    runs = {run.key: run for plan in plans for run in plan.runs}
    searches: list[Search] = []
    waiting: set[tuple[Any, ...]] = set()
    for search in (search for plan in plans for search in plan.searches):
        # Two requests with the same search, such as one for more trials, make the same choice: count its runs once.
        choice = (search.target, search.choose_by, search.lodo, *(run.key for run in search.runs))
        follow = tuple(name for name in search.follow if (choice, name) not in waiting)
        waiting.update((choice, name) for name in follow)
        searches.append(dataclasses.replace(search, follow=follow))
    return Plan(tuple(runs.values()), tuple(searches))


def dataset_label(dataset: str, data: Path | None) -> str:
    """Return the name of a dataset in directories and results: only your own folder is named after its directory."""
    name = benchmarks.get(dataset).name
    return data_name(data) if name == FOLDER and data is not None else name


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

    def __init__(
        self, spec: SweepSpec, dataset: str, algorithm: str, directory: Path, covering: Mapping[str, PlannedRun]
    ) -> None:
        self.spec, self.directory, self.covering = spec, directory, covering
        self.name, self.dataset = dataset_label(dataset, spec.data), benchmarks.get(dataset).name
        self.algorithm = canonical_name(algorithm)
        self.root = directory / RUNS / self.name / self.algorithm
        self.targets, self.sets = single_targets(spec, dataset), target_sets(spec, dataset, algorithm)
        self.defaults = default_hyperparameters(self.dataset, self.algorithm, spec.options.get("recipe"))
        self.template = RunConfig.from_options(
            output=self.root, dataset=self.dataset, algorithm=self.algorithm, target="", **run_options(spec)
        )
        self.shared_key = _shared_key(self.template, self.name)
        self.trajectory_key = _shared_key(self.template, self.name, averages=False)

    def runs(
        self, trial: int, points: Sequence[Point], stage: Stage = "search", sets: Sequence[tuple[str, ...]] = ()
    ) -> Iterator[PlannedRun]:
        """Return the runs of one trial: every point for every set of targets, by default for all."""
        settings = [self._hyperparameters(point) for point in points]
        for targets in sets or self.sets:
            folder = self.root / f"{'+'.join(targets)}-{trial}"
            run_name = json.dumps([targets, trial])
            for hyperparameters in settings:
                text = json.dumps(hyperparameters)
                trajectory = _key(f"{self.trajectory_key}|{run_name}|{text}")
                if trajectory in self.covering:
                    yield dataclasses.replace(self.covering[trajectory], stage=stage)
                    continue
                key = _key(f"{self.shared_key}|{run_name}|{text}")
                own: dict[str, Any] = {"target": targets, "trial": trial, "hyperparameters": hyperparameters}
                config = dataclasses.replace(self.template, output=folder / key, **own)
                yield PlannedRun(key, config, stage, trajectory)

    def selected_runs(self, trial: int) -> Iterator[PlannedRun]:
        """Return the runs of one trial with the settings that were selected for each target before."""
        for target in self.targets:
            settings = dict(self.spec.selected[selected_name(self.name, self.algorithm, target, trial)])
            point = settings.pop("hyperparameters", {})
            spec = dataclasses.replace(self.spec, options={**settings, **self.spec.options})  # what was requested wins
            factory = _Factory(spec, self.dataset, self.algorithm, self.directory, self.covering)
            yield from factory.runs(trial, [point], sets=[targets for targets in self.sets if target in targets])

    def searches(self, runs: Sequence[PlannedRun]) -> Iterator[Search]:
        """Return the search of every target."""
        own = [run for run in runs if run_group(run) == (self.name, self.algorithm) and run.stage == "search"]
        lodo, trials = self.spec.select == "lodo", self.spec.trials[1:]
        for target in self.targets:
            sets = [targets for targets in self.sets if target in targets]
            members = tuple(run for run in own if target in (run.config.targets or (NO_TARGET,)))

            def repeat(point: Point, sets: Sequence[tuple[str, ...]] = sets) -> list[PlannedRun]:
                return [run for trial in trials for run in self.runs(trial, [point], "repeat", sets)]

            follow = tuple(itertools.product(sets, trials))
            yield Search(self.name, self.algorithm, target, members, lodo, self.spec.choose_by, follow, repeat)

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


def _shared_key(config: RunConfig, dataset: str, averages: bool = True) -> str:
    """Return the settings that all runs of a dataset and an algorithm share and that change their results, as text."""
    values = {}
    varied = {"target", "trial", "hyperparameters", "dataset", *(() if averages else ("averages",))}
    for name, value in config.options().items():
        setting = SETTINGS[name]
        if name not in varied and not setting.free_on_resume and value != setting.default:
            values[name] = sorted(value) if name == "averages" else value
    return json.dumps({"dataset": dataset, **values}, sort_keys=True, default=str)


def _key(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def same_request(first: SweepSpec, second: SweepSpec) -> bool:
    """Whether two specs plan the same runs and differ at most in settings of the machine, such as the device."""
    return _request(first) == _request(second)


def may_cover(earlier: SweepSpec, spec: SweepSpec) -> bool:
    """Whether runs of an earlier spec may be those of a spec with more averages, so that it needs none of its own."""
    datasets, earlier_datasets = ({benchmarks.get(name).name for name in each.datasets} for each in (spec, earlier))
    return (
        set(earlier.averages) > set(spec.averages)
        and not set(canonical_algorithms(earlier)).isdisjoint(canonical_algorithms(spec))
        and not earlier_datasets.isdisjoint(datasets)
        and _settings(earlier) == _settings(spec)
    )


def _request(spec: SweepSpec) -> Mapping[str, Any]:
    content = spec.to_json()
    own_folder = any(benchmarks.get(name).name == FOLDER for name in spec.datasets)
    content["data"] = content["data"] if own_folder else None
    content["options"] = _settings(spec)
    return content


def _settings(spec: SweepSpec) -> dict[str, Any]:
    """Return the settings of the runs that are not those of the machine, as plain values."""
    options: dict[str, Any] = spec.to_json()["options"]
    return {name: value for name, value in options.items() if not SETTINGS[name].free_on_resume}
