"""TODO."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

# --- the small network ------------------------------------------------------------------------------------------


class SmallNet(nn.Module):
    """Two convolutions, a hidden layer and one linear head, for images of 28 to 33 pixels; milliseconds on a CPU.

    No norms: nothing in it depends on which images stand in a batch together, so there are no statistics to freeze,
    to average or to recompute. The hidden layer sees every place of the map, so a few hundred images are soon known
    by heart, and the validation loss turns as it does for large networks. Its parts answer to timm's names.
    """

    def __init__(self, n_classes: int, channels: int = 3, width: int = 12, hidden: int = 128) -> None:
        super().__init__()
        self.num_features = hidden
        self.stem = nn.Sequential(nn.Conv2d(channels, width, 5, 2, 2), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU())
        self.hidden = nn.Sequential(nn.Linear(2 * width * 7 * 7, hidden), nn.ReLU())
        self.head = nn.Linear(hidden, n_classes)

    def forward_features(self, images: Tensor) -> Tensor:
        """A map of features with 7 × 7 places."""
        maps: Tensor = self.body(self.stem(images))
        # From 14 to 17 rows and columns to 7: neighbors 2 apart, each the largest of 2 × 2 to 5 × 5 places. On a CPU
        # pooling is five times as fast with channels last, which takes a fifth off the step, and gives the same bits.
        # Permuted, as vmap knows no memory format.
        maps = maps.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
        return nn.functional.max_pool2d(maps, maps.shape[-1] - 12, 2).contiguous()

    def forward_head(self, maps: Tensor, pre_logits: bool = False) -> Tensor:
        """Class scores from a map of features, or with `pre_logits` what the linear layer would see."""
        flat: Tensor = self.hidden(maps.flatten(1))
        return flat if pre_logits else cast(Tensor, self.head(flat))

    def forward(self, images: Tensor) -> Tensor:
        """Class scores."""
        return self.forward_head(self.forward_features(images))

    def get_classifier(self) -> nn.Linear:
        """The head, by timm's name for asking."""
        return self.head
