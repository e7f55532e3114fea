"""Cross entropy with feature maps that hooks in the network mix between images, for MixStyle and pAdaIN."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from swad.algorithms import hyperparameters as hp
from swad.algorithms.base import Batch, Noise
from swad.algorithms.erm import ERM


class MixingState:
    """What the hooks need during a step, and nothing between steps. It is copied together with the network."""

    def __init__(self) -> None:
        self.stop()

    def start(self, noise: Noise, gather: Callable[[Tensor], Tensor], local_shard: Callable[[Tensor], Tensor]) -> None:
        """Mix maps from here on."""
        self.noise: Noise | None = noise
        self.gather: Callable[[Tensor], Tensor] | None = gather
        self.local_shard: Callable[[Tensor], Tensor] | None = local_shard

    def stop(self) -> None:
        """Leave maps unchanged from here on."""
        self.noise = self.gather = self.local_shard = None


class MixedMaps(ERM):
    """Cross entropy; the subclass registers hooks that read `_mixing`, so that only training is mixed."""

    def __init__(self, predictor: nn.Module, hyperparameters: hp.Hyperparameters, n_domains: int) -> None:
        super().__init__(predictor, hyperparameters, n_domains)
        self._mixing = MixingState()

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """Mean cross entropy, with maps mixed by the hooks."""
        if self.training:
            self._mixing.start(noise, self.gather, self.local_shard)
        try:
            return super().loss(batch, noise)
        finally:
            self._mixing.stop()
