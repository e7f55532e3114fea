"""What is wrong with the settings of a run: checks against datasets, algorithms, averages and the machine."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from swad.testbed.algorithms.hyperparameters import fill
from swad.testbed.algorithms.registry import AlgorithmError, get_algorithm
from swad.testbed.averages import registry
from swad.testbed.data import benchmarks
from swad.testbed.data.benchmark import Benchmark
from swad.testbed.models.catalog import LARGEST, SMALL, SMALLEST, input_config
from swad.testbed.models.weight_files import NetworkError
from swad.testbed.results.trackers.base import name_problems
from swad.testbed.training import lr_schedule
from swad.testbed.training.config import PROTOCOL, SETTINGS, ConfigError, ResolvedConfig, RunConfig
from swad.testbed.training.recipes import (
    DomainBedRecipe,
    averaging_plan,
    batch_size,
    default_hyperparameters,
    get_recipe,
    recipe_of,
)
from swad.util.images import DataError
from swad.util.names import choice_problem, counted, did_you_mean, one_line

MAX_THREADS = 1024
"""Most CPU threads of a run; torch crashes when the system refuses a thread."""


def find_problems(config: RunConfig) -> list[str]:
    """List everything that is wrong with the settings and can be known without reading data, one sentence each."""
    if not isinstance(config.dataset, str) or not isinstance(config.algorithm, str):
        return config.problems()
    benchmark: Benchmark | None = None
    recipe, unknown = get_recipe(config.recipe), []
    try:
        benchmark, recipe = benchmarks.get(config.dataset), recipe_of(config)
        config = recipe.apply(config)
    except ConfigError as error:
        return list(error.problems)
    except DataError as error:
        unknown.append(str(error))
    except AlgorithmError:  # reported below
        pass
    problems = [*config.problems(), *unknown]
    if benchmark is not None:
        problems += _target_problems(config, benchmark) + _dataset_problems(config, benchmark)
    problems += _algorithm_problems(config, benchmark) + network_problems(config.network)
    problems += recipe.problems(config) + _schedule_problems(config, benchmark, recipe)
    return problems + _momentum_problems(config) + _machine_problems(config)


def _momentum_problems(config: RunConfig) -> list[str]:
    momentum, optimizer = config.momentum, config.optimizer or "adam"
    if momentum is None or optimizer == "sgd":
        return []
    return [f"momentum is for the optimizer sgd, got {momentum!r} with {optimizer}: set optimizer"]


def _target_problems(config: RunConfig, benchmark: Benchmark) -> list[str]:
    if not benchmark.domains:
        return []
    targets = config.targets
    unknown = [name for name in targets if name not in benchmark.domains]
    problems = [choice_problem("the target", name, benchmark.domains) for name in unknown]
    sources = [name for name in benchmark.domains if name not in targets]
    if not sources:
        problems.append(f"at least one domain must be left to train on, got the targets {'+'.join(targets)!r}")
    return problems + source_problems(config, sources)


def source_problems(config: RunConfig, sources: Sequence[str]) -> list[str]:
    """Say if the algorithm of a run needs more source domains than there are."""
    algorithm = config.algorithm
    try:
        needed = get_algorithm(algorithm).min_domains
    except AlgorithmError:  # reported with the algorithm's problems
        return []
    if not sources or len(sources) >= needed:
        return []
    advice = "hold out fewer" if config.targets else "choose an algorithm for one domain, such as erm"
    return [f"{algorithm} needs at least {needed} source domains, got {', '.join(sources)}: {advice}"]


def require_processes(configs: Iterable[RunConfig], processes: int) -> None:
    """Raise a `ConfigError` that lists why some of these runs, whose settings are valid, need fewer processes."""
    problems = []
    for config in configs:
        if processes > 1 and config.device.startswith("cuda:"):
            problems.append(f"device {config.device} is one GPU, got {processes} processes: use cuda")
        problems += process_problems(config, processes)
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))


def process_problems(config: RunConfig, processes: int) -> list[str]:
    """Say why a run with valid settings cannot train in so many processes."""
    if processes == 1:
        return []
    problems, size = [], batch_size(config)
    if get_algorithm(config.algorithm).eager_only:
        problems.append(f"{config.algorithm} trains in one process, got {processes}: leave out --processes or torchrun")
    if config.keep_segments:
        problems.append(f"keep_segments needs a single process, got {processes}: turn it off or use one")
    if size % processes:
        problems.append(f"batch_size must be a multiple of the {processes} processes, got {size}: change one of them")
    return problems


def _dataset_problems(config: RunConfig, benchmark: Benchmark) -> list[str]:
    spec = benchmark.image_spec
    problems = list(filter(None, [benchmarks.option_problem(benchmark, config.dataset_options)]))
    if config.data_dir is None and (missing := benchmarks.missing(benchmark, None)):
        problems.append(missing)
    if spec.low_res and config.image_size not in (None, spec.size):
        problems.append(
            f"images of {benchmark.name} keep their size of {spec.size} pixels: "
            f"leave out image_size={config.image_size}"
        )
    for name, values in (("image_mean", config.image_mean), ("image_std", config.image_std)):
        if values is not None and len(values) != spec.channels:
            problems.append(f"{name} must have {spec.channels} numbers, one per channel, got {len(values)}")
    size = spec.size if config.image_size is None else config.image_size
    if config.network == SMALL and not SMALLEST <= size <= LARGEST:
        problems.append(
            f"the network {SMALL} takes images of {SMALLEST} to {LARGEST} pixels, but {benchmark.name} has {size}: "
            "set image_size (--image-size 32) or choose a timm model"
        )
    return problems


def _algorithm_problems(config: RunConfig, benchmark: Benchmark | None) -> list[str]:
    name = config.algorithm
    try:
        algorithm_class = get_algorithm(name)
    except AlgorithmError as error:
        return [str(error)]
    problems = hyperparameter_problems(name, config.hyperparameters, benchmark, config.recipe)
    if algorithm_class.eager_only:
        problems += [
            f"{name} has optimizers of its own, to which {setting} does not apply: leave it out"
            for setting in ("optimizer", "lr_schedule", "clip")
            if getattr(config, setting) not in (None, PROTOCOL.get(setting))
        ]
    if config.batches == "pooled" and algorithm_class.groups_by_domain:
        problems.append(f"{name} needs images of every domain in a step, got pooled batches: use balanced ones")
    return problems


def hyperparameter_problems(
    algorithm: str, values: Mapping[str, Any], benchmark: Benchmark | None, recipe: str | None
) -> list[str]:
    """List what is wrong with the hyperparameters that a run of an algorithm on a dataset sets."""
    if unknown := unknown_hyperparameters(algorithm, values):
        return unknown
    algorithm_class = get_algorithm(algorithm)
    defaults = default_hyperparameters(benchmark.name, algorithm, recipe) if benchmark else {}
    filled = fill(algorithm_class.Hyperparameters, {**defaults, **values})
    low_res = benchmark is not None and benchmark.image_spec.low_res
    problems = filled.problems() or (filled.problems_on_low_res() if low_res else [])
    if not problems and filled.batch_size < algorithm_class.min_per_domain:
        least = algorithm_class.min_per_domain
        problems.append(f"{algorithm} needs a batch_size of {least} or more, got {filled.batch_size}")
    return problems


def unknown_hyperparameters(algorithm: str, names: Iterable[str]) -> list[str]:
    """Suggest a name for every one that is not a hyperparameter of an algorithm.

    >>> unknown_hyperparameters("erm", ["lr", "steps"])
    ['steps is a setting of the run, not a hyperparameter: set it as one (--steps)']
    """
    known = [field.name for field in dataclasses.fields(get_algorithm(algorithm).Hyperparameters)]
    problems = []
    for name in names:
        if name in SETTINGS and name not in known:
            problems.append(
                f"{name} is a setting of the run, not a hyperparameter: set it as one (--{name.replace('_', '-')})"
            )
        elif name not in known:
            hint = did_you_mean(name, known)
            problems.append(f"{algorithm} has no hyperparameter {name}, only {', '.join(known)}{hint and ': '}{hint}")
    return problems


def network_problems(name: object) -> list[str]:
    """Say that there is no network of this name, or that it takes no square images; the names of a hub are its own."""
    if not isinstance(name, str) or name == SMALL or ":" in name:
        return []
    try:
        input_config(name)
    except NetworkError as error:
        return [str(error)]
    return []


def _schedule_problems(config: RunConfig, benchmark: Benchmark | None, recipe: DomainBedRecipe) -> list[str]:
    """List what is wrong with steps, evaluations, snapshots and averages, as far as the steps are known."""
    steps, every = config.steps if benchmark is None else recipe.known_steps(config), config.evaluate_every
    valid = not SETTINGS["steps"].problem(steps) and not SETTINGS["evaluate_every"].problem(every)
    if steps is not None and valid and benchmark is not None:
        every = every or benchmark.defaults.evaluate_every_in(steps)
    if steps is None or every is None or not valid:
        return registry.problems(config.averages, None) + _label_problems(config)
    cycle = lr_schedule.cycle_steps(steps) if config.lr_schedule == "cyclic" else None
    # Only the windows are checked, and any tolerance ratio gives the same ones.
    return _plan_problems(config, registry.Plan(steps, every, 0.3, config.eval_offset, cycle))


def resolved_problems(config: ResolvedConfig) -> list[str]:
    """List what is wrong with a run whose steps were only known after its images were counted."""
    return recipe_of(config).resolved_problems(config) + _plan_problems(config, averaging_plan(config))


def _plan_problems(config: RunConfig, plan: registry.Plan) -> list[str]:
    problems, steps = [], plan.steps
    if config.evaluate_every is not None and config.evaluate_every > steps:
        problems.append(f"evaluate_every must not exceed the {steps} steps, got {config.evaluate_every}")
    last = steps + config.eval_offset
    if not all(type(step) is int and 1 <= step <= last for step in config.snapshots):
        problems.append(
            f"snapshots must be between step 1 and step {last}, got {', '.join(map(str, config.snapshots))}"
        )
    plan = dataclasses.replace(plan, evaluate_every=min(plan.evaluate_every, steps))
    return problems + registry.problems(config.averages, plan) + _label_problems(config)


def _label_problems(config: RunConfig) -> list[str]:
    """Labels are file names in the directory that also holds the snapshots."""
    try:
        labels = [spec.label for spec in registry.parse_all(config.averages)]
    except ValueError:  # reported with the averages
        return []
    return [
        f"an average must not be named like a snapshot, got {label!r}: choose another name after as="
        for label in labels
        if re.fullmatch(r"step-\d+", label)
    ]


def _machine_problems(config: RunConfig) -> list[str]:
    problems = []
    weights = config.weights
    if weights not in (None, "pretrained", "random") and not Path(str(weights)).is_file():
        problems.append(f"weights must be pretrained, random or an existing file, got {weights!r}")
    threads = config.threads
    if type(threads) is int and threads > MAX_THREADS:
        problems.append(f"threads must be at most {MAX_THREADS}, got {threads}: use at most one per core")
    problems += name_problems(config.log) if config.log else []
    problem = device_problem(config.device)
    return [*problems, problem] if problem else problems


def device_problem(name: str) -> str | None:
    """Say why a device cannot be used on this machine; None if it can, and for auto.

    >>> device_problem("cpu"), device_problem("tpu")
    (None, "device must be auto, cpu, cuda or cuda:NUMBER, got 'tpu'")
    """
    if name == "auto":
        return None
    rule = f"device must be auto, cpu, cuda or cuda:NUMBER, got {name!r}"
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        return rule
    if device.type == "cuda":  # without a tensor on it: a process that starts others must not take memory there
        if not torch.cuda.is_available():
            return f"device is {name!r}, but torch finds no GPU: use cpu, or install torch for your GPU"
        count = torch.cuda.device_count()
        if device.index is not None and device.index >= count:
            return f"device is {name!r}, but torch finds {counted(count, 'GPU')}: use cuda:0 to cuda:{count - 1}"
        return None
    try:
        torch.ones(1, device=device).item()
    except Exception as error:  # every backend raises its own classes
        reason = one_line(error, 100).partition(". ")[0]
        return f"{rule}, which torch cannot use here ({reason})"
    return None
