"""EMA: the exponential moving average of the weights."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from swad.averaging.base import Average
from swad.averaging.pieces import Pieces
from swad.averaging.rule import Rule
from swad.averaging.spans import FOREVER, Phase, Span, Status
from swad.averaging.sums import WeightSum
from swad.averaging.tracked import Buffers
from swad.tensors.names import Patterns


class Decay(Rule):
    """All updates, each with less weight than the next: m <- decay * m + (1 - decay) * theta.

    Args:
        decay: The share of the mean that stays at each update.
        warmup: Begin with a smaller decay.
    """

    dense = False
    settings = ("decay", "warmup")

    def __init__(self, decay: float, warmup: bool) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay must be at least 0 and below 1, got {decay}; the paper uses 0.99")
        self.decay, self.warmup = decay, warmup

    def spans(self, step: int) -> tuple[Span, ...]:
        """Return all updates."""
        return (Span(1, step),) if step else ()

    def stretches(self) -> tuple[Span, ...]:
        """Return all updates; evaluations do not matter."""
        return (Span(1, FOREVER),)

    def share(self, step: int) -> float:
        """Return how far update `step` moves the mean; the first one all the way."""
        if step <= 1:
            return 1.0
        return max(1 - self.decay, 9 / (9 + step)) if self.warmup else 1 - self.decay

    def status_at(self, step: int) -> Status:
        """Return that the average has all updates."""
        warmup = ", with warm-up" if self.warmup else ""
        return Status(Phase.AVERAGING, f"decay {self.decay}, from the first update on{warmup}", None, self.spans(step))


class MovingMean(Pieces):
    """The mean of an EMA, in its own segment, which never ends."""

    @property
    def capturable(self) -> bool:
        """Whether updates do not depend on their number: without a warm-up, after the first."""
        return not cast(Decay, self.rule).warmup

    def stays_open(self, segment: WeightSum, step: int) -> bool:
        """Whether the segment may stay open: always."""
        return True

    def take(self, live: list[Tensor], step: int | Tensor, keep: Tensor | None) -> None:
        """Move the mean towards the weights; at the first update, all the way."""
        own, rule = self.own, cast(Decay, self.rule)
        assert own is not None
        own.follow(live)
        own.weight, own.buffers = 1, None  # the buffers are the live ones
        if keep is not None:
            moves = _share_on_device(rule, cast(Tensor, step)) * keep
            for mean, tensor in zip(own.values, live, strict=True):  # foreach lerp reads a tensor on the host
                mean.lerp_(tensor.to(mean.dtype), moves.to(mean.dtype))
            return
        share = rule.share(cast(int, step))
        if all(mean.dtype == tensor.dtype for mean, tensor in zip(own.values, live, strict=True)):
            torch._foreach_lerp_(own.values, live, share)
        else:  # lerp does not mix dtypes
            torch._foreach_mul_(own.values, 1 - share)
            torch._foreach_add_(own.values, live, alpha=share)


def _share_on_device(rule: Decay, step: Tensor) -> Tensor:
    """`Decay.share` of an update whose number only the device knows."""
    later = (9 / (9 + step)).clamp(min=1 - rule.decay) if rule.warmup else 1 - rule.decay
    return torch.where(step > 1, later, 1.0)


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

    _pieces_class = MovingMean

    def __init__(
        self,
        model: nn.Module,
        decay: float = 0.99,
        buffers: Buffers = "copy",
        include: Patterns = None,
        exclude: Patterns = None,
        warmup: bool = False,
    ) -> None:
        rule = Decay(decay, warmup)
        super().__init__(model, rule, buffers=buffers, include=include, exclude=exclude)
