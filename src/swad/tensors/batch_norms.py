"""The batch norms of a model and their running statistics."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """Return the batch norms of a model that have running statistics.

    >>> len(batch_norms(nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2, track_running_stats=False))))
    1
    """
    return [norm for norm in model.modules() if isinstance(norm, _BatchNorm) and norm.track_running_stats]


def running_statistics(model: nn.Module) -> list[Tensor]:
    """Return the running means and variances of a model, also those of norms that are no batch norms of torch."""
    return [tensor for name, tensor in model.named_buffers() if _last_part(name) in ("running_mean", "running_var")]


def is_bn_statistic(name: str) -> bool:
    """Whether a batch norm's buffer has this name; a state dict does not tell buffers from parameters.

    >>> is_bn_statistic("layer1.bn1.running_var"), is_bn_statistic("layer1.bn1.weight")
    (True, False)
    """
    return _last_part(name) in ("running_mean", "running_var", "num_batches_tracked")


def _last_part(name: str) -> str:
    return name.rpartition(".")[2]
