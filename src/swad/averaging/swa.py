"""SWA and SMA: averages over a fixed window of updates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from swad.averaging.base import Average
from swad.averaging.semantics import OPEN, Phase
from swad.averaging.sums import WeightSum
from swad.averaging.tensors import Buffers, Patterns
from swad.averaging.valley import Span, Status, every_nth, is_whole


class SWA(Average):
    """Average the weights of a fixed window of updates, every `interval` of them.

    Izmailov et al., "Averaging Weights Leads to Wider Optima and Better Generalization", UAI 2018. The window is
    (start, end]: `SWA(model, start=4000, end=5000, interval=100)` averages the ten updates 4100, 4200, ..., 5000 of the
    SWAD paper. Train with a constant or a cyclic learning rate (`swad.cyclic_lr`); the average never touches it.

    >>> import torch
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> average = SWA(model, start=2, interval=2)
    >>> for value in (1., 2., 3., 4., 5., 6.):
    ...     _ = model.weight.data.fill_(value)
    ...     average.update_parameters(model)
    >>> average.averaged_state()["weight"].item()
    5.0

    Args:
        model: The model to follow.
        start: The last update before the window.
        end: The last update of the window. By default the end of training.
        interval: Average every `interval`-th update after `start`. 1 is the ablation "without opt-overfit".
        buffers: "copy" keeps the buffers of the last averaged update; "average" averages floating-point buffers too.
        offload: Keep all sums but the open segment in pinned host memory.
        include: Name patterns of the tensors to average, also frozen ones. By default all trainable ones.
        exclude: Name patterns of tensors not to average.
    """

    FLUSH = 256
    """Updates after which a segment joins the mean, so that rounding does not grow with the window."""

    def __init__(
        self,
        model: nn.Module,
        start: int,
        end: int | None = None,
        interval: int = 1,
        buffers: Buffers = "copy",
        offload: bool = False,
        include: Patterns = None,
        exclude: Patterns = None,
    ) -> None:
        super().__init__(model, buffers=buffers, offload=offload, include=include, exclude=exclude)
        if not is_whole(start, 0) or not is_whole(interval, 1) or not (end is None or is_whole(end, start + interval)):
            raise ValueError(
                f"a window needs whole numbers of updates, start >= 0, interval >= 1 and start + interval <= end; "
                f"got {start=}, {end=}, {interval=}"
            )
        self.start, self.end, self.interval = int(start), None if end is None else int(end), int(interval)
        self._closed = False
        self.dense, self.sparse = interval == 1, interval > 1

    def _status_at(self, step: int) -> Status:
        last = step if self.end is None else min(step, self.end)
        spans = every_nth(Span(self.start + 1, last), self.start, self.interval) if last > self.start else ()
        window = f"the window ({self.start}, {'end' if self.end is None else self.end}]"
        if step <= self.start:
            return Status(Phase.SEARCHING, f"update {step} is before {window}")
        if self.finished():
            return Status(Phase.STOPPED, f"{window} is complete", None, spans)
        return Status(Phase.AVERAGING, f"update {step} is in {window}", None, spans)

    def _evaluated(self, loss: float, step: int) -> Status:
        self.close_segment()
        return self.status

    @torch.no_grad()
    def close_segment(self) -> None:
        """Add the segment to the mean."""
        self._flush()

    def _wants(self, step: int | Tensor) -> bool | Tensor:
        inside = (step > self.start) & ((step - self.start) % self.interval == 0)
        return inside if self.end is None else inside & (step <= self.end)

    def _accumulate(self, live: list[Tensor], weight: Tensor | None, counted: bool = True) -> None:
        super()._accumulate(live, weight, counted)
        # Where a GradScaler may skip steps, reading the count would wait for the device.
        if self.dense and weight is None and counted and self._segment.weight >= self.FLUSH:
            self._flush()

    def _must_keep_buffers(self, weight: Tensor | None) -> bool:
        ends = self.end is not None and (weight is not None or self._updates == self.end)
        return self.sparse or ends

    def _require_capturable(self, skipped: Tensor | None) -> None:
        super()._require_capturable(skipped)
        if self.end is not None or self._updates < self.start:
            raise RuntimeError(
                "a captured update cannot know where a window begins or ends: put this average into an AverageGroup"
            )

    def _flush(self) -> None:
        if self.dense and self._segment_inside() and self._segment.weight:
            if "mean" not in self._sums:
                self._sums["mean"] = WeightSum.zeros(self.tracked, self._offload)
            self._sums["mean"].add_(self._segment, 1.0, self.tracked)
            if not self._shared:
                self._segment.clear()

    def _segment_inside(self) -> bool:
        # A group closes its segment at both edges, so all of it is inside the window or none.
        return not self._shared or (
            self._segment.first > self.start and (self.end is None or self._updates <= self.end)
        )

    def _result(self) -> list[str]:
        return [*self._sums, OPEN] if self._segment_inside() else [*self._sums]

    def _why_empty(self) -> str:
        first = self.start + self.interval
        return (
            f"the first averaged update is {first} (start={self.start}, interval={self.interval}), "
            f"but the last one was {self.step}: train longer, or start earlier"
        )

    def finished(self) -> bool:
        """Whether the window has ended."""
        # Final: a later step that a GradScaler may skip makes the count uncertain, and must not reopen the window.
        if self.end is not None and self._updates >= self.end and self._skips is None:
            self._closed = True
        return self._closed

    def window_edges(self) -> tuple[int, ...]:
        """Return the updates at which the window begins and ends."""
        return (self.start,) if self.end is None else (self.start, self.end)

    def _extra_state(self) -> dict[str, Any]:
        return {"window": [self.start, self.end, self.interval]}

    def _check_extra_state(self, header: Mapping[str, Any]) -> None:
        if header["window"] != [self.start, self.end, self.interval]:
            raise ValueError(
                f"an average must resume with its window: (start, end, interval) = {tuple(header['window'])} "
                f"in the state, {(self.start, self.end, self.interval)} here"
            )

    def _load_extra_state(self, header: Mapping[str, Any]) -> None:
        self._closed = False


class SMA(SWA):
    """Simple moving average: every update after update `start`, to the end of training.

    Arpit et al., "Ensemble of Averages: Improving Model Selection and Boosting Performance in Domain Generalization",
    NeurIPS 2022, start at update 100.

    Args:
        model: The model to follow.
        start: The last update before the average begins.
        buffers: "copy" keeps the buffers of the last averaged update; "average" averages floating-point buffers too.
        offload: Keep all sums but the open segment in pinned host memory.
        include: Name patterns of the tensors to average, also frozen ones. By default all trainable ones.
        exclude: Name patterns of tensors not to average.
    """

    def __init__(
        self,
        model: nn.Module,
        start: int = 100,
        buffers: Buffers = "copy",
        offload: bool = False,
        include: Patterns = None,
        exclude: Patterns = None,
    ) -> None:
        super().__init__(model, start, buffers=buffers, offload=offload, include=include, exclude=exclude)
