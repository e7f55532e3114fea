"""Predictors that are more than a network: they contain it, and have timm's method names."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from swad.testbed.algorithms.erm import ERM
from swad.testbed.models import networks


class WrappedNetwork(nn.Module):
    """A predictor that contains a network and predicts what the network predicts, unless a subclass changes it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

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


class Grouped(WrappedNetwork):
    """A network that looks at several images of one domain together, for ARM and MTL.

    A batch is split into groups of `group_size` consecutive images; the last group may be smaller. A dataset evaluated
    in batches of any multiple of `group_size` gives the same predictions.
    """

    def __init__(self, network: nn.Module, group_size: int) -> None:
        super().__init__(network)
        self.group_size = group_size

    def group_means(self, rows: Tensor) -> Tensor:
        """Replace every row by the mean of its group, in full precision."""
        groups = torch.split(rows.float(), self.group_size)
        return torch.cat([group.mean(0, keepdim=True).expand_as(group) for group in groups])


class Branched(WrappedNetwork):
    """A network with one branch for every source domain, for DMG and DSON.

    A branch is the network with some parameters of its own. The rows of all branches pass through the network together,
    sorted by branch: its layers treat them in `n_domains` equal parts. In training they are the images of a batch, each
    in the branch of its domain. A prediction for an image of an unknown domain is the mean of the scores of all
    branches: the image passes through each of them.
    """

    def __init__(self, network: nn.Module, n_domains: int) -> None:
        super().__init__(network)
        self.n_domains = n_domains
        self.get_classifier()  # an error if the head is not linear: the scores of mean features would be no means

    def forward_features(self, images: Tensor) -> Tensor:
        """Return the last feature map of every image in every branch, sorted by branch."""
        return super().forward_features(torch.cat([images] * self.n_domains))

    def branch_features(self, maps: Tensor) -> Tensor:
        """Return the features of every row of these maps."""
        return super().forward_head(maps, pre_logits=True)

    def forward_head(self, maps: Tensor, pre_logits: bool = False) -> Tensor:
        """Return the mean of the branches' scores or features; the head is linear, so one gives the other."""
        rows = self.branch_features(maps).float()
        features = rows.view(self.n_domains, -1, *rows.shape[1:]).mean(0)
        return features if pre_logits else cast(Tensor, self.get_classifier()(features))


class BranchedERM(ERM):
    """Cross entropy of images in the branches of their domains."""

    predictor: Branched

    def features(self, images: Tensor) -> Tensor:
        """Return the features of local images, each in the branch of its domain."""
        return self._features(self.predictor.network, images)

    def predict(self, images: Tensor) -> Tensor:
        """Return the class scores of local images, each in the branch of its domain."""
        return self.head(self.features(images))
