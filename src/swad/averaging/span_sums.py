"""The sums of one average: one for every span of updates that its rule still needs.

The last span is still open, and so is its sum. A trajectory has one open sum, the *segment*, for all its dense
averages; the other averages have one of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from swad.averaging.rule import Rule
from swad.averaging.spans import Span
from swad.averaging.state import Saved
from swad.averaging.sums import OpenSum, WeightSum
from swad.averaging.tracked import TrackedTensors


class SpanSums(Saved):
    """The sums of one average, kept as `Rule.needed` asks.

    Args:
        rule: What decides which updates are averaged.
        tracked: The tensors to add up.
        offload: Keep the closed sums in pinned host memory.
    """

    def __init__(self, rule: Rule, tracked: TrackedTensors, offload: bool = False) -> None:
        if offload and rule.moves:
            raise ValueError(
                "offload moves closed sums to host memory, but a mean that moves at every update has none: "
                "leave offload out"
            )
        self.rule, self.tracked, self.offload = rule, tracked, offload
        self.closed: list[WeightSum] = []  # in the order of their updates
        self.own: OpenSum | None = None if rule.dense else OpenSum()
        # A rule that weighs segments adds only whole ones. At the edge of another average's window the shared segment
        # ends earlier, and what it has had since the last evaluation waits here.
        self.begun: WeightSum | None = None

    def take(self, live: list[Tensor], step: Any, keep: Tensor | None) -> None:
        """Take the weights after update `step` into the own sum, if the rule takes them.

        While a GradScaler may skip steps, `step` is a number on the device, and `keep` is 0 there if it skipped this
        one. Neither is read on the host.
        """
        assert self.own is not None
        if self.rule.moves:
            share = self.rule.share(step)
            self.own.move(live, share if keep is None else share * keep)
        elif keep is not None:
            self.own.add_some(live, self.tracked.live_buffers(), keep * self.rule.takes(step))
        elif self.rule.takes(step):
            self.own.add_some(live, self.tracked.live_buffers())

    def separate(self, segment: WeightSum, step: int) -> None:
        """Leave the shared segment, which ends at `step` for this average, and continue with an own sum."""
        self.close(segment, step)
        self.own = OpenSum(step + 1)

    def stays_open(self, segment: WeightSum, step: int) -> bool:
        """Whether the open sum may stay open after `step`, since the updates before and after it have one fate."""
        if self.rule.moves:
            return True
        first = (self.own or self.begun or segment).first
        one_fate = any(span.first <= first and step < span.last for span in self.rule.needed())
        return one_fate and not self._begins(step)

    def _begins(self, step: int) -> bool:
        """Whether the average begins, or continues after a gap, with update `step`."""
        return any(span.first == step for span in self.rule.spans(step))

    @torch.no_grad()
    def close(self, segment: WeightSum, step: int) -> None:
        """Drop and merge sums as the rule has decided, and add the open one, which ends at update `step`."""
        rule, tracked = self.rule, self.tracked
        needed = rule.needed()
        if self.own is not None:
            segment = self.own
            segment.last = step
        elif rule.weighs_segments:
            goes_on = any(span.first <= step < span.last for span in needed)
            if goes_on or self.begun is not None:
                segment = self.begun = self._whole(segment)
            if goes_on:  # only the segment of another average ends here
                return
            self.begun = None
        if self._begins(step) and (self.own is not None or segment.first != step):
            # With the weights of now, and not with those before them in a sum: neither in the open one, nor in one that
            # the edge of another average's window has closed at this update.
            segment = WeightSum.of_live(tracked, step)
            self.closed = [total for total in self.closed if total.last < step]
        # What no outcome needs is freed before new memory is taken, so that the peak is not above what is kept.
        totals, self.closed = [total for total in self.closed if _span_of(total, needed)], []
        while totals:
            self._append(totals.pop(0), needed)
        if segment.weight and _span_of(segment, needed):
            if not self._continues_last(segment, needed):
                self.closed.append(self._zeros(segment))
            self.closed[-1].add_(segment, tracked, 1 / segment.weight if rule.weighs_segments else 1.0)
        if self.own is not None:
            self.own.clear(step + 1)
            if rule.finished(step):
                self.own.release()

    def _append(self, total: WeightSum, needed: tuple[Span, ...]) -> None:
        if self._continues_last(total, needed):
            self.closed[-1].add_(total, self.tracked)
        else:
            self.closed.append(total)

    def _continues_last(self, total: WeightSum, needed: tuple[Span, ...]) -> bool:
        """Whether a sum belongs to the span of the last closed one."""
        return bool(self.closed) and _span_of(self.closed[-1], needed) == _span_of(total, needed)

    def _whole(self, segment: WeightSum) -> WeightSum:
        """Return the segment together with what had been added before it, if anything."""
        whole = self.begun or self._zeros(segment)
        whole.add_(segment, self.tracked)
        return whole

    def _zeros(self, segment: WeightSum) -> WeightSum:
        return WeightSum.zeros(self.tracked, segment.first, segment.last, self.offload)

    def averaged(self, segment: WeightSum, step: int) -> Counted:
        """Return the sums that are the average if training ends at `step`, each with how often it counts."""
        if self.own is not None:
            segment = self.own
            segment.last = step
        return counted([*self.closed, *([] if self.begun is None else [self.begun]), segment], self.rule.spans(step))

    # -- state --------------------------------------------------------------------------------------------

    def header(self) -> dict[str, Any]:
        """Return the class and the state of the rule."""
        return {"rule": type(self.rule).__name__, "state": self.rule.state_dict(), "shares": self.own is None}

    def check(self, header: Mapping[str, Any], owner: str) -> None:
        """Raise if the state belongs to another rule or has other settings."""
        mine = type(self.rule).__name__
        if header["rule"] != mine:
            raise ValueError(
                f"an average must resume with the rule it was saved with: {header['rule']} in the state, "
                f"{mine} in {owner}"
            )
        self.rule.check_state(header["state"], owner)

    def sums(self) -> dict[str, WeightSum]:
        """Return the sums by name."""
        named: dict[str, WeightSum] = {str(i): total for i, total in enumerate(self.closed)}
        if self.begun is not None:
            named["begun"] = self.begun
        if self.own is not None and self.own.values:
            named["own"] = self.own
        return named

    def load(self, header: Mapping[str, Any], sums: Mapping[str, WeightSum], step: int) -> None:
        """Continue from a header and sums."""
        self.rule.load_state_dict(header["state"])
        self.closed = [total for name, total in sums.items() if name.isdecimal()]
        self.begun = sums.get("begun")
        if header["shares"]:
            self.own = None
            return
        self.own = self.own or OpenSum()
        self.own.clear(step + 1)
        if "own" in sums:
            self.own.load(sums["own"])


Counted = list[tuple[WeightSum, float]]
"""The sums of an average, each with how often it counts."""


def counted(sums: Iterable[WeightSum], spans: tuple[Span, ...]) -> Counted:
    """Return the sums that are averaged, each with how often it counts."""
    # A sum is averaged as a whole or not at all, since needed spans are kept apart.
    return [
        (total, span.times)
        for total in sums
        for span in spans
        if total.weight and span.overlaps(total.first, total.last)
    ]


@torch.no_grad()
def mean_tensor(parts: Counted, index: int, device: torch.device, live: Tensor | None = None) -> Tensor:
    """Return one tensor of the mean, so that no second model is in memory; the live one where it has no finite sum."""
    (first, times), *others = parts
    value = first.values[index].to(device, copy=True).mul_(times)
    for total, times in others:
        value.add_(total.values[index].to(device), alpha=times)
    value.div_(sum(total.weight * times for total, times in parts))
    # A constant that is infinite or near the largest float32, such as the mask of an attention, has no finite sum.
    return value if live is None else torch.where(value.isfinite(), value, live.to(device, value.dtype))


def newest(parts: Counted) -> WeightSum:
    """Return the sum with the latest update, whose buffers are those of the average."""
    return max((total for total, _ in parts), key=lambda total: total.last)


def _span_of(total: WeightSum, needed: tuple[Span, ...]) -> Span | None:
    """Return the needed span that a sum belongs to; None if it is not needed any more."""
    return next((span for span in needed if span.overlaps(total.first, total.last)), None)
