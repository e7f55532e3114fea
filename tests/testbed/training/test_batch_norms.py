"""Batch-norm statistics of averaged weights are estimated on an epoch at most, and averaged over processes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from swad.testbed.algorithms.base import RunInfo
from swad.testbed.training.batch_norms import PASSES, estimate_statistics


class Batches:
    """A loader of one image per part, with as many passes in a step as it has parts."""

    device = torch.device("cpu")

    def __init__(self, n_parts: int) -> None:
        self.n_parts = n_parts

    def inputs(self, start, stop):
        return ((step, {"images": torch.full((1, 3, 2, 2), float(step))}) for step in range(start, stop + 1))

    def parts(self, step, inputs):
        return (SimpleNamespace(images=inputs["images"]) for _ in range(self.n_parts))


def estimate(model: nn.Module, n_images: int, n_parts: int = 1, freeze_bn: bool = False) -> tuple[bool, int, list]:
    """Return whether statistics were estimated, in how many passes, and what was averaged over processes."""
    averaged, passes = [], []
    config = SimpleNamespace(freeze_bn=freeze_bn, precision="fp32")
    dist = SimpleNamespace(device=torch.device("cpu"), average=averaged.extend)
    run_info = RunInfo((n_images // 2, n_images - n_images // 2))
    algorithm = SimpleNamespace(run_info=run_info, n_images=4)
    algorithm.estimate_statistics = lambda model, images: bool(passes.extend(images)) or True
    estimated = estimate_statistics(model, config, algorithm, Batches(n_parts), dist)
    return estimated, len(passes), averaged


@pytest.mark.parametrize(("n_images", "n_parts", "passes"), [(10, 1, 3), (10, 2, 6), (4000, 1, PASSES), (4000, 8, 200)])
def test_an_epoch_is_enough_and_a_large_one_is_cut(n_images, n_parts, passes):
    assert estimate(nn.BatchNorm2d(3), n_images, n_parts)[:2] == (True, passes)


def test_every_process_has_seen_its_own_images_only():
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))
    _, _, averaged = estimate(model, 10)
    assert [tensor.data_ptr() for tensor in averaged] == [
        model[1].running_mean.data_ptr(),
        model[1].running_var.data_ptr(),
    ]


def test_frozen_statistics_stay():
    assert estimate(nn.BatchNorm2d(3), 10, freeze_bn=True) == (False, 0, [])
