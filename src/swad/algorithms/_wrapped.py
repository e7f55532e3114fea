"""The base class of predictors that are more than a network: they contain it, and have timm's method names."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn

from swad.models import networks


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
