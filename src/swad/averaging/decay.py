"""The rule of an EMA: every update counts, each less than the next. No tensors."""

from __future__ import annotations

import math
from typing import Any

from swad.averaging.rule import Rule
from swad.averaging.spans import FOREVER, Phase, Span, Status


class Decay(Rule):
    """All updates, each with less weight than the next: m <- decay * m + (1 - decay) * theta, from the first theta on.

    >>> [round(Decay(0.99, warmup=True).share(step), 3) for step in (1, 2, 11, 900)]
    [1.0, 0.818, 0.45, 0.01]

    Args:
        decay: The share of the mean that stays at each update.
        warmup: Begin with a smaller decay: after t updates, at most (1 + t) / (10 + t). A number p above 0 is another
            curve, at most 1 - (1 + t) ** -p.
    """

    dense, moves = False, True
    settings = ("decay", "warmup")

    def __init__(self, decay: float = 0.99, warmup: bool | float = False) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay must be at least 0 and below 1, got {decay}; the paper uses 0.99")
        if not 0 <= warmup < math.inf:
            raise ValueError(f"warmup must be true, false or a power above 0, got {warmup}: e.g. 2 / 3, as in timm")
        self.decay, self.warmup = decay, warmup

    @property
    def capturable(self) -> bool:
        """Whether the share is the same at every update after the first."""
        return not self.warmup

    def spans(self, step: int) -> tuple[Span, ...]:
        """Return all updates."""
        return (Span(1, step),) if step else ()

    def needed(self) -> tuple[Span, ...]:
        """Return all updates."""
        return (Span(1, FOREVER),)

    def share(self, step: Any) -> Any:
        """Return how far update `step` moves the mean; the first one all the way."""
        later = 1 - self.decay
        if self.warmup:
            early = 9 / (9 + step) if self.warmup is True else step ** -float(self.warmup)
            later = early * (early > later) + later * (early <= later)  # the larger one, also of numbers on a device
        return later * (step > 1) + 1.0 * (step <= 1)

    def status_at(self, step: int) -> Status:
        """Return that the average has all updates."""
        power = "" if isinstance(self.warmup, bool) else f" of power {self.warmup:.3g}"
        warmup = f", with warm-up{power}" if self.warmup else ""
        return Status(Phase.AVERAGING, f"decay {self.decay}, from the first update on{warmup}", None, self.spans(step))
