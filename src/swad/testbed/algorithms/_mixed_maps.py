"""Cross entropy with feature maps that hooks in the network mix between images, for MixStyle and pAdaIN."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from swad.testbed.algorithms import hyperparameters as hp
from swad.testbed.algorithms.base import Batch, Noise, RunInfo
from swad.testbed.algorithms.erm import ERM


class MixingState:
    """What the hooks need. It is copied together with the network."""

    step: tuple[Noise, Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]] | None = None
    """Noise, `gather` and `local_shard` of the current step; None between steps, where maps stay unchanged."""


class MixedMaps(ERM):
    """Cross entropy; the subclass registers hooks that read `_mixing`, so that only training is mixed."""

    def __init__(self, predictor: nn.Module, hyperparameters: hp.Hyperparameters, run_info: RunInfo) -> None:
        super().__init__(predictor, hyperparameters, run_info)
        self._mixing = MixingState()

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """Mean cross entropy, with maps mixed by the hooks."""
        if self.training:
            self._mixing.step = noise, self.gather, self.local_shard
        try:
            return super().loss(batch, noise)
        finally:
            self._mixing.step = None
