"""What a run takes where its settings say nothing: hyperparameters, the recipe of a paper, steps and windows."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, Literal

from swad.testbed.algorithms.hyperparameters import Constant, Hyperparameters
from swad.testbed.algorithms.registry import get_algorithm
from swad.testbed.averages import registry
from swad.testbed.data import benchmarks
from swad.testbed.data.domains import Dataset
from swad.testbed.data.splits import hold_out, n_train
from swad.testbed.training.config import SETTINGS, ConfigError, RunConfig
from swad.testbed.training.recipe import IMAGENET
from swad.testbed.training.recipe import SETTINGS as SETTINGS_OF_IMAGENET
from swad.testbed.training.resolved_config import ResolvedConfig

OWN = "own"
"""The recipe of the algorithm's own paper."""
STATED = {"augmentation", "hyperparameters"} | {
    name
    for name, known in SETTINGS.items()
    if known.role in ("protocol", "hyperparameter") and known.default is None and name != "recipe"
}
"""What it may state: settings for which a run can say nothing, so that its own choice wins."""


def default_hyperparameters(dataset: str, algorithm: str, recipe: str | None = None) -> dict[str, Any]:
    """Return the hyperparameters of an algorithm on a dataset for which a run sets nothing."""
    benchmark, own = benchmarks.get(dataset), get_algorithm(algorithm).Hyperparameters()
    common = Hyperparameters()
    # An algorithm's own lr or batch size wins over the dataset's, except on low-resolution data, as in DomainBed.
    of_dataset = {
        name: getattr(benchmark.defaults, name)
        for name in ("lr", "batch_size")
        if benchmark.image_spec.low_res or getattr(own, name) == getattr(common, name)
    }
    if benchmark.image_spec.low_res:  # what no search varies there
        for declared in dataclasses.fields(own):
            if isinstance(fixed := declared.metadata["low_res"], Constant):
                default = getattr(own, declared.name)
                of_dataset[declared.name] = float(fixed.value) if isinstance(default, float) else fixed.value
    of_dataset |= own.defaults_on(benchmark)
    of_paper = _own_settings(dataset, algorithm).get("hyperparameters", {}) if recipe == OWN else {}
    return dataclasses.asdict(dataclasses.replace(own, **{**of_dataset, **of_paper}))


def apply_recipe(config: RunConfig) -> RunConfig:
    """Fill in what the recipe of a run states and its settings do not.

    Hyperparameters are left to `default_hyperparameters`, because a search needs them too.
    """
    if recipe_of(config) == OWN:
        stated = _own_settings(config.dataset, config.algorithm)
    elif recipe_of(config) == IMAGENET:
        stated = dict(SETTINGS_OF_IMAGENET)
    else:
        return config
    stated.pop("hyperparameters", None)
    options = config.options()
    if unknown := sorted(stated.keys() - STATED):
        known = ", ".join(sorted(STATED))
        raise ConfigError([f"the recipe of {config.algorithm} may state {known}, got {', '.join(unknown)}"])
    if options["epochs"] is not None:
        stated.pop("steps", None)
    if options["optimizer"] not in (None, "sgd"):
        stated.pop("momentum", None)
    augmentation = {**stated.pop("augmentation", {}), **options["augmentation"]}
    unsaid = {name: value for name, value in stated.items() if options[name] is None}
    return config.replace(**unsaid, augmentation=augmentation)


def _own_settings(dataset: str, algorithm: str) -> dict[str, Any]:
    recipe = get_algorithm(algorithm).own_recipe
    return {} if recipe is None else recipe.settings(benchmarks.get(dataset).name)


def recipe_of(config: RunConfig) -> Literal["imagenet", "own"] | None:
    """Return the recipe of a run, which may be the default of its dataset."""
    return config.recipe or benchmarks.get(config.dataset).defaults.recipe


def planned_steps(config: RunConfig, images: Sequence[int]) -> int:
    """Return the optimizer steps of a run.

    Args:
        config: Its settings, before or after defaults are filled in.
        images: Number of training images of every source domain, for a run that counts epochs.
    """
    config = apply_recipe(config)
    if config.steps is not None or config.epochs is None:
        return config.steps or benchmarks.get(config.dataset).defaults.steps
    return max(1, round(config.epochs * sum(images) / images_per_step(config, max(1, len(images)))))


def images_per_step(config: RunConfig, n_sources: int) -> int:
    """Return the number of images in a step, over all source domains."""
    batch_size = config.hyperparameters.get("batch_size")
    if batch_size is None:
        batch_size = default_hyperparameters(config.dataset, config.algorithm, config.recipe)["batch_size"]
    return int(batch_size) * (1 if apply_recipe(config).batches == "pooled" else n_sources)


def training_images(config: RunConfig) -> tuple[int, ...]:
    """Return the number of training images of every source domain."""
    benchmark = benchmarks.get(config.dataset)
    if benchmark.counts and config.check_counts:
        counts = [count for name, count in benchmark.counts.items() if name not in config.targets]
        return tuple(n_train(count, three_way=config.three_way) for count in counts)
    return _count_training_images(_key(config), config.targets, config.trial, config.three_way)


def load_data(config: RunConfig, counted: bool) -> Dataset:
    """Load the dataset of a run; if its images were just `counted`, they are not listed again."""
    if not counted:
        _load.cache_clear()
    try:
        return _load(_key(config))
    finally:
        _load.cache_clear()


def forget_images() -> None:
    """Count images again: in a notebook, some may have been added or removed since the last training."""
    _count_training_images.cache_clear()
    _load.cache_clear()


@cache
def _count_training_images(
    key: tuple[Any, ...], targets: tuple[str, ...], trial: int, three_way: bool
) -> tuple[int, ...]:
    sources = hold_out(_load(key), targets, trial=trial, three_way=three_way).sources
    return tuple(len(part) for part in sources.train)


def _key(config: RunConfig) -> tuple[Any, ...]:
    options = json.dumps(config.dataset_options, sort_keys=True)
    return (benchmarks.get(config.dataset).name, config.data_dir, config.check_counts, options)


@lru_cache(1)
def _load(key: tuple[Any, ...]) -> Dataset:
    dataset, folder, check_counts, options = key
    return benchmarks.load(dataset, folder, check_counts=check_counts, **json.loads(options))


def averaging_plan(config: ResolvedConfig) -> registry.Plan:
    """The steps and evaluations of a run, from which the windows of its averages follow."""
    steps, every = config.steps, config.evaluate_every
    ratio = benchmarks.get(config.dataset).defaults.tolerance_ratio
    # In the recipe a cyclic run shares its first 80 % with a constant one, so cycles do not move the window.
    start = steps - max(1, steps // 5) if config.recipe == IMAGENET else None
    return registry.Plan(steps, every, ratio, config.eval_offset, config.cycle_steps, start)


def branch_point(config: ResolvedConfig) -> int | None:
    """The step after which a run of the imagenet recipe keeps a checkpoint for other runs to branch from, if any."""
    shares = config.recipe == IMAGENET and config.lr_schedule != "decay"
    return averaging_plan(config).late if shares and config.branch_from is None else None
