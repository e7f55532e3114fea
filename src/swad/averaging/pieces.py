"""The sums of one average: what its rule may still ask for.

The weights of every stretch of a rule (`Rule.stretches`) are added up in one sum, a *piece*. The last piece is still
open: the *segment*, to which every update is added. A trajectory has one segment for all its dense averages; the other
averages have a segment of their own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from swad.averaging.rule import Rule
from swad.averaging.spans import Span
from swad.averaging.sums import Segment, WeightSum
from swad.averaging.tracked import TrackedTensors


class Saved(ABC):
    """What a trajectory saves and loads: decisions as plain values, and sums of the tensors of `tracked`."""

    tracked: TrackedTensors
    offload = False

    @abstractmethod
    def header(self) -> dict[str, Any]:
        """Return all of the state but the sums, as plain values."""

    @abstractmethod
    def check(self, header: Mapping[str, Any], owner: str) -> None:
        """Raise, in the name of `owner`, if `load` would refuse the header."""

    @abstractmethod
    def sums(self) -> dict[str, WeightSum]:
        """Return the sums by name; the one named "own" stays on the model's device."""

    @abstractmethod
    def load(self, header: Mapping[str, Any], sums: Mapping[str, WeightSum], step: int) -> None:
        """Continue from a header and sums after update `step`."""


class Pieces(Saved):
    """The sums of one average.

    Args:
        kind: The name of its class, which a state belongs to.
        rule: What decides which updates are averaged.
        tracked: The tensors to add up.
        offload: Keep all sums but the segment in pinned host memory.
    """

    def __init__(self, kind: str, rule: Rule, tracked: TrackedTensors, offload: bool = False) -> None:
        self.kind, self.rule, self.tracked, self.offload = kind, rule, tracked, offload
        self.pieces: list[WeightSum] = []
        self.part: WeightSum | None = None  # of a segment that weighs as a whole, where the shared one ended before it
        self.own: Segment | None = None if rule.dense else Segment()

    @property
    def capturable(self) -> bool:
        """Whether an own segment is updated in the same way at every update, so that a CUDA graph can do it."""
        return False

    @property
    def n_buffers(self) -> int:
        """Weight-sized buffers allocated now, without a shared segment."""
        return len(self.pieces) + (self.part is not None) + (self.own is not None and bool(self.own.values))

    def take(self, live: list[Tensor], step: int | Tensor, keep: Tensor | None) -> None:
        """Add the weights after update `step` to the own segment, if the rule takes them.

        While a GradScaler may skip steps, `step` is a number on the device, and `keep` is 0 there if it skipped this
        one. Neither is read on the host.
        """
        assert self.own is not None
        if keep is not None:
            self.own.add_some(live, self.tracked.live_buffers(), keep * self.rule.takes(step))
        elif self.rule.takes(step):
            self.own.add_some(live, self.tracked.live_buffers())

    def separate(self, segment: WeightSum, step: int) -> None:
        """Leave the shared segment, which ends at `step` for this average, and continue with an own one."""
        self.close(segment, step)
        self.own = Segment(step + 1)

    def stays_open(self, segment: WeightSum, step: int) -> bool:
        """Whether the segment may stay open after `step`, since the updates before and after it have one fate."""
        first = (self.own or self.part or segment).first
        goes_on = any(stretch.first <= first and step < stretch.last for stretch in self.rule.stretches())
        return goes_on and not self._begins(step)

    def _begins(self, step: int) -> bool:
        """Whether the average begins, or continues after a gap, with update `step`."""
        return any(span.first == step for span in self.rule.spans(step))

    @torch.no_grad()
    def close(self, segment: WeightSum, step: int) -> None:
        """Drop and merge pieces as the rule has decided, and add the segment, which ends at update `step`."""
        rule, tracked = self.rule, self.tracked
        stretches = rule.stretches()
        if self.own is not None:
            segment = self.own
            segment.last = step
        elif rule.weighs_segments:
            goes_on = any(stretch.first <= step < stretch.last for stretch in stretches)
            if goes_on or self.part is not None:
                segment = self.part = self._whole(segment)
            if goes_on:  # only the segment of another average ends here
                return
            self.part = None
        if self._begins(step) and (self.own is not None or segment.first != step):
            # With the weights of now, and not with those before them in a sum.
            segment = WeightSum.of_live(tracked, step)
            self.pieces = [piece for piece in self.pieces if piece.last < step]
        # What no outcome needs is freed before new memory is taken, so that the peak is not above what is kept.
        self.pieces = [piece for piece in self.pieces if _home(piece, stretches)]
        merged: list[WeightSum] = []
        while self.pieces:
            _merge(merged, self.pieces.pop(0), stretches, tracked)
        home = _home(segment, stretches) if segment.weight else None
        if home is not None:
            if not merged or _home(merged[-1], stretches) != home:
                merged.append(self._zeros(segment))
            merged[-1].add_(segment, tracked, 1 / segment.weight if rule.weighs_segments else 1.0)
        self.pieces = merged
        if self.own is not None:
            self.own.clear(step + 1)
            if rule.finished(step):
                self.own.release()

    def _whole(self, segment: WeightSum) -> WeightSum:
        """Return the segment together with the part of it that was closed before, if any."""
        whole = self.part or self._zeros(segment)
        whole.add_(segment, self.tracked)
        return whole

    def _zeros(self, segment: WeightSum) -> WeightSum:
        return WeightSum.zeros(self.tracked, segment.first, segment.last, self.offload)

    def parts(self, segment: WeightSum, step: int) -> list[tuple[WeightSum, float]]:
        """Return the sums that are the average if training ends at `step`, each with how often it counts."""
        if self.own is not None:
            segment = self.own
            segment.last = step
        sums = [*self.pieces, *([] if self.part is None else [self.part]), segment]
        # A sum is averaged as a whole or not at all, since stretches are kept apart.
        return [
            (total, span.times)
            for total in sums
            for span in self.rule.spans(step)
            if total.weight and span.overlaps(total.first, total.last)
        ]

    # -- state --------------------------------------------------------------------------------------------

    def header(self) -> dict[str, Any]:
        """Return the class and the state of the rule."""
        return {"class": self.kind, "rule": self.rule.state_dict()}

    def check(self, header: Mapping[str, Any], owner: str) -> None:
        """Raise if the state belongs to another class or has other settings."""
        if header["class"] != self.kind:
            raise ValueError(f"{owner} was saved as {header['class']}, got {self.kind}: load it into one of that class")
        self.rule.check_state(header["rule"], owner)

    def sums(self) -> dict[str, WeightSum]:
        """Return the sums by name."""
        extra = {"part": self.part, "own": self.own if self.own is not None and self.own.values else None}
        named = {f"{i}": piece for i, piece in enumerate(self.pieces)} | extra
        return {name: total for name, total in named.items() if total is not None}

    def load(self, header: Mapping[str, Any], sums: Mapping[str, WeightSum], step: int) -> None:
        """Continue from a header and sums."""
        self.rule.load_state_dict(header["rule"])
        self.pieces = [total for name, total in sums.items() if name.isdecimal()]
        self.part = sums.get("part")
        if self.rule.dense and "own" not in sums:
            self.own = None
            return
        self.own = self.own or Segment()
        self.own.clear(step + 1)
        if "own" in sums:
            self.own.load(sums["own"])


def _home(total: WeightSum, stretches: Iterable[Span]) -> Span | None:
    """Return the stretch that a sum belongs to; None if it is not needed any more."""
    return next((stretch for stretch in stretches if stretch.overlaps(total.first, total.last)), None)


def _merge(merged: list[WeightSum], piece: WeightSum, stretches: Iterable[Span], tracked: TrackedTensors) -> None:
    """Append a piece, or add it to the last one if both belong to one stretch."""
    if merged and _home(merged[-1], stretches) == _home(piece, stretches):
        merged[-1].add_(piece, tracked)
    else:
        merged.append(piece)
