"""From what a user asked for to what is computed: the checks of `swad.testbed.training.checks`, then defaults.

`resolve` is the only step between a `RunConfig` and a run that looks outside the settings: it reads the run directory
(a resumed run keeps the defaults it started with, also on another machine), counts the files of a dataset whose size
is unknown, and asks torch about the device. Everything it finds is passed to `fill_defaults`, which is a pure function.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch

from swad.testbed.algorithms.registry import canonical_name, get_algorithm
from swad.testbed.data import benchmarks
from swad.testbed.data.benchmark import Benchmark
from swad.testbed.data.cache_build import DEFAULT_SIZE as DEFAULT_CACHE_SIZE
from swad.testbed.data.domains import Defaults
from swad.testbed.models.catalog import DEFAULT, SMALL, has_pretrained, input_config
from swad.testbed.training.checks import find_problems, resolved_problems
from swad.testbed.training.config import PROTOCOL, ConfigError, ResolvedConfig, RunConfig
from swad.testbed.training.dataset import count_images, training_images
from swad.testbed.training.recipes import default_hyperparameters, reads_cache, recipe_of
from swad.testbed.training.run_dir import stored_settings

LARGEST_DEFAULT_CACHE = 32e9
"""Largest image cache, in bytes, that is built without an explicit --input-pipeline gpu."""


def resolve(config: RunConfig) -> ResolvedConfig:
    """Check the settings and fill in every default; all problems are reported together. Resolved ones are returned.

    >>> config = resolve(RunConfig.from_options(dataset="digits", target="paper", output="runs/paper-0"))
    >>> config.network, config.steps == benchmarks.get("digits").defaults.steps
    ('small', True)
    """
    if isinstance(config, ResolvedConfig):
        return config
    if problems := find_problems(config):
        raise ConfigError(problems)
    if config.device == "auto":
        config = config.replace(device="cuda" if torch.cuda.is_available() else "cpu")
    resolved = fill_defaults(
        config,
        stored=stored_settings(config.output),
        n_images=_count_images(config),
        training_images=training_images(config) if recipe_of(config).counts_images(config) else (),
        bf16=config.device.startswith("cuda") and torch.cuda.is_bf16_supported(including_emulation=False),
    )
    if resolved.epochs is not None and (problems := resolved_problems(resolved)):
        raise ConfigError(problems)  # only now: these steps follow from the number of images
    return resolved


def fill_defaults(
    config: RunConfig, *, stored: Mapping[str, Any], n_images: int, bf16: bool, training_images: Sequence[int] = ()
) -> ResolvedConfig:
    """Fill in every default of valid settings.

    Args:
        config: Valid settings.
        stored: The settings of the run that is resumed, by field name; empty for a new one.
        n_images: Images in the dataset, which decide whether a cache is built by default.
        bf16: Whether the device computes in bf16.
        training_images: Training images of every source domain, which are an epoch together.
    """
    benchmark = benchmarks.get(config.dataset)
    recipe = recipe_of(config)
    config = recipe.apply(config.replace(recipe=recipe.name, algorithm=canonical_name(config.algorithm)))
    config = recipe.fill(config, training_images)
    algorithm, sgd = config.algorithm, config.optimizer == "sgd"
    network = config.network or (SMALL if benchmark.image_spec.low_res else DEFAULT)
    steps = config.steps
    assert steps is not None
    images = {} if benchmark.image_spec.low_res else _image_options(config, benchmark, network)
    weights = config.weights or ("pretrained" if has_pretrained(network) else "random")
    # Random weights have no statistics that are worth keeping: frozen, their batch norms would normalize nothing.
    # The small network has no batch norms.
    freeze_bn = PROTOCOL["freeze_bn"] and (weights != "random" or network == SMALL)
    filled: dict[str, Any] = {
        **config.options(),
        **{name: PROTOCOL[name] for name in ("optimizer", "lr_schedule", "batches") if getattr(config, name) is None},
        "dataset": benchmark.name,
        "hyperparameters": {
            **default_hyperparameters(benchmark.name, algorithm, config.recipe),
            **config.hyperparameters,
        },
        "augmentation": {**PROTOCOL["augmentation"], **config.augmentation},
        "freeze_bn": freeze_bn if config.freeze_bn is None else config.freeze_bn,
        "momentum": 0.9 if sgd and config.momentum is None else config.momentum,
        "network": network,
        **images,
        "weights": weights,
        "threads": config.threads or (1 if network == SMALL else None),
        "input_pipeline": _input_pipeline(config, benchmark, stored.get("input_pipeline"), n_images),
        "precision": config.precision
        or stored.get("precision")
        or ("bf16" if bf16 and not benchmark.image_spec.low_res else "fp32"),
        "evaluate_every": config.evaluate_every or benchmark.defaults.evaluate_every_in(steps),
        "seed": derived_seed(config.replace(dataset=benchmark.name)) if config.seed is None else config.seed,
    }
    return ResolvedConfig.from_options(output=config.output, **filled)


def derived_seed(config: RunConfig) -> int:
    """The seed of a run that sets none, from what names it: dataset, algorithm, targets and trial."""
    # This text must never change: it decides every random number of every run without a seed.
    text = json.dumps([config.dataset, config.algorithm, config.targets, config.trial])
    return int(hashlib.md5(text.encode(), usedforsecurity=False).hexdigest(), 16) % 2**31


def resolution_notes(config: RunConfig, resolved: ResolvedConfig) -> list[str]:
    """List choices of `resolve`, which returned `resolved`, that a user may not expect, one sentence each."""
    notes = []
    lr = resolved.hyperparameters["lr"]
    if resolved.weights == "random" and lr == Defaults.lr and "lr" not in config.hyperparameters:
        notes.append(
            f"lr is {lr:g}, the default for fine-tuning, but the weights are random: set a higher one (--set lr=1e-3)"
        )
    if get_algorithm(resolved.algorithm).eager_only:
        notes.append(
            f"{resolved.algorithm} makes its steps itself, with optimizers of its own: eagerly, in one process"
        )
    recipe = recipe_of(resolved)
    if reads_cache(resolved):
        return notes
    benchmark = benchmarks.get(config.dataset)
    on_gpu = resolved.device.startswith("cuda") and not benchmark.image_spec.low_res
    if on_gpu and not recipe.large and config.input_pipeline is None and not stored_settings(config.output):
        on_device = config.replace(device=resolved.device)  # the user may have asked for auto
        size = _cache_bytes(config, _count_images(on_device)) / 1e9
        notes.append(
            f"using the torchvision input pipeline: the cache of decoded images would take {size:,.0f} GB, more than "
            f"the default limit of {LARGEST_DEFAULT_CACHE / 1e9:,.0f} GB; set input_pipeline to gpu (--input-pipeline) "
            "to build it"
        )
    if benchmark.image_spec.low_res and (given := recipe.apply(config).augmentation):
        notes.append(f"augmentation ({', '.join(given)}): ignored, because low-resolution images are not augmented")
    options = {"cache": config.cache, "cache_size": config.cache_size}
    if unused := [name for name, value in options.items() if value]:
        hint = (
            ""
            if recipe.large or benchmark.image_spec.low_res
            else "; set input_pipeline to gpu (--input-pipeline) to use one"
        )
        without = f"{recipe.name} recipe" if recipe.large else "torchvision input pipeline"
        notes.append(f"{', '.join(unused)}: ignored, because the {without} uses no image cache{hint}")
    return notes


def _image_options(config: RunConfig, benchmark: Benchmark, network: str) -> dict[str, Any]:
    """The images that the network was made for, where the settings say nothing else.

    Images with another number of channels than the network was made for keep the dataset's normalization.
    """
    spec = benchmark.image_spec
    known: Any = spec if network == SMALL else input_config(network)
    normalization: Any = known if len(known.mean) == spec.channels else spec
    return {
        "image_size": config.image_size or known.size,
        "image_mean": config.image_mean or normalization.mean,
        "image_std": config.image_std or normalization.std,
    }


def _input_pipeline(
    config: RunConfig, benchmark: Benchmark, stored: str | None, n_images: int
) -> Literal["torchvision", "gpu"]:
    if benchmark.image_spec.low_res:
        return "torchvision"
    if config.input_pipeline or stored:
        return config.input_pipeline or stored  # type: ignore[return-value]
    on_gpu = config.device.startswith("cuda")
    return "gpu" if on_gpu and _cache_bytes(config, n_images) <= LARGEST_DEFAULT_CACHE else "torchvision"


def _cache_bytes(config: RunConfig, n_images: int) -> int:
    side = config.cache_size or DEFAULT_CACHE_SIZE
    return n_images * side * side * 3


def _count_images(config: RunConfig) -> int:
    """The number of images; 0 where it is unknown and no default depends on it."""
    total = benchmarks.get(config.dataset).total
    on_gpu = config.device.startswith("cuda")
    needed = on_gpu and not recipe_of(config).large and config.input_pipeline is None
    return count_images(config) if total is None and needed else total or 0
