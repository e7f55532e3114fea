"""The moving parts of a run: what changes from step to step, how it steps, and how it is written down."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from swad.algorithms.base import Noise, StepContext
from swad.algorithms.registry import get_algorithm
from swad.averaging import registry
from swad.averaging.base import Average
from swad.averaging.group import AverageGroup
from swad.averaging.lr_schedules import cyclic_lr
from swad.averaging.segment_log import SegmentLog
from swad.averaging.swad import SWAD
from swad.averaging.valley import LossValley, Status
from swad.data.cache import ImageCache
from swad.data.cached_loader import CachedTrainLoader
from swad.data.loaders import Inputs, TrainLoader
from swad.data.splits import Sources
from swad.models import networks
from swad.models.fused_norm import fuse
from swad.training import export
from swad.training.config import RunConfig
from swad.training.distributed import Dist
from swad.training.resolve import averaging_plan
from swad.training.run_dir import RunError
from swad.training.step import COMPILE, GRAPH, Engine, choose_engine
from swad.util.packages import has_triton

# Leading numbers keep these streams apart from those of the batches, which begin with 1 and 2.
_NOISE, _WEIGHTS = 3, 4


def seed_of(*words: int) -> int:
    """One seed for torch from several numbers."""
    return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0]) >> 1


@dataclass
class Best:
    """The live weights at the best mean validation accuracy; the earlier of equals."""

    step: int = 0
    accuracy: float = -math.inf
    weights: dict[str, Tensor] | None = None


@dataclass
class Clock:
    """Seconds spent so far, over all restarts."""

    total: float = 0.0
    steps: float = 0.0
    evaluation: float = 0.0


class Training:
    """The algorithm with its optimizers, its batches, and the averages that follow it, after `step` updates."""

    def __init__(
        self,
        config: RunConfig,
        sources: Sources,
        dist: Dist,
        segments: Path,
        cache: ImageCache | None = None,
        log: Callable[[str], None] = print,
    ) -> None:
        assert config.training.seed is not None
        assert config.model.network is not None
        self.config, self.dist = config, dist
        kind = get_algorithm(config.training.algorithm)
        n_domains = len(sources.names)
        if n_domains < kind.min_domains:
            raise RunError(
                f"{config.training.algorithm} needs {kind.min_domains} source domains, got {', '.join(sources.names)}"
            )
        hyperparameters = kind.Hyperparameters(**config.training.hyperparameters)  # type: ignore[arg-type]
        torch.manual_seed(seed_of(_WEIGHTS, config.training.seed))
        predictor = networks.build(
            config.model.network,
            len(sources.classes),
            weights=None if config.model.weights == "random" else config.model.weights,
            channels=sources.image_spec.channels,
            freeze_bn=config.model.freeze_bn,
        )
        # Made on the CPU, so that the first weights are the same on every device.
        self.algorithm = kind(predictor, hyperparameters, n_domains)
        if not sources.image_spec.low_res and (dist.device.type == "cpu" or config.training.precision == "bf16"):
            # The layout of tensor cores. With the small batches of evaluation, on two cores of a CPU: MobileNetV2
            # 22 -> 105 images/s, ResNet-50 8 -> 19.
            self.algorithm.to(memory_format=torch.channels_last)
        self.algorithm.to(dist.device).train()
        self.algorithm.image_shape = (sources.image_spec.channels, sources.image_spec.size, sources.image_spec.size)
        self.algorithm.gather, self.algorithm.local_shard = (
            partial(dist.gather, n_domains),
            partial(dist.local_shard, n_domains),
        )
        self.predictor = self.algorithm.predictor
        options: dict[str, Any] = {
            "rank": dist.rank,
            "world_size": dist.world_size,
            "views": kind.views,
            "device": dist.device,
        }
        given = (sources.train, sources.image_spec, hyperparameters.batch_size, config.training.seed)
        if cache is None:
            self.batches = TrainLoader(*given, workers=config.machine.workers, **options)
        else:
            self.batches = CachedTrainLoader(cache, *given, log=log, **options)
        self.step_context = StepContext(self.autocast, dist.average_gradients, config.training.clip)
        self.schedulers = self._schedulers()
        specs = registry.parse_all(config.evaluation.averages)
        self.averages = registry.make(specs, self.predictor, averaging_plan(config))
        riders: dict[str, Average] = dict(self.averages)
        if config.files.keep_segments:
            if dist.world_size > 1:
                raise RunError(f"keep_segments works in one process, got {dist.world_size}: leave it off or use one")
            riders[":segments"] = SegmentLog(self.predictor, segments)
        self.feed = AverageGroup(self.predictor, riders) if riders else None
        self._statistics = [] if config.model.freeze_bn else self._running_statistics()
        self.engine = self._engine(log)
        self._noises = torch.Generator(dist.device)
        self.step = 0
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=dist.device)
        self.loss_count = 0
        self.best = Best()
        self.clock = Clock()
        self.told: dict[str, float] = {}

    # -- stepping -------------------------------------------------------------------------------------------------

    def update(self, step: int, inputs: Inputs) -> Tensor:
        """Make one step, show the weights to the averages, and return the loss, still on the device."""
        phase = self.algorithm.phase(step)
        if step > 1 and phase != self.algorithm.phase(step - 1):
            self.algorithm.on_phase_start(phase)
        loss, replayed = self.engine(step, phase, inputs, self._noise(step))
        if replayed and self.feed is not None:
            self.feed.count_replays()
        for scheduler in self.schedulers:
            scheduler.step()
        self.step = step
        self.loss_count += 1
        return loss

    def _whole_step(self, step: int, inputs: Inputs, noise: Noise) -> Tensor:
        """From inputs to averages; what a graph holds."""
        placed = {name: value.to(self.dist.device, non_blocking=True) for name, value in inputs.items()}
        loss = self.algorithm.update(self.batches.finish(step, placed), noise, self.step_context)
        self.dist.average([*self._statistics, loss])
        if self.feed is not None:
            self.feed.update_parameters(self.predictor)
        self.loss_sum += loss
        return loss

    def _engine(self, log: Callable[[str], None]) -> Engine:
        config, dist = self.config, self.dist
        obstacle = "processes that talk to each other cannot be captured" if dist.world_size > 1 else ""
        fused = (
            config.model.freeze_bn
            and config.training.precision == "bf16"
            and bool(networks.batch_norms(self.predictor))
        )
        kind, reason = choose_engine(
            config.machine.engine, dist.device, config.total_steps, fused, self.algorithm.uncapturable or obstacle
        )
        if reason:
            log(reason)
        if kind == COMPILE or (kind == GRAPH and fused and has_triton()):
            assert self.algorithm.image_shape is not None
            images = torch.zeros(2, *self.algorithm.image_shape, device=dist.device).normal_()
            with self.autocast():
                found = fuse(self.predictor, images, kernels=kind != COMPILE)
            if fused and not found:
                log("the batch norms of this network are computed as they are: none could be joined to a convolution")
        if kind == COMPILE:
            compiled = partial(torch.compile, dynamic=False)
            self.algorithm.compile_forward(compiled)
            if isinstance(self.batches, CachedTrainLoader):
                self.batches.augment = compiled(self.batches.augment)
        return Engine(kind, self._whole_step, log)

    def observe(self, loss: float) -> dict[str, Status]:
        """Show the validation loss to the averages; each says where it is."""
        statuses = self.feed.observe(loss) if self.feed is not None else {}
        statuses.pop(":segments", None)
        return statuses

    def take_train_loss(self) -> float:
        """The mean loss of the steps since this was last asked. Waits for the device."""
        mean = float(self.loss_sum) / max(1, self.loss_count)
        self.loss_sum.zero_()
        self.loss_count = 0
        return mean

    def consider(self, accuracy: float) -> None:
        """Keep the live weights if they are the best so far."""
        if self.config.evaluation.report_live and accuracy > self.best.accuracy:
            self.best = Best(self.step, accuracy, export.cpu_weights(self.predictor))

    @property
    def complete(self) -> bool:
        """Whether nothing that was asked for needs another step."""
        config = self.config
        if not config.evaluation.early_stop or config.evaluation.report_live or self.feed is None:
            return False
        return self.feed.should_stop and not any(step > self.step for step in config.files.snapshots)

    def autocast(self) -> AbstractContextManager[object]:
        """The precision of forward passes."""
        if self.config.training.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.dist.device.type, dtype=torch.bfloat16)

    def valley_of(self, name: str) -> LossValley | None:
        """The valley behind an average, where it has one."""
        average = self.averages.get(name)
        return average.valley if isinstance(average, SWAD) else None

    # -- resume ---------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on, as tensors and plain values."""
        return {
            "step": self.step,
            "algorithm": self.algorithm.state_dict(),
            "optimizers": {name: one.state_dict() for name, one in self.algorithm.optimizers.items()},
            "schedulers": [one.state_dict() for one in self.schedulers],
            "feed": None if self.feed is None else self.feed.state_dict(),
            "loss_sum": self.loss_sum,
            "loss_count": self.loss_count,
            "best": vars(self.best),
            "clock": vars(self.clock),
            "told": self.told,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state` was taken. Batches and noise need nothing: they follow from the step."""
        self.algorithm.load_state_dict(state["algorithm"])
        for name, optimizer in self.algorithm.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
            _settle(optimizer)
        for scheduler, saved in zip(self.schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(saved)
        if self.feed is not None:
            self.feed.load_state_dict(state["feed"])
        self.step, self.loss_count = state["step"], state["loss_count"]
        self.loss_sum.copy_(state["loss_sum"])
        self.best, self.clock, self.told = Best(**state["best"]), Clock(**state["clock"]), dict(state["told"])

    # -- inside ---------------------------------------------------------------------------------------------------

    def _noise(self, step: int) -> Noise:
        assert self.config.training.seed is not None
        seed = seed_of(_NOISE, self.config.training.seed, step)
        drawn = self.algorithm.draw_randomness(self._noises.manual_seed(seed), step)
        # What a network draws by itself then also follows from the step, and differs between processes.
        _seed_torch(seed_of(_NOISE, self.config.training.seed, step, 1 + self.dist.rank), self.dist.device)
        return {name: rows.to(self.dist.device, non_blocking=True) for name, rows in drawn.items()}

    def _schedulers(self) -> list[LambdaLR]:
        cycle = self.config.cycle_steps
        if cycle is None:
            return []
        start = averaging_plan(self.config).late
        return [cyclic_lr(one, cycle, start=start) for one in self.algorithm.optimizers.values()]

    def _running_statistics(self) -> list[Tensor]:
        """Batch-norm statistics that processes must agree on, each having seen its own images."""
        return [
            tensor
            for module in networks.batch_norms(self.predictor)
            for tensor in module.buffers(recurse=False)
            if tensor.is_floating_point()
        ]


def _seed_torch(seed: int, device: torch.device) -> None:
    """What `torch.manual_seed` does for these devices. For those that are not there it would keep a stack trace."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed_all(seed)


def _settle(optimizer: torch.optim.Optimizer) -> None:
    """Keep rates where the parameters are, whatever device the state was saved on: a graph reads them there."""
    for group in optimizer.param_groups:
        device = group["params"][0].device
        on_gpu, rate = device.type == "cuda", float(group["lr"])
        group["lr"] = torch.tensor(rate, device=device) if on_gpu else rate
        if "capturable" in group:
            group["capturable"] = on_gpu
