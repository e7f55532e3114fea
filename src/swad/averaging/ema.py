"""EMA: the exponential moving average of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from swad.averaging.base import Average
from swad.averaging.semantics import OPEN, Phase
from swad.averaging.tensors import Buffers, Patterns
from swad.averaging.valley import Span, Status


class EMA(Average):
    """Exponential moving average: m <- decay * m + (1 - decay) * theta, starting from the first update's weights.

    The paper compares with decay 0.99 (Polyak and Juditsky, 1992). Each update has a different weight, so an EMA cannot
    use the shared sum of a group and keeps its own mean.

    A decay near 1 remembers the first weights for long. With `warmup`, the update that follows t others has the decay
    min(decay, (1 + t) / (10 + t)), as in TensorFlow's ExponentialMovingAverage with `num_updates`: the mean forgets
    the first weights, and reaches decay 0.99 at t = 890 and 0.9999 at t = 89,990. (timm's ModelEmaV3 has another form,
    1 - (1 + t)^(-2/3).)

    Args:
        model: The model to follow.
        decay: The share of the mean that stays at each update.
        buffers: "copy" keeps the buffers of the last update; "average" averages floating-point buffers too.
        include: Name patterns of the tensors to average, also frozen ones. By default all trainable ones.
        exclude: Name patterns of tensors not to average.
        warmup: Begin with a smaller decay.
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
        warmup: bool = False,
    ) -> None:
        super().__init__(model, buffers=buffers, include=include, exclude=exclude)
        if not 0 <= decay < 1:
            raise ValueError(f"decay must be at least 0 and below 1, got {decay}; the paper uses 0.99")
        self.decay, self.warmup = decay, warmup
        self.fusible = not warmup  # the kernel takes rates that do not change
        self._taken: Tensor | None = None  # updates so far, on the device, so that a CUDA graph can count them

    def _status_at(self, step: int) -> Status:
        spans = (Span(1, step),) if step else ()
        warmup = ", with warm-up" if self.warmup else ""
        return Status(Phase.AVERAGING, f"decay {self.decay}, from the first update on{warmup}", None, spans)

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
        self._segment.blend(live, self._rate(live[0].device, weight), weight)
        self._segment.use_live_buffers()

    def _rate(self, device: torch.device, weight: Tensor | None) -> float | Tensor:
        """Return the share of the live weights in the new mean, and count the update."""
        if not self.warmup:
            return 1 - self.decay
        if self._taken is None:
            self._taken = torch.full((), self._updates - 1.0)
        self._taken = self._taken.to(device)
        rate = (9 / (10 + self._taken)).clamp(min=1 - self.decay)
        self._taken += 1 if weight is None else weight
        return rate

    def _require_capturable(self, skipped: Tensor | None) -> None:
        super()._require_capturable(skipped)
        if self.warmup and self._taken is None:  # after a resume
            raise RuntimeError("a CUDA graph needs allocated buffers: make one update before capturing")

    def _result(self) -> list[str]:
        return [OPEN]

    def _extra_state(self) -> dict[str, Any]:
        return {"decay": self.decay, "warmup": self.warmup}

    def _check_extra_state(self, header: Mapping[str, Any]) -> None:
        if header["decay"] != self.decay:
            raise ValueError(f"an EMA must resume with its decay: {header['decay']} in the state, {self.decay} here")
        if (there := header.get("warmup", False)) != self.warmup:  # states of earlier versions have none
            raise ValueError(f"an EMA must resume with its warm-up: {there} in the state, {self.warmup} here")

    def _load_extra_state(self, header: Mapping[str, Any]) -> None:
        if self._taken is not None:
            self._taken.fill_(header["updates"])
