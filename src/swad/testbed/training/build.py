"""What a training consists of, built from its settings: algorithm, loader, learning rate schedulers and averages."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from swad.averaging.average import Average
from swad.averaging.group import AverageGroup
from swad.testbed.algorithms.base import Algorithm, RunInfo
from swad.testbed.algorithms.registry import get_algorithm
from swad.testbed.averages import registry
from swad.testbed.averages.segment_log import SegmentLog
from swad.testbed.data.augmentation import Augmentation
from swad.testbed.data.cache import ImageCache
from swad.testbed.data.domains import ImageSpec
from swad.testbed.data.images import ArrayImages, CachedImages, EncodedImages, FileImages, ImageSource, in_memory
from swad.testbed.data.loaders import Loader
from swad.testbed.data.sampling import Balanced, Epochs, Pool, Pooled, Sampler
from swad.testbed.data.splits import Sources
from swad.testbed.data.transforms import Normalize, train_transform
from swad.testbed.models import networks
from swad.testbed.training import recipe
from swad.testbed.training.checks import source_problems
from swad.testbed.training.defaults import averaging_plan
from swad.testbed.training.distributed import Dist
from swad.testbed.training.lr_schedule import Decay, cyclic_lr, lr_factor
from swad.testbed.training.numerics import WEIGHTS, derive_seed
from swad.testbed.training.resolved_config import ResolvedConfig
from swad.testbed.training.run_dir import SEGMENTS, RunError
from swad.util.cpu import available_cores

SEGMENT_LOG = "segments"
"""Name of the segment log in the group of averages; no average can have it."""


def build_algorithm(
    config: ResolvedConfig, sources: Sources, dist: Dist, log: Callable[[str], None] = print
) -> Algorithm:
    """Build the network and the algorithm that trains it, on the device of this process."""
    algorithm_class = get_algorithm(config.algorithm)
    if problems := source_problems(config, sources.names):
        raise RunError(problems[0])
    if algorithm_class.eager_only and dist.world_size > 1:
        raise RunError(f"{config.algorithm} trains in one process, got {dist.world_size}: start it without torchrun")
    image_spec = sources.image_spec
    # Initialize on the CPU, so that the initial weights are the same on every device.
    torch.manual_seed(derive_seed(WEIGHTS, config.seed))
    network = networks.build(
        config.network,
        len(sources.classes),
        weights=config.weights,
        channels=image_spec.channels,
        freeze_bn=bool(config.freeze_bn),
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
    domain_sizes, lr_scale = tuple(len(split) for split in sources.train), 1.0
    if config.recipe == recipe.IMAGENET:  # which pools the images of all domains
        domain_sizes, lr_scale = (sum(domain_sizes),), batch_size / recipe.LR_BATCH
    image_spec, pooled = sources.image_spec, config.batches == "pooled"
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
        optimizer=config.optimizer or "adam",
        momentum=config.momentum or 0.0,
        lr_scale=lr_scale,
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
    batch_size, seed = algorithm.hyperparameters.batch_size, config.seed
    pool, is_imagenet = Pool(sources.train), config.recipe == recipe.IMAGENET
    sampler: Sampler
    if is_imagenet:
        sampler = Epochs(pool, batch_size, seed)
    else:
        sampler = (Pooled if algorithm.run_info.pooled else Balanced)(pool, batch_size, seed)
    images = _build_images(config, sources.image_spec, dist, algorithm, cache, pool, log)
    micro_batch = config.micro_batch if is_imagenet else None
    shares = {"rank": dist.rank, "world_size": dist.world_size}
    return Loader(pool, sampler, images, micro_batch=micro_batch, device=dist.device, **shares)


def _build_images(
    config: ResolvedConfig,
    image_spec: ImageSpec,
    dist: Dist,
    algorithm: Algorithm,
    cache: ImageCache | None,
    pool: Pool,
    log: Callable[[str], None],
) -> ImageSource:
    """Build the source of training images."""
    augmentation, views = Augmentation(**config.augmentation), algorithm.views
    is_imagenet, seed = config.recipe == recipe.IMAGENET, config.seed
    if cache is not None and not is_imagenet:
        return CachedImages(
            cache, pool, image_spec, seed, augmentation=augmentation, views=views, device=dist.device, log=log
        )
    # In the layout of the network of that recipe.
    memory_format = torch.channels_last if is_imagenet and dist.device.type == "cuda" else None
    normalize = Normalize(image_spec, dist.device, memory_format)
    if in_memory(pool, image_spec):
        return ArrayImages(pool, normalize, views=views, device=dist.device)
    workers = config.workers
    if is_imagenet and workers is None:
        workers = max(1, available_cores() // dist.local_world_size)
    options: dict[str, Any] = {"views": views, "workers": workers, "device": dist.device}
    if is_imagenet and config.input_pipeline == "gpu" and not image_spec.low_res:
        return EncodedImages(pool, image_spec.size, augmentation, normalize, **options)
    return FileImages(pool, train_transform(image_spec, augmentation), normalize, **options)


def build_schedulers(config: ResolvedConfig, algorithm: Algorithm) -> list[LambdaLR]:
    """Build the learning rate schedulers; none for a constant learning rate."""
    optimizers = [optimizer for name, optimizer in algorithm.optimizers.items() if name not in algorithm.constant_lr]
    start = averaging_plan(config).late
    if config.recipe == recipe.IMAGENET:
        decays = config.lr_schedule == "decay"
        end, low = (config.total_steps, 0.0) if decays else (start, recipe.LOW)
        decay = Decay(config.warmup_steps, end, low, cycle=config.cycle_steps)
        return [LambdaLR(optimizer, decay) for optimizer in optimizers]
    if config.cycle_steps is not None:
        return [cyclic_lr(optimizer, config.cycle_steps, start=start) for optimizer in optimizers]
    factor = lr_factor(config.lr_schedule, config.total_steps, config.epochs)
    return [] if factor is None else [LambdaLR(optimizer, copy.copy(factor)) for optimizer in optimizers]


def build_averages(config: ResolvedConfig, model: nn.Module) -> dict[str, Average]:
    """Build the requested averages by name."""
    specs = registry.parse_all(config.averages)
    return registry.make(specs, model, averaging_plan(config))


def build_group(
    config: ResolvedConfig, model: nn.Module, averages: dict[str, Average], dist: Dist
) -> AverageGroup | None:
    """Let all averages, and the segment log if segments are kept, share the sum of the current segment."""
    listeners = {}
    if config.keep_segments:
        if dist.world_size > 1:
            raise RunError(f"keep_segments needs a single process, got {dist.world_size}: turn it off or use one")
        listeners[SEGMENT_LOG] = SegmentLog(model, config.output / SEGMENTS)
    return AverageGroup(model, averages, listeners) if averages or listeners else None
