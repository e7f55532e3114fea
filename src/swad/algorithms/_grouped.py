"""Predictors that look at several images of one domain together, for ARM and MTL.

A batch is split into groups of `group_size` consecutive images; the last group may be smaller. A dataset evaluated in
batches of any multiple of `group_size` gives the same predictions.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from swad.models import networks


class Grouped(nn.Module):
    """A wrapper around a network, with timm's method names."""

    def __init__(self, network: nn.Module, group_size: int) -> None:
        super().__init__()
        self.network, self.group_size = network, group_size

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores."""
        return self.forward_head(self.forward_features(images))

    def forward_features(self, images: Tensor) -> Tensor:
        """Return the network's last feature map."""
        return cast(Tensor, cast(Any, self.network).forward_features(images))

    def forward_head(self, maps: Tensor, pre_logits: bool = False) -> Tensor:
        """Return class scores from that map, or the network's features with `pre_logits`."""
        return cast(Tensor, cast(Any, self.network).forward_head(maps, pre_logits=pre_logits))

    def get_classifier(self) -> nn.Linear:
        """Return the head."""
        return networks.head(self.network)

    def group_means(self, rows: Tensor) -> Tensor:
        """Replace every row by the mean of its group, in full precision."""
        groups = torch.split(rows.float(), self.group_size)
        return torch.cat([group.mean(0, keepdim=True).expand_as(group) for group in groups])
