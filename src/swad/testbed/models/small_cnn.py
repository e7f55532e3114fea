"""A small convolutional network for low-resolution images (digits, MNIST): milliseconds per step on a CPU."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn


class SmallNet(nn.Module):
    """Two convolutions, a hidden layer and one linear head, for images of 28 to 33 pixels, with timm's method names.

    It has no norms: a prediction depends on the image alone, so there are no statistics to freeze, average or
    recompute. The hidden layer sees every position of the feature map. It soon overfits a few hundred images, so the
    validation loss first falls and then rises, as it does for large networks.

    Args:
        n_classes: Number of outputs.
        channels: Channels of the images.
        width: Channels of the first convolution; the second has twice as many.
        hidden: Units of the hidden layer, the features that the head receives.
    """

    def __init__(self, n_classes: int, channels: int = 3, width: int = 12, hidden: int = 128) -> None:
        super().__init__()
        self.num_features = hidden
        self.stem = nn.Sequential(nn.Conv2d(channels, width, 5, 2, 2), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU())
        self.hidden = nn.Sequential(nn.Linear(2 * width * 7 * 7, hidden), nn.ReLU())
        self.head = nn.Linear(hidden, n_classes)

    def forward_features(self, images: Tensor) -> Tensor:
        """Return a feature map with 7 × 7 positions."""
        maps: Tensor = self.body(self.stem(images))
        # The pooling takes 14 to 17 rows and columns to 7, with stride 2 and windows of 2 × 2 to 5 × 5. On a CPU it is
        # five times as fast with channels last, which saves a fifth of a step and gives the same bits. The layout is
        # changed by permuting, because vmap does not support memory formats.
        maps = maps.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
        return nn.functional.max_pool2d(maps, maps.shape[-1] - 12, 2).contiguous()

    def forward_head(self, maps: Tensor, pre_logits: bool = False) -> Tensor:
        """Return class scores from a feature map, or the features before the linear layer with `pre_logits`."""
        flat: Tensor = self.hidden(maps.flatten(1))
        return flat if pre_logits else cast(Tensor, self.head(flat))

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores."""
        return self.forward_head(self.forward_features(images))

    def get_classifier(self) -> nn.Linear:
        """Return the head."""
        return self.head
