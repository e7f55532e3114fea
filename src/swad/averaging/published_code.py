"""The detector of the published code (khanrc/swad, `LossValley`), on spans of updates instead of models.

It differs from the paper, and every published number of SWAD most likely comes from it. Its unit is the segment: all
updates since the previous evaluation. Each segment weighs the same, whatever its length. When the lowest loss is
confirmed, it looks back over a queue of N_e segments; afterwards each segment is averaged when it is at the front of
the queue. So the segment of the lowest loss is usually counted twice, and an early one more often.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from swad.averaging.rule import Rule
from swad.averaging.spans import FOREVER, Phase, Span, add_up


class Segment(NamedTuple):
    """The updates of a segment, and the loss after the last of them."""

    loss: float
    first: int
    last: int

    @property
    def span(self) -> Span:
        """Its updates."""
        return Span(self.first, self.last)


class PublishedCode(Rule):
    """The published code's detector, statement by statement.

    Args:
        N_s: Length of its `converge_Q`.
        N_e: Length of its `smooth_Q`.
        r: The threshold as a multiple of the mean loss in `converge_Q`.
        plus: Added to that multiple, for an absolute tolerance; 0 in the published code.
    """

    weighs_segments = True
    settings = ("N_s", "N_e", "r", "plus")
    state_defaults: ClassVar = {"plus": 0}
    start: int | None = None  # an average never begins in mid-segment

    def __init__(self, N_s: int, N_e: float, r: float, plus: float = 0) -> None:
        self.N_s, self.N_e, self.r, self.plus = N_s, int(N_e), r, plus
        self.phase = Phase.SEARCHING
        self.threshold: float | None = None
        self.queue: list[Segment] = []  # `smooth_Q`, and `converge_Q` until it has converged
        self.counted: tuple[Span, ...] = ()  # `final_model`
        self.converged: Segment | None = None  # the segment of the lowest loss, which ends at `converge_step`
        self.end = 0  # the update of the last evaluation

    def observe(self, loss: float, step: int) -> None:
        """Take the loss after update `step`."""
        self.queue.append(Segment(loss, self.end + 1, step))
        self.end = step
        if self.converged is None:
            self.queue = self.queue[-max(self.N_s, self.N_e) :]
            self._converge()
            return
        self.queue = self.queue[-self.N_e :]
        if self.queue[0].last < self.converged.last:
            return
        if self.n_above == len(self.queue):  # all above the threshold: the valley is dead
            self.phase = Phase.STOPPED
            return
        self._count(self.queue[:1])

    def _converge(self) -> None:
        window = self.queue[-self.N_s :]
        if len(window) < self.N_s or window[0].loss > min(segment.loss for segment in window):
            return
        self.converged = window[0]
        mean = sum(segment.loss for segment in window) / self.N_s
        self.threshold = max(
            self.r * mean + self.plus, window[0].loss
        )  # rounding must not put the lowest loss above it
        self.phase = Phase.AVERAGING
        if self.N_e < self.N_s:
            self._count(window[1 : 1 + self.N_s - self.N_e])
        elif self.N_e > self.N_s:
            back = self.queue[: self.N_e - self.N_s + 1]
            above = [i for i, segment in enumerate(back) if segment.loss > self.threshold]
            start = above[-1] + 1 if above else 0
            self._count(back[start + 1 :])  # off by one, as published
        self.queue = self.queue[-self.N_e :]

    def _count(self, segments: list[Segment]) -> None:
        self.counted = add_up([*self.counted, *(segment.span for segment in segments)])

    @property
    def n_above(self) -> int:
        """Losses in a row above the threshold, up to the last one; at most as many as the queue has."""
        if self.threshold is None:
            return 0
        inside = [i for i, segment in enumerate(self.queue) if segment.loss <= self.threshold]
        return len(self.queue) - 1 - inside[-1] if inside else len(self.queue)

    def spans(self, step: int) -> tuple[Span, ...]:
        """Return the updates that are averaged if training ends at `step`: none after the last evaluation."""
        if not self.queue:
            return (Span(self.end + 1, step),) if step > self.end else ()
        if self.converged is None:
            return (self.queue[-1].span,)
        rest = self.queue[1 : len(self.queue) - self.n_above]  # the end of training adds them
        spans = add_up([*self.counted, *(segment.span for segment in rest)])
        # The average starts with this segment, and the first one that is counted overwrites it.
        return spans or (self.converged.span,)

    def needed(self) -> tuple[Span, ...]:
        """Return the segments that are counted or may be, those that will be counted alike merged."""
        if not self.queue:
            return (Span(self.end + 1, FOREVER),)
        counted = self.spans(self.end)
        if self.phase is Phase.STOPPED:
            return tuple(Span(span.first, span.last) for span in counted)
        needed = [*counted, *(segment.span for segment in self.queue)]
        if self.converged is not None and not self.counted:
            needed.append(self.converged.span)
        # Once the queue is full and has passed the lowest loss, each queued segment counts once more, or all after the
        # last loss inside the valley are dropped together. Before, each may have a fate of its own.
        settled = (
            self.converged is not None and len(self.queue) == self.N_e and self.queue[0].last >= self.converged.last
        )
        cuts = {update for span in (counted if settled else needed) for update in (span.first - 1, span.last)}
        between = (Span(before + 1, last) for before, last in itertools.pairwise(sorted({*cuts, self.end})))
        kept = [span for span in between if any(other.overlaps(span.first, span.last) for other in needed)]
        return (*kept, Span(self.end + 1, FOREVER))

    @property
    def has_losses(self) -> bool:
        """Whether a loss was observed."""
        return bool(self.queue)

    @property
    def lowest(self) -> tuple[int, float]:
        """For how many evaluations the lowest loss has been the lowest, and that loss."""
        window = [segment.loss for segment in self.queue[-self.N_s :]]
        return len(window) - window.index(min(window)), min(window)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that `observe` depends on, as plain values."""
        spans = [[span.first, span.last, span.times] for span in self.counted]
        converged = None if self.converged is None else list(self.converged)
        return {**vars(self), "queue": [list(row) for row in self.queue], "counted": spans, "converged": converged}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken; the settings must be the same.

        Args:
            state: What `state_dict` returned.
        """
        super().load_state_dict(state)
        self.phase = Phase(state["phase"])
        self.queue = [Segment(*row) for row in state["queue"]]
        self.counted = tuple(Span(*row) for row in state["counted"])
        self.converged = None if state["converged"] is None else Segment(*state["converged"])
