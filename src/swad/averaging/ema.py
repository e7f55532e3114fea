"""EMA: the exponential moving average of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from swad.averaging.base import Average
from swad.averaging.semantics import OPEN, Phase, Terms
from swad.averaging.tensors import Buffers, Patterns
from swad.averaging.valley import Span, Status


class EMA(Average):
    """Exponential moving average: m <- decay * m + (1 - decay) * theta, starting from the first update's weights.

    The paper compares with decay 0.99 (Polyak and Juditsky, 1992). Every update has another weight, so an EMA cannot
    use the shared sum of a group and keeps its own mean.

    Args:
        model: The model to follow.
        decay: The share of the mean that stays at each update.
        buffers: "copy" keeps the buffers of the last update; "average" averages floating-point buffers too.
        include: Name patterns of the tensors to average, also frozen ones. By default all trainable ones.
        exclude: Name patterns of tensors not to average.
    """

    dense = False
    fusible = True

    def __init__(
        self,
        model: nn.Module,
        decay: float = 0.99,
        buffers: Buffers = "copy",
        include: Patterns = None,
        exclude: Patterns = None,
    ) -> None:
        super().__init__(model, buffers=buffers, include=include, exclude=exclude)
        if not 0 <= decay < 1:
            raise ValueError(f"decay must be at least 0 and below 1, got {decay}; the paper uses 0.99")
        self.decay = decay

    def _status_at(self, step: int) -> Status:
        spans = (Span(1, step),) if step else ()
        return Status(Phase.AVERAGING, f"decay {self.decay}, from the first update on", None, spans)

    def _evaluated(self, loss: float, step: int) -> Status:
        return self.status

    def take_update(self, model: nn.Module | None, skipped: Tensor | None) -> None:
        """Take the weights after a step."""
        if not self._segment.allocated:
            with torch.no_grad():  # a capture cannot allocate
                self._segment.allocate(self.tracked.live(model))
        super().take_update(model, skipped)

    def _accumulate(self, live: list[Tensor], weight: Tensor | None, counted: bool = True) -> None:
        self._segment.last = self._updates
        self._segment.blend(live, 1 - self.decay, weight)
        self._segment.use_live_buffers()

    def _result(self) -> Terms:
        return {OPEN: 1.0}

    _extra_state_names = ("decay",)

    def _extra_state(self) -> dict[str, Any]:
        return {"decay": self.decay}

    def _load_extra_state(self, header: Mapping[str, Any]) -> None:
        if header["decay"] != self.decay:
            raise ValueError(f"an EMA resumes with its decay: {header['decay']} there, {self.decay} here")
