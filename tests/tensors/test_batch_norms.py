from __future__ import annotations

import torch
from torch import nn

from swad.tensors.batch_norms import batch_norms, is_bn_statistic, running_statistics


def test_running_statistics_are_means_and_variances_and_no_counts():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Sequential(nn.SyncBatchNorm(4)))
    assert batch_norms(model) == [model[1], model[2][0]]
    wanted = [getattr(norm, name) for norm in batch_norms(model) for name in ("running_mean", "running_var")]
    assert [id(tensor) for tensor in running_statistics(model)] == [id(tensor) for tensor in wanted]
    assert [name for name in model.state_dict() if is_bn_statistic(name)] == [
        f"{norm}.{name}" for norm in ("1", "2.0") for name in ("running_mean", "running_var", "num_batches_tracked")
    ]


def test_a_norm_without_running_statistics_has_none():
    model = nn.Sequential(nn.BatchNorm2d(4, track_running_stats=False), nn.GroupNorm(2, 4))
    assert batch_norms(model) == running_statistics(model) == []


def test_norms_that_are_no_batch_norms_of_torch_have_statistics_too():
    own = nn.Module()  # such as the norms of DSON, with a row for every domain
    own.register_buffer("running_mean", torch.zeros(3, 4))
    own.register_buffer("not_running_mean", torch.zeros(4))
    model = nn.Sequential(nn.BatchNorm2d(4, affine=False), own)
    assert batch_norms(model) == [model[0]]
    assert running_statistics(model)[2:] == [own.running_mean]
