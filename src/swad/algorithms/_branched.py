"""Predictors with one branch for every source domain, for DMG and DSON.

A branch is the network with some parameters of its own. The rows of all branches pass through the network together,
sorted by branch. In training these are the images of a batch, each in the branch of its domain. A prediction for an
image of an unknown domain is the mean of the scores of all branches: the image passes through each of them.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from swad.algorithms._wrapped import WrappedNetwork
from swad.algorithms.erm import ERM


class Branched(WrappedNetwork):
    """A network with branches: its layers treat consecutive rows in `n_domains` equal parts, one for each branch."""

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
