"""Everything that can be wrong with a sweep, listed before anything starts.

>>> for problem in find_problems(SweepSpec(algorithms=("corral",), datasets=("digitz",), draws=5)):
...     print(problem)
there is no algorithm 'corral': did you mean 'coral'?
there is no dataset 'digitz': did you mean 'digits'?
draws is for the protocols domainbed and random, got 5 with defaults
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from swad.testbed.algorithms import registry as algorithms
from swad.testbed.averages import registry as averages
from swad.testbed.data import benchmarks
from swad.testbed.results.selection import SELECTIONS
from swad.testbed.sweep import search
from swad.testbed.sweep.plan import run_options, single_targets, target_sets
from swad.testbed.sweep.spec import PROTOCOLS, SweepSpec, setting_problems
from swad.testbed.training import checks
from swad.testbed.training.config import SETTINGS, ConfigError, RunConfig
from swad.util.images import DataError
from swad.util.names import NO_TARGET, choice_problem, did_you_mean

MOST_RUNS = 1_000_000
"""Runs of a sweep for each target. More are a misprint: counting them alone would take all memory."""


def require_valid(spec: SweepSpec) -> None:
    """Raise a `ConfigError` that lists all problems of a spec, those of the datasets' directories included."""
    if problems := [*find_problems(spec), *missing_data(spec)]:
        raise ConfigError(problems)


def find_problems(spec: SweepSpec) -> list[str]:
    """List everything that is wrong with a spec and can be known without data, one sentence each."""
    empty = [name for name in ("algorithms", "trials") if not getattr(spec, name)]
    problems = [f"{name} must not be empty: a sweep needs at least one run" for name in empty]
    known_algorithms, algorithm_problems = _look_up(spec.algorithms, algorithms.get_algorithm)
    known_datasets, dataset_problems = _look_up(spec.datasets, benchmarks.get)
    average_problems = averages.problems(spec.averages, None)
    problems += [*algorithm_problems, *dataset_problems, *average_problems]
    problems += checks.network_problems(spec.options.get("network"))
    problems += filter(None, map(SETTINGS["trial"].problem, spec.trials))
    # A target may belong to the dataset whose name is misspelled.
    target_problems = [] if dataset_problems else _target_problems(spec)
    problems += target_problems
    further = _protocol_problems(spec) + _option_problems(spec)
    if not further and spec.trials and known_datasets:
        # Names that do not exist are left out, so that the settings of all other runs can still be checked.
        valid = dataclasses.replace(
            spec,
            algorithms=known_algorithms,
            datasets=known_datasets,
            averages=("swad",) if average_problems else spec.averages,
            targets=() if dataset_problems or target_problems else spec.targets,
        )
        further = _run_problems(valid)
    return list(dict.fromkeys(problems + further))


def missing_data(spec: SweepSpec) -> list[str]:
    """Say which datasets are not there and what to do, one sentence each; one for all if no directory was given."""
    problems = data_problems(spec)
    if spec.data is None and len(problems) > 1:
        return [f"datasets {', '.join(problems)} need their directories: give the one above them (--data)"]
    return list(problems.values())


def data_problems(spec: SweepSpec) -> dict[str, str]:
    """Say of every dataset whose directory is not there what to do, by the dataset's name."""
    known, _ = _look_up(spec.datasets, benchmarks.get)  # other problems are reported with the spec's
    named = {benchmark.name: benchmark for benchmark in map(benchmarks.get, known)}
    return {name: problem for name, benchmark in named.items() if (problem := benchmarks.missing(benchmark, spec.data))}


def _look_up(names: Sequence[str], get: Callable[[str], Any]) -> tuple[tuple[str, ...], list[str]]:
    """Return the names that exist, and the problems of the others."""
    known, problems = [], []
    for name in names:
        try:
            get(name)
            known.append(name)
        except (algorithms.AlgorithmError, DataError) as error:
            problems.append(str(error))
    return tuple(known), problems


def _protocol_problems(spec: SweepSpec) -> list[str]:
    problems = []
    choices = (
        ("protocol", spec.protocol, PROTOCOLS),
        ("select", spec.selector, tuple(SELECTIONS)),
        ("seeding", spec.seeding, ("2020", "present")),
    )
    for name, value, allowed in choices:
        if value not in allowed:
            problems.append(choice_problem(name, value, allowed))
    random = spec.protocol in ("domainbed", "random")
    defaults = {field.name: field.default for field in dataclasses.fields(SweepSpec)}
    for name in ("draws", "seeding"):
        if getattr(spec, name) != defaults[name] and not random:
            value = getattr(spec, name)
            problems.append(f"{name} is for the protocols domainbed and random, got {value} with {spec.protocol}")
    if spec.draws < 1:
        problems.append(f"draws must be 1 or more, got {spec.draws}")
    if spec.grid and spec.protocol in ("defaults", "domainbed", "random"):
        problems.append(f"a grid is for the protocols grid and paper, got {', '.join(spec.grid)} with {spec.protocol}")
    if spec.selected and spec.protocol != "defaults":
        problems.append(
            f"hyperparameters that were selected before replace a search, got the protocol {spec.protocol} too: "
            "use one of them"
        )
    if spec.select == "oracle_best_step" and not spec.options.get("target_every_evaluation"):
        problems.append("select oracle_best_step needs the target at every evaluation: set target_every_evaluation")
    if spec.protocol == "grid" and not spec.grid:
        problems.append("the protocol grid needs values: set grid, e.g. lr=1e-5,3e-5 (--grid)")
    points = math.prod(map(len, spec.grid.values())) if spec.grid else spec.draws if random else 1
    runs = points * len(spec.trials) * len(spec.algorithms) * max(1, len(spec.datasets))
    if runs > MOST_RUNS:
        problems.append(f"a sweep must have at most {MOST_RUNS:,} runs, got at least {runs:,}: search fewer points")
    if empty := [name for name, values in spec.grid.items() if not values]:
        problems.append(f"every hyperparameter of a grid needs a value, got none for {', '.join(empty)}")
    return problems + _choice_problems(spec)


def _choice_problems(spec: SweepSpec) -> list[str]:
    try:
        labels = ["best", "last", *(average.label for average in averages.parse_all(spec.averages))]
    except averages.AverageError:  # reported with the averages
        return []
    if spec.choose_by not in labels:
        return [choice_problem("choose_by", spec.choose_by, labels)]
    if spec.protocol == "paper" and spec.choose_by in ("best", "last") and spec.options.get("report_live") is False:
        return [f"choose_by {spec.choose_by} needs the live weights: keep report_live, or choose by an average"]
    return []


def _option_problems(spec: SweepSpec) -> list[str]:
    problems = setting_problems(spec.options)
    fixed = spec.options.get("hyperparameters", {})
    if problem := SETTINGS["hyperparameters"].problem(fixed):
        return [*problems, problem]
    searched: set[str] = set(spec.grid or (search.PAPER_GRID if spec.protocol == "paper" else ()))
    if both := sorted(searched & set(fixed)):
        problems.append(f"{', '.join(both)} cannot be both fixed and searched: set it, or leave it in the grid")
    imported = {name for settings in spec.selected.values() for name in settings.get("hyperparameters", ())}
    if both := sorted(imported & set(fixed)):
        problems.append(
            f"{', '.join(both)} cannot be both set and imported: leave it out, or change the selection file"
        )
    if fixed and spec.protocol in ("domainbed", "random"):
        problems.append(
            f"the protocol {spec.protocol} draws all hyperparameters, got values for {', '.join(fixed)}: use grid"
        )
    return problems


def _target_problems(spec: SweepSpec) -> list[str]:
    problems = []
    known = {benchmarks.get(name).name: spec.domain_names(name) for name in spec.datasets}
    if any(not domains for domains in known.values()):  # a folder that has not been read yet
        return []
    every = [domain for domains in known.values() for domain in domains]
    for target in spec.targets:
        if target not in (*every, NO_TARGET):
            hint = did_you_mean(target, every) or f"there are {', '.join(dict.fromkeys(every))}"
            names = [part.strip() for part in target.split(",")]
            if len(names) > 1 and set(names) <= {*every, NO_TARGET}:  # of a plan file, or quoted on a command line
                hint = f"for several write target = {json.dumps(names)}"
            problems.append(f"there is no domain {target!r}: {hint}")
    if spec.targets and not problems:
        problems += [
            f"dataset {name} has none of the targets {', '.join(spec.targets)}: its domains are {', '.join(domains)}"
            for name, domains in known.items()
            if not set(spec.targets) & {*domains, NO_TARGET}
        ]
    return problems


def _run_problems(spec: SweepSpec) -> list[str]:
    """Check the settings of one run for each dataset and algorithm, and every point of the search."""
    problems: list[str] = []
    for dataset in spec.datasets:
        for algorithm in spec.algorithms:
            sets = target_sets(spec, dataset, algorithm)
            try:
                config = RunConfig.from_options(
                    output=Path(),
                    dataset=dataset,
                    algorithm=algorithm,
                    target=(spec.domain_names(dataset) or ("?",))[0] if not sets else sets[0],
                    **{**run_options(spec), "data_dir": spec.data or Path("data")},
                )
            except (TypeError, ValueError, ArithmeticError) as error:
                return [*problems, str(error)]
            problems += checks.find_problems(config)
            if not benchmarks.get(dataset).domains:  # those of a folder are known from its directory alone
                sources = [name for name in spec.domain_names(dataset) if name not in config.targets]
                problems += checks.source_problems(config, sources)
            problems += _point_problems(spec, dataset, algorithm)
            if spec.select == "lodo" and sets and len(sets) == len(single_targets(spec, dataset)):
                problems.append(
                    f"lodo trains {algorithm} on {dataset} with two domains held out, which leaves too few: "
                    "select by iid, or leave out the dataset"
                )
    return problems


def _point_problems(spec: SweepSpec, dataset: str, algorithm: str) -> list[str]:
    benchmark, recipe = benchmarks.get(dataset), spec.options.get("recipe")
    fixed = spec.options.get("hyperparameters", {})
    if checks.unknown_hyperparameters(algorithm, fixed):  # reported with the settings of the run
        fixed = {}
    points = search.points(spec, algorithm, dataset, spec.trials[0])
    return [
        problem
        for point in points
        for problem in checks.hyperparameter_problems(algorithm, {**fixed, **point}, benchmark, recipe)
    ]
