"""Batch norms of averaged weights: their statistics are estimated again on training images, as their weights are new.

With frozen statistics, the default for pretrained weights, there is nothing to estimate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import Tensor, nn

from swad.gpu.cuda_graph import to_device
from swad.tensors.batch_norms import running_statistics
from swad.testbed.algorithms.base import Algorithm
from swad.testbed.data.loaders import Loader
from swad.testbed.training.distributed import Dist
from swad.testbed.training.numerics import autocast
from swad.testbed.training.resolved_config import ResolvedConfig

PASSES = 200
"""Most forward passes of an estimate; a few ten thousand images are as good as all (Wu and Johnson, 2021)."""


def estimate_statistics(
    model: nn.Module, config: ResolvedConfig, algorithm: Algorithm, loader: Loader, dist: Dist
) -> bool:
    """Estimate the statistics of the model's batch norms on an epoch of training images, or on its first part.

    Returns False if there is nothing to estimate.
    """
    if config.freeze_bn:
        return False
    epoch = math.ceil(sum(algorithm.run_info.domain_sizes) / algorithm.n_images)
    with autocast(config, dist.device):
        estimated = algorithm.estimate_statistics(model, _training_images(loader, epoch))
    if estimated:
        dist.average(running_statistics(model))
    return estimated


def _training_images(loader: Loader, epoch: int) -> Iterator[Tensor]:
    for step, inputs in loader.inputs(1, min(epoch, math.ceil(PASSES / loader.n_parts))):
        for batch in loader.parts(step, to_device(inputs, loader.device)):
            # Views follow one another in the first dimension.
            yield batch.images.flatten(0, 1) if batch.images.ndim == 5 else batch.images
