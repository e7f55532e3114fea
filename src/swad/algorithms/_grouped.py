"""Predictors that look at images of one domain together: what ARM and MTL share.

A batch is taken as groups of `group` consecutive images, the last perhaps smaller. Evaluated in batches of any
multiple of that, a dataset gives the same numbers.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from swad.models import networks


class Grouped(nn.Module):
    """Around a network, answering to timm's names."""

    def __init__(self, network: nn.Module, group: int) -> None:
        super().__init__()
        self.network, self.group = network, group

    def forward(self, images: Tensor) -> Tensor:
        """Class scores."""
        return self.forward_head(self.forward_features(images))

    def forward_features(self, images: Tensor) -> Tensor:
        """The network's last map of features."""
        return cast(Tensor, cast(Any, self.network).forward_features(images))

    def forward_head(self, maps: Tensor, pre_logits: bool = False) -> Tensor:
        """Class scores from that map, or with `pre_logits` the network's features."""
        return cast(Tensor, cast(Any, self.network).forward_head(maps, pre_logits=pre_logits))

    def get_classifier(self) -> nn.Linear:
        """The head."""
        return networks.head(self.network)

    def means(self, rows: Tensor) -> Tensor:
        """Every row replaced by the mean of its group, in full precision."""
        groups = torch.split(rows.float(), self.group)
        return torch.cat([group.mean(0, keepdim=True).expand_as(group) for group in groups])
