"""From what a user asked for to what is computed: checks against datasets, algorithms and the machine, then defaults.

`resolve` is the only step between a `RunConfig` and a run that looks outside the settings: it reads the run directory
(a resumed run keeps the defaults it started with, also on another machine), counts the files of a dataset whose size
is unknown, and asks torch about the device. Everything it finds is passed to `fill_defaults`, which is a pure function.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch

from swad.algorithms.base import Algorithm
from swad.algorithms.hyperparameters import fill
from swad.algorithms.registry import AlgorithmError, canonical_name, get_algorithm, list_algorithms
from swad.averaging import registry
from swad.data import benchmarks
from swad.data.benchmark import Benchmark
from swad.data.cache_build import DEFAULT_SIZE as DEFAULT_CACHE_SIZE
from swad.data.domains import DataError
from swad.data.epoch_loader import steps_per_epoch
from swad.models.networks import DEFAULT, LARGEST, SMALL, SMALLEST, has_pretrained, input_config
from swad.results.trackers.base import name_problems
from swad.training import recipe
from swad.training.config import PROTOCOL, SETTINGS, ConfigError, RunConfig
from swad.training.defaults import apply_own_recipe, default_hyperparameters, planned_steps, training_images
from swad.training.run_dir import stored_settings
from swad.util.names import did_you_mean

LARGEST_DEFAULT_CACHE = 32e9
"""Largest image cache, in bytes, that is built without an explicit --input-pipeline gpu."""

MAX_THREADS = 1024
"""Most CPU threads of a run; torch crashes when the system refuses a thread."""


def resolve(config: RunConfig) -> RunConfig:
    """Check the settings and fill in every default; all problems are reported together.

    >>> config = resolve(RunConfig.from_options(dataset="digits", target="paper", output="runs/paper-0"))
    >>> config.model.network, config.training.steps == benchmarks.get("digits").defaults.steps
    ('small', True)
    """
    problems = find_problems(config)
    if problems:
        raise ConfigError(problems)
    if config.machine.device == "auto":
        config = config.replace(device="cuda" if torch.cuda.is_available() else "cpu")
    resolved = fill_defaults(
        config,
        stored=stored_settings(config.output),
        n_images=_count_images(config),
        training_images=training_images(config) if _counts_epochs(config) else (),
        bf16=config.machine.device.startswith("cuda") and torch.cuda.is_bf16_supported(including_emulation=False),
    )
    if resolved.training.epochs is not None and (problems := _schedule_problems(resolved, None)):
        raise ConfigError(problems)  # only now: these steps follow from the number of images
    return resolved


def fill_defaults(
    config: RunConfig, *, stored: Mapping[str, Any], n_images: int, bf16: bool, training_images: Sequence[int] = ()
) -> RunConfig:
    """Fill in every default of valid settings.

    Args:
        config: Valid settings.
        stored: The settings of the run that is resumed, by field name; empty for a new one.
        n_images: Images in the dataset, which decide whether a cache is built by default.
        bf16: Whether the device computes in bf16.
        training_images: Training images of every source domain, which are an epoch together.
    """
    benchmark = benchmarks.get(config.data.dataset)
    config = config.replace(recipe=_recipe(config), algorithm=canonical_name(config.training.algorithm))
    config = apply_own_recipe(config)
    if config.training.recipe == recipe.IMAGENET:
        config = _fill_recipe(config, sum(training_images))
    algorithm, sgd = config.training.algorithm, config.training.optimizer == "sgd"
    network = config.model.network or (SMALL if benchmark.image_spec.low_res else DEFAULT)
    steps = planned_steps(config, training_images)
    images = {} if benchmark.image_spec.low_res else _image_options(config, benchmark, network)
    complete = config.replace(
        dataset=benchmark.name,
        hyperparameters={
            **default_hyperparameters(benchmark.name, algorithm, config.training.recipe),
            **config.training.hyperparameters,
        },
        augmentation={**PROTOCOL["augmentation"], **config.data.augmentation},
        **{
            name: PROTOCOL[name] if value is None else value
            for name, value in config.options().items()
            if name in ("optimizer", "lr_schedule", "freeze_bn", "batches")
        },
        momentum=0.9 if sgd and config.training.momentum is None else config.training.momentum,
        network=network,
        **images,
        weights=config.model.weights or ("pretrained" if has_pretrained(network) else "random"),
        threads=config.machine.threads or (1 if network == SMALL else None),
        input_pipeline=_input_pipeline(config, benchmark, stored.get("input_pipeline"), n_images),
        precision=config.training.precision
        or stored.get("precision")
        or ("bf16" if bf16 and not benchmark.image_spec.low_res else "fp32"),
        steps=steps,
        evaluate_every=config.evaluation.evaluate_every or benchmark.defaults.evaluate_every_in(steps),
    )
    seed = complete.training.seed
    return complete.replace(seed=derived_seed(complete) if seed is None else seed)


def _recipe(config: RunConfig) -> Literal["imagenet", "own"] | None:
    return config.training.recipe or benchmarks.get(config.data.dataset).defaults.recipe


def _counts_epochs(config: RunConfig) -> bool:
    """Whether the length of a run depends on the number of its images."""
    training = apply_own_recipe(config).training
    return _recipe(config) == recipe.IMAGENET or (training.steps is None and training.epochs is not None)


def _fill_recipe(config: RunConfig, n_training: int) -> RunConfig:
    """Fill in what the imagenet recipe decides: hyperparameters, epochs, evaluations, random weights, batch norms."""
    hyperparameters = {**recipe.HYPERPARAMETERS, **config.training.hyperparameters}
    per_epoch = steps_per_epoch(n_training, int(hyperparameters["batch_size"]))
    steps = config.training.steps or max(1, round((config.training.epochs or recipe.EPOCHS) * per_epoch))
    return config.replace(
        hyperparameters=hyperparameters,
        optimizer=config.training.optimizer or "sgd",
        steps=steps,
        epochs=steps / per_epoch,
        evaluate_every=config.evaluation.evaluate_every or min(per_epoch, steps),
        micro_batch=config.training.micro_batch or min(recipe.MICRO_BATCH, int(hyperparameters["batch_size"])),
        weights=config.model.weights or "random",
        freeze_bn=bool(config.model.freeze_bn),
        augmentation={**recipe.AUGMENTATION, **config.data.augmentation},
        input_pipeline=config.data.input_pipeline or "torchvision",
    )


def averaging_plan(config: RunConfig) -> registry.Plan:
    """The steps and evaluations of a resolved run, from which the windows of its averages follow."""
    steps, every = config.training.steps, config.evaluation.evaluate_every
    assert steps is not None
    assert every is not None
    ratio = benchmarks.get(config.data.dataset).defaults.tolerance_ratio
    # In the recipe a cyclic run shares its first 80 % with a constant one, so cycles do not move the window.
    start = steps - max(1, steps // 5) if config.training.recipe == recipe.IMAGENET else None
    return registry.Plan(steps, every, ratio, config.eval_offset, config.cycle_steps, start)


def branch_point(config: RunConfig) -> int | None:
    """The step after which a run of the imagenet recipe keeps a checkpoint for other runs to branch from, if any."""
    shares = config.training.recipe == recipe.IMAGENET and config.training.lr_schedule != "decay"
    return averaging_plan(config).late if shares and config.files.branch_from is None else None


def derived_seed(config: RunConfig) -> int:
    """The seed of a run that sets none, from what names it: dataset, algorithm, targets and trial."""
    # This text must never change: it decides every random number of every run without a seed.
    text = json.dumps([config.data.dataset, config.training.algorithm, config.data.targets, config.data.trial])
    return int(hashlib.md5(text.encode(), usedforsecurity=False).hexdigest(), 16) % 2**31


def resolution_notes(config: RunConfig, resolved: RunConfig) -> list[str]:
    """List choices of `resolve`, which returned `resolved`, that a user may not expect, one sentence each."""
    by_recipe = resolved.training.recipe == recipe.IMAGENET  # which never builds a cache
    if resolved.data.input_pipeline == "gpu" and not by_recipe:
        return []
    benchmark = benchmarks.get(config.data.dataset)
    notes = []
    on_gpu = resolved.machine.device.startswith("cuda") and not benchmark.image_spec.low_res
    if on_gpu and not by_recipe and config.data.input_pipeline is None and not stored_settings(config.output):
        on_device = config.replace(device=resolved.machine.device)  # the user may have asked for auto
        size = _cache_bytes(config, _count_images(on_device)) / 1e9
        notes.append(
            f"using the torchvision input pipeline: the cache of decoded images would take {size:,.0f} GB, more than "
            f"the default limit of {LARGEST_DEFAULT_CACHE / 1e9:,.0f} GB; pass --input-pipeline gpu to build it"
        )
    if benchmark.image_spec.low_res and (given := apply_own_recipe(config).data.augmentation):
        notes.append(f"augmentation ({', '.join(given)}): ignored, because low-resolution images are not augmented")
    options = {"--cache": config.machine.cache, "--cache-size": config.data.cache_size}
    if unused := [flag for flag, value in options.items() if value]:
        hint = "" if by_recipe or benchmark.image_spec.low_res else "; pass --input-pipeline gpu to use one"
        without = "imagenet recipe" if by_recipe else "torchvision input pipeline"
        notes.append(f"{', '.join(unused)}: ignored, because the {without} uses no image cache{hint}")
    return notes


# -- checks -------------------------------------------------------------------------------------------------------


def find_problems(config: RunConfig) -> list[str]:
    """List everything that is wrong with the settings and can be known without reading data, one sentence each."""
    with suppress(DataError, AlgorithmError):  # reported below
        config = apply_own_recipe(config)
    problems = config.problems()
    try:
        benchmark = benchmarks.get(config.data.dataset)
    except DataError as error:
        problems.append(str(error))
        benchmark = None
    if benchmark is not None:
        problems += _target_problems(config, benchmark) + _dataset_problems(config, benchmark)
    problems += _algorithm_problems(config, benchmark)
    if benchmark is not None and _recipe(config) == recipe.IMAGENET:
        problems += _recipe_problems(config)
    else:
        problems += _problems_without_recipe(config) + _schedule_problems(config, benchmark)
    return problems + _machine_problems(config)


def _recipe_problems(config: RunConfig) -> list[str]:
    """List what does not go together with the imagenet recipe; its windows depend on the number of images."""
    problems = registry.problems(config.evaluation.averages, None) + _label_problems(config)
    if (schedule := config.training.lr_schedule) not in (None, *recipe.SCHEDULES):
        known = ", ".join(recipe.SCHEDULES)
        problems.append(f"the lr_schedule of the imagenet recipe must be one of {known}, got {schedule!r}")
    if config.evaluation.schedule == "reference":
        problems.append("the reference schedule belongs to DomainBed's protocol: use the default with this recipe")
    try:
        algorithm_class = get_algorithm(config.training.algorithm)
    except AlgorithmError:  # reported with the algorithm's problems
        return problems
    if not algorithm_class.accumulates():
        problems.append(
            f"the imagenet recipe pools all images and accumulates their gradients, which {config.training.algorithm} "
            "does not support: use erm"
        )
    colors = [name for name in ("jitter", "grayscale") if config.data.augmentation.get(name)]
    if colors and config.data.input_pipeline == "gpu":
        problems.append(f"a device that decodes images does not change colors, got {', '.join(colors)}: set it to 0")
    if config.training.hyperparameters.get("dropout"):
        problems.append("the imagenet recipe accumulates gradients, which dropout does not support: use dropout=0")
    return problems


def _problems_without_recipe(config: RunConfig) -> list[str]:
    training = config.training
    given = {"warmup_epochs": training.warmup_epochs, "micro_batch": training.micro_batch}
    names = [name for name, value in given.items() if value is not None]
    names += ["lr_schedule=decay"] * (training.lr_schedule == "decay")
    return [f"{', '.join(names)} belongs to the imagenet recipe: set recipe=imagenet, or leave it out"] if names else []


def _target_problems(config: RunConfig, benchmark: Benchmark) -> list[str]:
    if not benchmark.domains:
        return []
    targets = config.data.targets
    problems = []
    if unknown := [name for name in targets if name not in benchmark.domains]:
        listed, hint = ", ".join(unknown), did_you_mean(unknown[0], benchmark.domains)
        problems.append(
            f"the target must be one of {', '.join(benchmark.domains)}, got {listed!r}{hint and ': '}{hint}"
        )
    sources = [name for name in benchmark.domains if name not in targets]
    if not sources:
        problems.append(f"at least one domain must be left to train on, got the targets {'+'.join(targets)!r}")
    return problems + source_problems(config, sources)


def source_problems(config: RunConfig, sources: Sequence[str]) -> list[str]:
    """Say if the algorithm of a run needs more source domains than there are."""
    algorithm = config.training.algorithm
    try:
        needed = get_algorithm(algorithm).min_domains
    except AlgorithmError:  # reported with the algorithm's problems
        return []
    if not sources or len(sources) >= needed:
        return []
    advice = "hold out fewer" if config.data.targets else "choose an algorithm for one domain, such as erm"
    return [f"{algorithm} needs at least {needed} source domains, got {', '.join(sources)}: {advice}"]


def _dataset_problems(config: RunConfig, benchmark: Benchmark) -> list[str]:
    problems = []
    if unknown := sorted(set(config.data.dataset_options) - set(benchmark.options)):
        options = ", ".join(sorted(benchmark.options)) or "none"
        listed = ", ".join(unknown)
        problems.append(f"dataset {benchmark.name} takes the options {options}, got {listed!r}")
    if benchmark.layout != "embedded" and config.data.data_dir is None:
        problems.append(f"dataset {benchmark.name} needs its directory: set data_dir (--data)")
    data, spec = config.data, benchmark.image_spec
    if spec.low_res and data.image_size not in (None, spec.size):
        problems.append(f"images of {benchmark.name} keep their size of {spec.size} pixels, got {data.image_size}")
    for name, values in (("image_mean", data.image_mean), ("image_std", data.image_std)):
        if values is not None and len(values) != spec.channels:
            problems.append(f"{name} must have {spec.channels} numbers, one per channel, got {len(values)}")
    size = spec.size if data.image_size is None else data.image_size
    if config.model.network == SMALL and not SMALLEST <= size <= LARGEST:
        problems.append(
            f"the network {SMALL} takes images of {SMALLEST} to {LARGEST} pixels, and {benchmark.name} has {size}: "
            "set image_size (--image-size 32) or choose a timm model"
        )
    return problems


def _algorithm_problems(config: RunConfig, benchmark: Benchmark | None) -> list[str]:
    name = config.training.algorithm
    try:
        algorithm_class = get_algorithm(name)
    except AlgorithmError as error:
        return [str(error)]
    if config.training.recipe == "own" and algorithm_class.own_recipe is None:
        others = ", ".join(_with_own_recipe())
        return [f"{name} has no recipe of its own: leave out --recipe{others and f', or use one of {others}'}"]
    if unknown := unknown_hyperparameters(name, config.training.hyperparameters):
        return unknown
    defaults = default_hyperparameters(benchmark.name, name, config.training.recipe) if benchmark else {}
    filled = fill(algorithm_class.Hyperparameters, {**defaults, **config.training.hyperparameters})
    low_res = benchmark is not None and benchmark.image_spec.low_res
    problems = filled.problems() or (filled.problems_on_low_res() if low_res else [])
    if config.machine.strategy == "fsdp":
        if algorithm_class.update is not Algorithm.update:
            problems.append(
                f"fsdp shards algorithms that step on one loss, and {name} has an update of its own: use ddp"
            )
        elif not algorithm_class.shardable:
            problems.append(
                f"fsdp gathers parameters for the forward pass, and {name} reads them outside of it: use ddp"
            )
    if not problems and filled.batch_size < algorithm_class.min_per_domain:
        least = algorithm_class.min_per_domain
        problems.append(f"{name} needs a batch_size of {least} or more, got {filled.batch_size}")
    own = algorithm_class.own_recipe
    pools = "domain labels" not in algorithm_class.needs or (own is not None and own.batches == "pooled")
    if config.data.batches == "pooled" and not pools:
        problems.append(f"{name} needs images of every domain in a step, got pooled batches: use balanced ones")
    return problems


def _with_own_recipe() -> list[str]:
    return [name for name in list_algorithms() if get_algorithm(name).own_recipe is not None]


def unknown_hyperparameters(algorithm: str, names: Iterable[str]) -> list[str]:
    """Say of every name that is no hyperparameter of an algorithm what was probably meant.

    >>> unknown_hyperparameters("erm", ["lr", "steps"])
    ['steps is a setting of the run, not a hyperparameter: use --steps']
    """
    known = [field.name for field in dataclasses.fields(get_algorithm(algorithm).Hyperparameters)]
    problems = []
    for name in names:
        if name in SETTINGS and name not in known:
            problems.append(f"{name} is a setting of the run, not a hyperparameter: use --{name.replace('_', '-')}")
        elif name not in known:
            hint = did_you_mean(name, known)
            problems.append(f"{algorithm}: no hyperparameter {name}; there are {', '.join(known)}{hint and ': '}{hint}")
    return problems


def _schedule_problems(config: RunConfig, benchmark: Benchmark | None) -> list[str]:
    defaults = None if benchmark is None else benchmark.defaults
    steps = config.training.steps or (defaults.steps if defaults and config.training.epochs is None else None)
    every = config.evaluation.evaluate_every
    valid = not SETTINGS["steps"].problem(steps) and not SETTINGS["evaluate_every"].problem(every)
    if steps is not None and valid and defaults:
        every = every or defaults.evaluate_every_in(steps)
    if steps is None or every is None or not valid:
        return registry.problems(config.evaluation.averages, None)
    problems = []
    if config.evaluation.evaluate_every is not None and every > steps:
        problems.append(f"evaluate_every must not exceed the {steps} steps, got {every}")
    planned = config.replace(steps=steps)
    snapshots, last = config.files.snapshots, planned.total_steps
    if not all(type(step) is int and 1 <= step <= last for step in snapshots):
        problems.append(f"snapshots must be between step 1 and step {last}, got {', '.join(map(str, snapshots))}")
    plan = registry.Plan(steps, min(every, steps), 0.3, planned.eval_offset, planned.cycle_steps)
    if config.training.recipe == recipe.IMAGENET and steps == 1:
        problems.append("the imagenet recipe needs at least 2 steps, got 1: train for more epochs")
    if config.training.recipe == recipe.IMAGENET and config.warmup_steps > averaging_plan(config).late:
        problems.append(
            f"the warm-up must end before the last 20 % of the {steps} steps, got {config.warmup_steps} steps: "
            "lower warmup_epochs"
        )
    return problems + registry.problems(config.evaluation.averages, plan) + _label_problems(config)


def _label_problems(config: RunConfig) -> list[str]:
    """Labels are file names in the directory that also holds the snapshots."""
    try:
        labels = [spec.label for spec in registry.parse_all(config.evaluation.averages)]
    except ValueError:  # reported with the averages
        return []
    return [
        f"an average must not be named like a snapshot, got {label!r}: choose another name after as="
        for label in labels
        if re.fullmatch(r"step-\d+", label)
    ]


def _machine_problems(config: RunConfig) -> list[str]:
    problems = []
    weights = config.model.weights
    if weights not in (None, "pretrained", "random") and not Path(str(weights)).is_file():
        problems.append(f"weights must be pretrained, random or an existing file, got {weights!r}")
    threads = config.machine.threads
    if type(threads) is int and threads > MAX_THREADS:
        problems.append(f"threads must be at most {MAX_THREADS}, got {threads}: use at most one per core")
    problems += name_problems(config.files.log)
    device = config.machine.device
    if device == "auto":
        return problems
    try:
        device_type = torch.device(device).type
    except (RuntimeError, TypeError):
        return [*problems, f"device must be auto, cpu, cuda or cuda:NUMBER, got {device!r}"]
    if device_type == "cuda" and not torch.cuda.is_available():
        problems.append(f"device is {device!r}, but torch finds no GPU: use cpu, or install torch for your GPU")
    return problems


# -- defaults -----------------------------------------------------------------------------------------------------


def _image_options(config: RunConfig, benchmark: Benchmark, network: str) -> dict[str, Any]:
    """The images that the network was made for, where the settings say nothing else."""
    data = config.data
    known: Any = benchmark.image_spec if network == SMALL else input_config(network)
    return {
        "image_size": data.image_size or known.size,
        "image_mean": data.image_mean or known.mean,
        "image_std": data.image_std or known.std,
    }


def _input_pipeline(
    config: RunConfig, benchmark: Benchmark, stored: str | None, n_images: int
) -> Literal["torchvision", "gpu"]:
    if benchmark.image_spec.low_res:
        return "torchvision"
    if config.data.input_pipeline or stored:
        return config.data.input_pipeline or stored  # type: ignore[return-value]
    on_gpu = config.machine.device.startswith("cuda")
    return "gpu" if on_gpu and _cache_bytes(config, n_images) <= LARGEST_DEFAULT_CACHE else "torchvision"


def _cache_bytes(config: RunConfig, n_images: int) -> int:
    side = config.data.cache_size or DEFAULT_CACHE_SIZE
    return n_images * side * side * 3


def _count_images(config: RunConfig) -> int:
    """The number of images; 0 where it is unknown and no default depends on it."""
    total = benchmarks.get(config.data.dataset).total
    on_gpu, by_recipe = config.machine.device.startswith("cuda"), _recipe(config) == recipe.IMAGENET
    needed = on_gpu and not by_recipe and config.data.input_pipeline is None
    return _count_files(config.data.data_dir) if total is None and needed else total or 0


@cache
def _count_files(folder: Path | None) -> int:
    return 0 if folder is None else sum(len(files) for _, _, files in os.walk(folder))
