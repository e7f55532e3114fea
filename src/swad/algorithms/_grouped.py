"""Predictors that look at several images of one domain together, for ARM and MTL.

A batch is split into groups of `group_size` consecutive images; the last group may be smaller. A dataset evaluated in
batches of any multiple of `group_size` gives the same predictions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from swad.algorithms._wrapped import WrappedNetwork


class Grouped(WrappedNetwork):
    """A network that predicts groups of images."""

    def __init__(self, network: nn.Module, group_size: int) -> None:
        super().__init__(network)
        self.group_size = group_size

    def group_means(self, rows: Tensor) -> Tensor:
        """Replace every row by the mean of its group, in full precision."""
        groups = torch.split(rows.float(), self.group_size)
        return torch.cat([group.mean(0, keepdim=True).expand_as(group) for group in groups])
