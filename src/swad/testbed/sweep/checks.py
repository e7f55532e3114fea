"""Everything that can be wrong with a sweep, listed before anything starts.

>>> for problem in find_problems(SweepSpec(algorithms=("corral",), datasets=("digitz",), draws=5)):
...     print(problem)
draws is for the protocols domainbed and random, got 5 with defaults
there is no dataset 'digitz': did you mean 'digits'?
there is no algorithm 'corral': did you mean 'coral'?
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from swad.testbed.algorithms import registry as algorithms
from swad.testbed.averages import registry as averages
from swad.testbed.data import benchmarks
from swad.testbed.data.benchmark import Benchmark
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
    problems += filter(None, map(SETTINGS["trial"].problem, spec.trials))
    targets, protocol, options = _target_problems(spec), _protocol_problems(spec), _option_problems(spec)
    # What is wrong is left out, so that all other settings of the runs can still be checked.
    valid = dataclasses.replace(spec, trials=spec.trials or (0,), targets=() if targets else spec.targets)
    if protocol:
        valid = dataclasses.replace(valid, protocol="defaults", grid={}, select=None)
    if options:
        valid = dataclasses.replace(valid, options={})
    problems += targets + protocol + options
    for dataset, algorithm in itertools.product(spec.datasets, spec.algorithms):
        problems += _run_problems(valid, dataset, algorithm)
    return list(dict.fromkeys(problems))


def missing_data(spec: SweepSpec) -> list[str]:
    """Say which datasets are not there and what to do, one sentence each; one for all if no directory was given."""
    problems = data_problems(spec)
    if spec.data is None and len(problems) > 1:
        return [f"datasets {', '.join(problems)} need their directories: give the one above them (--data)"]
    return list(problems.values())


def data_problems(spec: SweepSpec) -> dict[str, str]:
    """Say of every dataset whose directory is not there what to do, by the dataset's name."""
    problems = {}
    for name in spec.datasets:
        with suppress(DataError):  # an unknown one is reported with the spec's problems
            benchmark = benchmarks.get(name)
            problems[benchmark.name] = benchmarks.missing(benchmark, spec.data)
    return {name: problem for name, problem in problems.items() if problem}


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
    runs = points * math.prod(max(1, len(names)) for names in (spec.trials, spec.algorithms, spec.datasets))
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
    try:
        known = {benchmarks.get(name).name: spec.domain_names(name) for name in spec.datasets}
    except DataError:  # the targets may belong to the dataset whose name is misspelled
        return []
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


def _run_problems(spec: SweepSpec, dataset: str, algorithm: str) -> list[str]:
    """Check the settings of one run of an algorithm on a dataset, and every point of the search."""
    benchmark: Benchmark | None = None
    domains: Sequence[str] = ()
    sets: Sequence[tuple[str, ...]] = ()
    with suppress(algorithms.AlgorithmError, DataError):  # an unknown name is reported with the settings of the run
        domains = spec.domain_names(dataset)
        points = search.points(spec, algorithm, dataset, spec.trials[0])
        sets, benchmark = target_sets(spec, dataset, algorithm), benchmarks.get(dataset)
    try:
        config = RunConfig.from_options(
            output=Path(),
            dataset=dataset,
            algorithm=algorithm,
            target=sets[0] if sets else (*domains, "?")[0],
            **{**run_options(spec), "data_dir": spec.data or Path("data")},
        )
    except (TypeError, ValueError, ArithmeticError) as error:
        return [str(error)]
    problems = checks.find_problems(config)
    if benchmark is None:
        return problems
    if not benchmark.domains:  # those of a folder are known from its directory alone
        problems += checks.source_problems(config, [name for name in domains if name not in config.targets])
    fixed = spec.options.get("hyperparameters", {})
    if checks.unknown_hyperparameters(algorithm, fixed):  # reported with the settings of the run
        fixed = {}
    for point in points:
        problems += checks.hyperparameter_problems(algorithm, {**fixed, **point}, benchmark, spec.options.get("recipe"))
    if spec.select == "lodo" and sets and len(sets) == len(single_targets(spec, dataset)):
        problems.append(
            f"lodo trains {algorithm} on {dataset} with two domains held out, which leaves too few: "
            "select by iid, or leave out the dataset"
        )
    return problems
