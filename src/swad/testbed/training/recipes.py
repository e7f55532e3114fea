"""The ways to train a run, one class each. What differs between them is here; nothing else asks which one a run has.

    None        DomainBed's protocol, as in the paper
    own         the same, with the settings of the algorithm's own paper (`swad.testbed.algorithms.recipe`)
    imagenet    one large dataset from scratch, as in appendix B.6 of the paper

`swad --help` and the plan of a sweep use this module, so torch and the loaders are imported where they are needed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from swad.testbed.algorithms.hyperparameters import Constant, Hyperparameters
from swad.testbed.algorithms.registry import AlgorithmError, get_algorithm, list_algorithms
from swad.testbed.averages import registry
from swad.testbed.data import benchmarks
from swad.testbed.training import lr_schedule
from swad.testbed.training.config import SETTINGS, ConfigError, ResolvedConfig, RunConfig
from swad.util.processes import available_cores

if TYPE_CHECKING:
    from swad.testbed.algorithms.base import Algorithm
    from swad.testbed.data.cache import ImageCache
    from swad.testbed.data.domains import ImageSpec
    from swad.testbed.data.images import ImageSource
    from swad.testbed.data.sampling import Pool, Sampler
    from swad.testbed.training.distributed import Dist

STATED = {"augmentation", "hyperparameters"} | {
    name
    for name, known in SETTINGS.items()
    if known.role in ("protocol", "hyperparameter") and known.default is None and name != "recipe"
}
"""What a recipe may state: settings for which a run can say nothing, so that its own choice wins."""


class DomainBedRecipe:
    """DomainBed's protocol: balanced or pooled batches of pretrained networks, and a number of steps.

    The other recipes are the same except for what they override.
    """

    name: Literal["imagenet", "own"] | None = None
    large = False
    """Whether a run trains in epochs on all images together, which take too long to be decoded or cached before."""
    center_crop: bool | None = None
    """Whether images are evaluated on their center; None for what the dataset says."""
    lr_batch: int | None = None
    """Images in the batch for which the learning rate is given; None if it is that of every batch."""

    # -- settings -------------------------------------------------------------------------------------------------

    def default_averages(self, schedule: str | None) -> tuple[str, ...] | None:
        """Return the averages of a run with a learning rate schedule; None for those of `RunConfig`."""
        return None

    def trainings(self, config: RunConfig) -> list[RunConfig]:
        """Return the runs that train a method each, in the order in which they can be trained."""
        return [config]

    def stated(self, dataset: str, algorithm: str) -> dict[str, Any]:
        """Return the settings of a run for which its own say nothing."""
        return {}

    def apply(self, config: RunConfig) -> RunConfig:
        """Fill in what the recipe states and the settings do not.

        Hyperparameters are left to `default_hyperparameters`, because a search needs them too.
        """
        stated = self.stated(config.dataset, config.algorithm)
        stated.pop("hyperparameters", None)
        if not stated:
            return config
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

    def counts_images(self, config: RunConfig) -> bool:
        """Whether the number of steps depends on the number of training images."""
        config = self.apply(config)
        return config.steps is None and config.epochs is not None

    def steps(self, config: RunConfig, images: Sequence[int]) -> int:
        """Return the optimizer steps of a run.

        Args:
            config: Its settings, before or after defaults are filled in.
            images: Number of training images of every source domain, where they are counted.
        """
        config = self.apply(config)
        if config.steps is not None or config.epochs is None:
            return config.steps or benchmarks.get(config.dataset).defaults.steps
        return max(1, round(config.epochs * sum(images) / images_per_step(config, max(1, len(images)))))

    def fill(self, config: RunConfig, images: Sequence[int]) -> RunConfig:
        """Fill in the number of steps, and what follows from it."""
        return config.replace(steps=self.steps(config, images))

    # -- problems -------------------------------------------------------------------------------------------------

    def problems(self, config: RunConfig) -> list[str]:
        """List the settings that the recipe does not take."""
        given = {"warmup_epochs": config.warmup_epochs, "micro_batch": config.micro_batch}
        names = [name for name, value in given.items() if value is not None]
        names += ["lr_schedule=decay"] * (config.lr_schedule == "decay")
        belongs = "belongs to the imagenet recipe: set recipe=imagenet, or leave it out"
        return [f"{', '.join(names)} {belongs}"] if names else []

    def resolved_problems(self, config: ResolvedConfig) -> list[str]:
        """List what is wrong with the steps of a run, which are now known."""
        return []

    # -- the schedule ---------------------------------------------------------------------------------------------

    def known_steps(self, config: RunConfig) -> int | None:
        """Return the steps of a run as far as they are known without its images."""
        return config.steps or (benchmarks.get(config.dataset).defaults.steps if config.epochs is None else None)

    def cycle_steps(self, config: ResolvedConfig) -> int | None:
        """Return the steps in one cycle of the learning rate; None if it is not cyclic."""
        return lr_schedule.cycle_steps(config.steps) if config.lr_schedule == "cyclic" else None

    def plan(self, config: ResolvedConfig) -> registry.Plan:
        """Return the steps and evaluations of a run, from which the windows of its averages follow."""
        ratio = benchmarks.get(config.dataset).defaults.tolerance_ratio
        return registry.Plan(config.steps, config.evaluate_every, ratio, config.eval_offset, self.cycle_steps(config))

    def branch_step(self, config: ResolvedConfig) -> int | None:
        """Return the step after which a run keeps a checkpoint for other runs to branch from; None if it does not."""
        return None

    def lr_factor(self, config: ResolvedConfig) -> Callable[[int], float] | None:
        """Return the factor of the learning rate after a number of updates; None for a constant one."""
        cycle = self.cycle_steps(config)
        if cycle is not None:
            return lr_schedule.Cycle(cycle, lr_schedule.LOWEST, self.plan(config).late)
        return lr_schedule.lr_factor(config.lr_schedule, config.total_steps, config.epochs)

    # -- batches --------------------------------------------------------------------------------------------------

    def sampler(self, config: ResolvedConfig, pool: Pool, batch_size: int) -> Sampler:
        """Return what draws the images of every step."""
        from swad.testbed.data.sampling import Balanced, Pooled

        return (Pooled if config.batches == "pooled" else Balanced)(pool, batch_size, config.seed)

    def images(
        self,
        config: ResolvedConfig,
        pool: Pool,
        image_spec: ImageSpec,
        algorithm: Algorithm,
        dist: Dist,
        cache: ImageCache | None,
        log: Callable[[str], None],
    ) -> ImageSource:
        """Return the source of training images: a cache of decoded images if there is one, else memory or files."""
        import torch

        from swad.testbed.data.augmentation import Augmentation
        from swad.testbed.data.images import ArrayImages, CachedImages, EncodedImages, FileImages, in_memory
        from swad.testbed.data.transforms import Normalize, train_transform

        augmentation = Augmentation(**config.augmentation)
        options: dict[str, Any] = {"views": algorithm.views, "device": dist.device}
        if cache is not None:
            return CachedImages(cache, pool, image_spec, config.seed, augmentation=augmentation, log=log, **options)
        # In the layout of a network that is trained from scratch.
        memory_format = torch.channels_last if self.large and dist.device.type == "cuda" else None
        normalize = Normalize(image_spec, dist.device, memory_format)
        if in_memory(pool, image_spec):
            return ArrayImages(pool, normalize, **options)
        options["workers"] = config.workers
        if self.large and config.workers is None:
            options["workers"] = max(1, available_cores() // dist.local_world_size)
        if config.input_pipeline == "gpu" and not image_spec.low_res:
            return EncodedImages(pool, image_spec.size, augmentation, normalize, **options)
        return FileImages(pool, train_transform(image_spec, augmentation), normalize, **options)


class OwnRecipe(DomainBedRecipe):
    """The protocol with the settings of the algorithm's own paper."""

    name = "own"

    def stated(self, dataset: str, algorithm: str) -> dict[str, Any]:
        """Return the settings of the paper."""
        own = get_algorithm(algorithm).own_recipe
        return {} if own is None else own.settings(benchmarks.get(dataset).name)

    def problems(self, config: RunConfig) -> list[str]:
        """List what the protocol does not take, and say if the algorithm has no recipe."""
        problems = super().problems(config)
        try:
            if get_algorithm(config.algorithm).own_recipe is None:
                others = ", ".join(filter(_has_own_recipe, list_algorithms()))
                hint = f", or use one of {others}" if others else ""
                problems.append(f"{config.algorithm} has no recipe of its own: leave out recipe (--recipe){hint}")
        except AlgorithmError:  # reported with the algorithm's problems
            pass
        return problems


class ImageNetRecipe(DomainBedRecipe):
    """Training on one large dataset from scratch.

    SGD with momentum, a learning rate in proportion to the batch, warm-up and polynomial decay, epochs without
    replacement, batch norms that are trained. A run follows one of three learning rates:

    decay:    down to zero at the end of training. This is ERM.
    constant: down to a twentieth after 80 % of training, then constant. SWAD averages every update of the last 20 %.
    cyclic:   the same, then cycles of 3 epochs. SWA averages the end of each cycle.

    The paper does not give the power of the decay, the weight decay or the bounds of the cycles. Here they are 1, 1e-4,
    and the constant rate and a twentieth of it.
    """

    name = "imagenet"
    large = True
    center_crop = True
    lr_batch = 256  # Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017

    EPOCHS = 90
    WARMUP_EPOCHS = 5
    CYCLE_EPOCHS = 3
    LOW = 1 / 20
    """The learning rate after 80 % of training, as a share of the highest."""
    MICRO_BATCH = 256
    """Images in one forward pass, over which batch norms compute their statistics."""
    HYPERPARAMETERS: Mapping[str, float] = {"lr": 0.1, "batch_size": 2048, "weight_decay": 1e-4}
    AUGMENTATION: Mapping[str, float] = {"crop": 0.08, "flip": 0.5, "jitter": 0.0, "grayscale": 0.0}
    """Crops of 8 to 100 % of the area, and flips."""
    AVERAGES: Mapping[str, tuple[str, ...]] = {
        "decay": ("ema",),
        "constant": ("without_opt_overfit:as=swad",),
        "cyclic": ("swa",),
    }
    """The averages by learning rate. SWAD has a fixed window here, so it needs no validation loss."""

    def default_averages(self, schedule: str | None) -> tuple[str, ...] | None:
        """Return the averages that a learning rate is made for."""
        return self.AVERAGES.get(schedule or "constant")

    def trainings(self, config: RunConfig) -> list[RunConfig]:
        """Return the runs which together give ERM, EMA, SWA and SWAD: Table 6 of the paper.

        SWAD and SWA share the first 80 % of one trajectory: the run of SWAD trains it and keeps a checkpoint there,
        from which the run of SWA branches off. Each run keeps what it is trained for: ERM its live weights and an EMA,
        the others their average. `output` becomes one directory for each.

        >>> config = RunConfig.from_options(dataset="imagenet", target="none", output="runs/none-0")
        >>> runs = ImageNetRecipe().trainings(config)
        >>> [(run.output.name, run.averages) for run in runs]  # doctest: +NORMALIZE_WHITESPACE
        [('none-0-decay', ('ema',)),
         ('none-0-constant', ('without_opt_overfit:as=swad',)),
         ('none-0-cyclic', ('swa',))]
        >>> runs[2].branch_from == runs[1].output
        True
        """
        outputs = {name: config.output.with_name(f"{config.output.name}-{name}") for name in self.AVERAGES}
        return [
            config.replace(
                output=output,
                lr_schedule=name,
                averages=self.AVERAGES[name],
                report_live=name == "decay",
                branch_from=outputs["constant"] if name == "cyclic" else None,
                keep_segments=config.keep_segments and name != "cyclic",  # a branch cannot have all of them
            )
            for name, output in outputs.items()
        ]

    def stated(self, dataset: str, algorithm: str) -> dict[str, Any]:
        """Return the settings of the recipe."""
        return {
            "optimizer": "sgd",
            "weights": "random",
            "freeze_bn": False,
            "input_pipeline": "torchvision",
            "augmentation": self.AUGMENTATION,
        }

    def counts_images(self, config: RunConfig) -> bool:
        """The images decide the steps, or the epochs that given steps are."""
        return True

    def steps(self, config: RunConfig, images: Sequence[int]) -> int:
        """Return the given steps, or those of the epochs."""
        return config.steps or max(1, round((config.epochs or self.EPOCHS) * self._steps_per_epoch(config, images)))

    def fill(self, config: RunConfig, images: Sequence[int]) -> RunConfig:
        """Fill in what follows from the batch size and the number of images."""
        hyperparameters = {**self.HYPERPARAMETERS, **config.hyperparameters}
        per_epoch, steps = self._steps_per_epoch(config, images), self.steps(config, images)
        return config.replace(
            hyperparameters=hyperparameters,
            steps=steps,
            epochs=steps / per_epoch,
            evaluate_every=config.evaluate_every or min(per_epoch, steps),
            micro_batch=config.micro_batch or min(self.MICRO_BATCH, int(hyperparameters["batch_size"])),
        )

    def _steps_per_epoch(self, config: RunConfig, images: Sequence[int]) -> int:
        from swad.testbed.data.sampling import steps_per_epoch

        return steps_per_epoch(sum(images), int({**self.HYPERPARAMETERS, **config.hyperparameters}["batch_size"]))

    def problems(self, config: RunConfig) -> list[str]:
        """List what does not go together with the recipe."""
        problems, schedule = [], config.lr_schedule
        if schedule not in (None, *self.AVERAGES):
            known = ", ".join(sorted(self.AVERAGES))
            problems.append(f"the lr_schedule of the imagenet recipe must be one of {known}, got {schedule!r}")
        if config.schedule == "reference":
            problems.append("the reference schedule belongs to DomainBed's protocol: use the default with this recipe")
        colors = [name for name in ("jitter", "grayscale") if config.augmentation.get(name)]
        if colors and config.input_pipeline == "gpu":
            listed = ", ".join(colors)
            problems.append(f"a device that decodes images does not change colors, got {listed}: set it to 0")
        if config.hyperparameters.get("dropout"):
            problems.append("the imagenet recipe accumulates gradients, which dropout does not support: use dropout=0")
        try:
            if not get_algorithm(config.algorithm).accumulates():
                problems.append(
                    f"the imagenet recipe pools all images and accumulates their gradients, which {config.algorithm} "
                    "does not support: use erm"
                )
        except AlgorithmError:  # reported with the algorithm's problems
            pass
        return problems

    def resolved_problems(self, config: ResolvedConfig) -> list[str]:
        """The warm-up and the last fifth must not overlap."""
        problems, warmup = [], self.warmup_steps(config)
        if config.steps == 1:
            problems.append("the imagenet recipe needs at least 2 steps, got 1: train for more epochs")
        if warmup > self.plan(config).late:
            problems.append(
                f"the warm-up must end before the last 20 % of the {config.steps} steps, got {warmup} steps: lower "
                "warmup_epochs"
            )
        return problems

    def known_steps(self, config: RunConfig) -> int | None:
        """Return None: its windows depend on the number of images."""
        return None

    def warmup_steps(self, config: ResolvedConfig) -> int:
        """Return the steps in which the learning rate rises."""
        epochs = config.warmup_epochs
        return self._in_steps(config, self._scaled(config, self.WARMUP_EPOCHS) if epochs is None else epochs)

    def cycle_steps(self, config: ResolvedConfig) -> int | None:
        """Return the steps in a cycle of 3 epochs."""
        if config.lr_schedule != "cyclic":
            return None
        return max(1, self._in_steps(config, self._scaled(config, self.CYCLE_EPOCHS)))

    def _scaled(self, config: ResolvedConfig, epochs: float) -> float:
        """Return the length of a part of the recipe: less in proportion if training is shorter than its 90 epochs."""
        assert config.epochs is not None
        return min(epochs, config.epochs * epochs / self.EPOCHS)

    def _in_steps(self, config: ResolvedConfig, epochs: float) -> int:
        assert config.epochs is not None
        return round(epochs * config.steps / config.epochs)

    def plan(self, config: ResolvedConfig) -> registry.Plan:
        """A cyclic run shares its first 80 % with a constant one, so its cycles do not move the window."""
        return dataclasses.replace(super().plan(config), start=config.steps - max(1, config.steps // 5))

    def branch_step(self, config: ResolvedConfig) -> int | None:
        """A run that neither decays to the end nor is a branch can be the trunk of one."""
        shares = config.lr_schedule != "decay" and config.branch_from is None
        return self.plan(config).late if shares else None

    def lr_factor(self, config: ResolvedConfig) -> Callable[[int], float] | None:
        """Warm-up and decay, then what the schedule says."""
        decays = config.lr_schedule == "decay"
        end, low = (config.total_steps, 0.0) if decays else (self.plan(config).late, self.LOW)
        return lr_schedule.WarmupDecay(self.warmup_steps(config), end, low, cycle=self.cycle_steps(config))

    def sampler(self, config: ResolvedConfig, pool: Pool, batch_size: int) -> Sampler:
        """Epochs without replacement."""
        from swad.testbed.data.sampling import Epochs

        return Epochs(pool, batch_size, config.seed)


_RECIPES = (DomainBedRecipe(), OwnRecipe(), ImageNetRecipe())


def get_recipe(name: str | None) -> DomainBedRecipe:
    """Return the recipe of this name; the protocol for None, and for a name that is a problem of the settings."""
    return next((recipe for recipe in _RECIPES if recipe.name == name), _RECIPES[0])


def recipe_of(config: RunConfig) -> DomainBedRecipe:
    """Return the recipe of a run, which may be the default of its dataset."""
    return get_recipe(config.recipe or benchmarks.get(config.dataset).defaults.recipe)


def _has_own_recipe(name: str) -> bool:
    try:
        return get_algorithm(name).own_recipe is not None
    except AlgorithmError:  # a broken file of the user's own, which is not the problem here
        return False


def reads_cache(config: ResolvedConfig) -> bool:
    """Whether images come from a cache of decoded images; of a large dataset, the GPU decodes them in every step."""
    return config.input_pipeline == "gpu" and not recipe_of(config).large


def averaging_plan(config: ResolvedConfig) -> registry.Plan:
    """Return the steps and evaluations of a run, from which the windows of its averages follow."""
    return recipe_of(config).plan(config)


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
    of_recipe = get_recipe(recipe).stated(dataset, algorithm).get("hyperparameters", {})
    return dataclasses.asdict(dataclasses.replace(own, **{**of_dataset, **of_recipe}))


def batch_size(config: RunConfig) -> int:
    """Return the batch size of a run, which may be the default of its dataset."""
    size = config.hyperparameters.get("batch_size")
    if size is None:
        size = default_hyperparameters(config.dataset, config.algorithm, config.recipe)["batch_size"]
    return int(size)


def images_per_step(config: RunConfig, n_sources: int) -> int:
    """Return the number of images in a step, over all source domains."""
    return batch_size(config) * (1 if recipe_of(config).apply(config).batches == "pooled" else n_sources)
