"""The state of a training: everything that changes from step to step, how a step is made, and how it is saved.

Batches and random numbers are functions of the seed and the step alone, so a checkpoint holds neither a position in the
data nor the state of a random number generator.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from swad.averaging.average import Average
from swad.averaging.group import AverageGroup
from swad.averaging.spans import Status
from swad.averaging.valley import LossValley
from swad.gpu.cuda_graph import Inputs, to_device
from swad.gpu.fused_norm import fuse
from swad.gpu.fused_vit import find_vit, fuse_kernels
from swad.tensors.batch_norms import batch_norms, running_statistics
from swad.testbed.algorithms.base import Algorithm, Noise, RunInfo
from swad.testbed.algorithms.registry import get_algorithm
from swad.testbed.averages import registry
from swad.testbed.averages.segment_log import SegmentLog
from swad.testbed.data.cache import ImageCache
from swad.testbed.data.images import CachedImages
from swad.testbed.data.loaders import Loader
from swad.testbed.data.sampling import Pool
from swad.testbed.data.splits import Sources
from swad.testbed.models import networks
from swad.testbed.results.records import Record
from swad.testbed.training.checks import process_problems, source_problems
from swad.testbed.training.config import ResolvedConfig
from swad.testbed.training.distributed import Dist
from swad.testbed.training.export import cpu_weights
from swad.testbed.training.numerics import NOISE, WEIGHTS, autocast, derive_seed, seed_torch
from swad.testbed.training.recipes import averaging_plan, recipe_of
from swad.testbed.training.run_dir import SEGMENTS, RunError
from swad.testbed.training.step import COMPILE, GRAPH, Engine, choose_engine
from swad.util.packages import has_triton

SEGMENT_LOG = "segments"
"""Name of the segment log in the group of averages; no average can have it."""


@dataclass
class BestWeights:
    """The live weights with the highest validation score; the earliest among equals."""

    step: int = 0
    score: float = -math.inf
    weights: dict[str, Tensor] | None = None


@dataclass
class Clock:
    """Seconds spent so far, over all restarts."""

    total: float = 0.0
    steps: float = 0.0
    evaluation: float = 0.0


class TrainingState:
    """The algorithm, its optimizers, its data and the averages that follow it, after `step` steps.

    An algorithm with a preparation makes its updates before step 1: `step` is then 0 or below, down to
    `-n_preparation`. The algorithm, the loader and the random numbers count all updates from 1.

    Without a `cache`, images are read from their files.
    """

    def __init__(
        self,
        config: ResolvedConfig,
        sources: Sources,
        dist: Dist,
        cache: ImageCache | None = None,
        log: Callable[[str], None] = print,
    ) -> None:
        self.config, self.sources, self.dist, self.cache = config, sources, dist, cache
        self.algorithm = build_algorithm(config, sources, dist, log)
        self.predictor, self.n_preparation = self.algorithm.predictor, self.algorithm.run_info.n_preparation
        self.loader = build_loader(config, sources, dist, self.algorithm, cache, log)
        self.step_context = dist.step_context(self.algorithm, self.autocast, config.clip, self.loader.n_parts)
        self.schedulers = build_schedulers(config, self.algorithm)
        self.averages = build_averages(config, self.predictor)
        self.group = build_group(config, self.predictor, self.averages)
        # Each process has seen its own images only.
        self._running_stats = [] if config.freeze_bn else running_statistics(self.predictor)
        self.engine = self._build_engine(log)

        self.step = -self.n_preparation
        # On the device, so that no step waits for it; in double precision, as an epoch may be a sum of 10,000 losses.
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=dist.device)
        self.loss_count = 0
        self.best = BestWeights()
        self.clock = Clock()
        self.recorded: dict[str, float] = {}
        """The values of each valley that were recorded last."""
        self._generator = torch.Generator(dist.device)

    # -- one step -------------------------------------------------------------------------------------------------

    def inputs(self) -> Iterator[tuple[int, Inputs]]:
        """Iterate over the numbers and the inputs of the updates that are left."""
        n = self.n_preparation
        return self.loader.inputs(n + self.step + 1, n + self.config.total_steps)

    def train_step(self, number: int, inputs: Inputs) -> Tensor:
        """Make update `number`, update the averages, and return the loss, still on the device."""
        phase = self.algorithm.phase(number)
        # The update before, also of a run that was resumed here: its checkpoint was saved before the phase started.
        if number > 1 and phase != self.algorithm.phase(number - 1):
            self.algorithm.on_phase_start(phase)
        loss, replayed = self.engine(number, phase, inputs, self.draw_randomness(number))
        self.step = number - self.n_preparation
        if self.step > 0:
            if replayed and self.group is not None:
                self.group.count_replays()
            for scheduler in self.schedulers:
                scheduler.step()
            self.loss_count += 1
        return loss

    def _step_function(self, number: int, inputs: Inputs, noise: Noise) -> Tensor:
        """Everything that a CUDA graph captures: from the inputs to the averages."""
        parts = self.loader.parts(number, to_device(inputs, self.dist.device))
        if self.loader.n_parts == 1:
            loss = self.algorithm.update(next(parts), noise, self.step_context)
        else:
            loss = self.algorithm.accumulate(parts, self.loader.n_parts, self.step_context)
        self.dist.average([*self._running_stats, loss])
        if number > self.n_preparation:
            if self.group is not None:
                self.group.update_parameters(self.predictor)
            self.loss_sum += loss
        return loss

    def draw_randomness(self, number: int) -> Noise:
        """Draw the random numbers of an update and seed torch for those that the network draws itself."""
        seed = self.config.seed
        generator = self._generator.manual_seed(derive_seed(NOISE, seed, number))
        noise = self.algorithm.draw_randomness(generator, number)
        # Dropout inside a network then also depends on the number alone, and differs between processes.
        seed_torch(derive_seed(NOISE, seed, number, 1 + self.dist.rank), self.dist.device)
        return {name: rows.to(self.dist.device, non_blocking=True) for name, rows in noise.items()}

    def autocast(self) -> AbstractContextManager[object]:
        """The precision of forward passes."""
        return autocast(self.config, self.dist.device)

    def _build_engine(self, log: Callable[[str], None]) -> Engine:
        """Choose how steps are executed and prepare the network for it."""
        config, dist, algorithm = self.config, self.dist, self.algorithm
        # A collective that another process never reaches would hang in a graph, without an error to report.
        several = "several processes average their gradients during backward, which is not captured"
        own_steps = f"{config.algorithm} makes its steps itself, with optimizers of its own"
        obstacle = several if dist.world_size > 1 else own_steps if algorithm.eager_only else ""
        frozen_norms = bool(config.freeze_bn) and bool(batch_norms(self.predictor))
        fusible = config.precision == "bf16" and (frozen_norms or find_vit(self.predictor) is not None)
        kind, reason = choose_engine(config.engine, dist.device, config.total_steps, fusible, obstacle)
        if reason:
            log(reason)
        if kind == GRAPH and has_triton() and isinstance(self.loader.images, CachedImages):
            self._compile_augmentation()
        if kind == COMPILE or (kind == GRAPH and fusible and has_triton()):
            images = torch.zeros(2, *algorithm.run_info.image_shape, device=dist.device).normal_()
            with self.autocast():
                plain = kind == COMPILE
                fused = fuse(self.predictor, images, kernels=False) if plain else fuse_kernels(self.predictor, images)
            if fusible and not fused:
                log("no kernels of this network could be fused")
        if kind == COMPILE:
            compiled = partial(torch.compile, dynamic=False)
            algorithm.compile_forward(compiled)
            self.loader.images.prepare = compiled(self.loader.images.prepare)
        return Engine(kind, self._step_function, log)

    def _compile_augmentation(self) -> None:
        """Compile the kernels of the augmentation side by side instead of one after the other in the first step."""
        from swad.util.kernels import compile_together

        step, inputs = next(self.loader.inputs(1, 1))
        compile_together(lambda: next(self.loader.parts(step, to_device(inputs, self.dist.device))))

    # -- evaluations ----------------------------------------------------------------------------------------------

    def pop_train_loss(self) -> float:
        """Return the mean loss since the last call. Waits for the device."""
        mean = float(self.loss_sum) / max(1, self.loss_count)
        self.loss_sum.zero_()
        self.loss_count = 0
        return mean

    def observe(self, val_loss: float) -> dict[str, Status]:
        """Pass the validation loss to the averages and return the status of each."""
        return self.group.observe(val_loss) if self.group is not None else {}

    def update_best(self, score: float) -> None:
        """Keep a copy of the live weights if their validation score is the highest so far."""
        if self.config.report_live and score > self.best.score:
            self.best = BestWeights(self.step, score, cpu_weights(self.predictor))

    @property
    def should_stop(self) -> bool:
        """Whether every requested average and snapshot is complete, so that another step would change nothing."""
        config = self.config
        if not config.early_stop or config.report_live or self.group is None:
            return False
        return self.group.should_stop and not any(step > self.step for step in config.snapshots)

    def valley(self, name: str) -> LossValley | None:
        """The loss valley of an average; None if it does not use one."""
        rule = self.averages[name].rule if name in self.averages else None
        return rule if isinstance(rule, LossValley) else None

    def record(self, metric: str, value: float, average: str | None = None) -> Record:
        """Return a record of this step that belongs to no domain."""
        return Record(self.config.name, self.step, None, None, metric, value, average)

    # -- checkpoints ----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on, as tensors and plain values."""
        optimizers = self.algorithm.optimizers
        return {
            "step": self.step,
            "algorithm": self.algorithm.state_dict(),
            "optimizers": {name: optimizer.state_dict() for name, optimizer in optimizers.items()},
            "schedulers": [scheduler.state_dict() for scheduler in self.schedulers],
            "averages": None if self.group is None else self.group.state_dict(),
            "loss_sum": self.loss_sum,
            "loss_count": self.loss_count,
            "best": vars(self.best),
            "clock": vars(self.clock),
            "recorded": self.recorded,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly from where `state_dict` was taken; a branch continues with its own rates and averages."""
        is_branch = "is_branch" in state
        if not -self.n_preparation <= state["step"] <= self.config.total_steps:
            raise ValueError(f"its step is {state['step']}, of {self.config.total_steps}")
        self.algorithm.load_state_dict(state["algorithm"])
        for name, optimizer in self.algorithm.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
            _move_lr_to_device(optimizer)
        for scheduler, saved in zip(self.schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(saved if not is_branch else {**saved, "lr_lambdas": [None]})
            if is_branch:
                _apply_schedule(scheduler)
        if self.group is not None and is_branch:
            self.group.load_branch(state["averages"])
        elif self.group is not None:
            self.group.load_state_dict(state["averages"])
        self.step, self.loss_count = state["step"], state["loss_count"]
        self.loss_sum.copy_(state["loss_sum"])
        self.best, self.clock = BestWeights(**state["best"]), Clock(**state["clock"])
        self.recorded = dict(state["recorded"])


def _apply_schedule(scheduler: LambdaLR) -> None:
    """Set the learning rate of the next step by the scheduler's own function."""
    groups, rates = scheduler.optimizer.param_groups, zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
    for group, (base, factor) in zip(groups, rates, strict=True):
        lr = float(base) * factor(scheduler.last_epoch)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


def _move_lr_to_device(optimizer: torch.optim.Optimizer) -> None:
    """Keep learning rates where `Algorithm.optimizer` puts them, for a CUDA graph to read, wherever they were saved."""
    for group in optimizer.param_groups:
        param, lr = group["params"][0], float(group["lr"])
        group["lr"] = torch.tensor(lr, device=param.device) if param.is_cuda else lr
        if "capturable" in group:
            group["capturable"] = param.is_cuda


# -- what a training consists of, built from its settings ---------------------------------------------------------


def build_algorithm(
    config: ResolvedConfig, sources: Sources, dist: Dist, log: Callable[[str], None] = print
) -> Algorithm:
    """Build the network and the algorithm that trains it, on the device of this process."""
    algorithm_class = get_algorithm(config.algorithm)
    if problems := [*source_problems(config, sources.names), *process_problems(config, dist.world_size)]:
        raise RunError(problems[0])
    image_spec = sources.image_spec
    # Initialize on the CPU, so that the initial weights are the same on every device.
    torch.manual_seed(derive_seed(WEIGHTS, config.seed))
    network = networks.build(
        config.network,
        len(sources.classes),
        weights=config.weights,
        channels=image_spec.channels,
        freeze_bn=config.freeze_bn,
        image_size=image_spec.size,
        log=log,
    )
    hyperparameters = algorithm_class.Hyperparameters(**config.hyperparameters)  # type: ignore[arg-type]
    n_preparation = algorithm_class.preparation_steps(hyperparameters, config.steps)
    run_info = _run_info(config, sources, dist, hyperparameters.batch_size, n_preparation)
    algorithm = algorithm_class(network, hyperparameters, run_info)
    if not image_spec.low_res and (dist.device.type == "cpu" or config.precision == "bf16"):
        # Tensor cores want this layout. It also helps a CPU: on two cores, with the small batches of an evaluation,
        # MobileNetV2 went from 22 to 105 images/s and ResNet-50 from 8 to 19.
        algorithm.to(memory_format=torch.channels_last)
    return algorithm.to(dist.device).train()


def _run_info(config: ResolvedConfig, sources: Sources, dist: Dist, batch_size: int, n_preparation: int) -> RunInfo:
    image_spec, pooled, recipe = sources.image_spec, config.batches == "pooled", recipe_of(config)
    domain_sizes = tuple(len(split) for split in sources.train)
    if recipe.large:
        domain_sizes = (sum(domain_sizes),)
    n_groups = 1 if pooled else len(domain_sizes)
    return RunInfo(
        domain_sizes,
        seed=config.seed,
        total_steps=config.total_steps,
        n_preparation=n_preparation,
        image_shape=(image_spec.channels, image_spec.size, image_spec.size),
        image_mean=image_spec.mean,
        image_std=image_spec.std,
        pooled=pooled,
        optimizer=config.optimizer,
        momentum=config.momentum or 0.0,
        lr_scale=batch_size / recipe.lr_batch if recipe.lr_batch else 1.0,
        gather=partial(dist.gather, n_groups),
        local_shard=partial(dist.local_shard, n_groups),
    )


def build_loader(
    config: ResolvedConfig,
    sources: Sources,
    dist: Dist,
    algorithm: Algorithm,
    cache: ImageCache | None,
    log: Callable[[str], None],
) -> Loader:
    """Build the loader of training batches: from cached images if there is a cache, else from files."""
    pool, recipe = Pool(sources.train), recipe_of(config)
    sampler = recipe.sampler(config, pool, algorithm.hyperparameters.batch_size)
    images = recipe.images(config, pool, sources.image_spec, algorithm, dist, cache, log)
    shares = {"rank": dist.rank, "world_size": dist.world_size}
    return Loader(pool, sampler, images, micro_batch=config.micro_batch, device=dist.device, **shares)


def build_schedulers(config: ResolvedConfig, algorithm: Algorithm) -> list[LambdaLR]:
    """Build the learning rate schedulers; none for a constant learning rate."""
    factor = recipe_of(config).lr_factor(config)
    optimizers = [optimizer for name, optimizer in algorithm.optimizers.items() if name not in algorithm.constant_lr]
    return [] if factor is None else [LambdaLR(optimizer, copy.copy(factor)) for optimizer in optimizers]


def build_averages(config: ResolvedConfig, model: nn.Module) -> dict[str, Average]:
    """Build the requested averages by name."""
    specs = registry.parse_all(config.averages)
    return registry.make(specs, model, averaging_plan(config))


def build_group(config: ResolvedConfig, model: nn.Module, averages: dict[str, Average]) -> AverageGroup | None:
    """Let all averages, and the segment log if segments are kept, share the sum of the current segment."""
    listeners = {}
    if config.keep_segments:
        listeners[SEGMENT_LOG] = SegmentLog(model, config.output / SEGMENTS)
    return AverageGroup(model, averages, listeners) if averages or listeners else None
