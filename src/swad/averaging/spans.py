"""Which updates are averaged: spans of updates, and the phase that a training is in."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

FOREVER = sys.maxsize
"""The last update of a span that has no end."""


@dataclass(frozen=True)
class Span:
    """The updates `first` to `last`, both included, each counted `times` times; with an interval, one in `every`.

    Under `semantics="reference"` the segments are counted, and each weighs the same whatever its length.

    >>> print(Span(4100, 5000, every=100), len(Span(4100, 5000, every=100)))
    4100-5000 every 100 10
    """

    first: int
    last: int
    times: float = 1
    every: int = 1

    @property
    def updates(self) -> range:
        """The updates in it."""
        return range(self.first, self.last + 1, self.every)

    def __len__(self) -> int:
        return len(self.updates)

    def __str__(self) -> str:
        every = f" every {self.every}" if self.every != 1 else ""
        return f"{self.first}-{self.last}{every}" + (f" x{self.times:g}" if self.times != 1 else "")

    def overlaps(self, first: int, last: int) -> bool:
        """Whether it has one of the updates `first` to `last`."""
        return self.first <= last and first <= self.last


class Phase(StrEnum):
    """Where a trajectory is in its valley.

    - searching: the loss may still improve, so no start is confirmed.
    - averaging: the start is confirmed, the end is not.
    - stopped: the model overfits, and no later update is averaged.
    """

    SEARCHING = "searching"
    AVERAGING = "averaging"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Status:
    """The state after an evaluation: the phase, the reason for it, and what is averaged if training ends now.

    Args:
        phase: "searching", "averaging" or "stopped"; see `Phase`.
        reason: Why, in words.
        threshold: The loss above which evaluations count toward the end; None if it is not known yet.
        spans: The averaged updates.
        warning: Why these updates may be the wrong ones, and what to do; empty if nothing speaks against them.
    """

    phase: Phase
    reason: str
    threshold: float | None = None
    spans: tuple[Span, ...] = ()
    warning: str = ""

    @property
    def should_stop(self) -> bool:
        """Whether the average is complete: later updates cannot enter it."""
        return self.phase is Phase.STOPPED

    @property
    def start_step(self) -> int | None:
        """First averaged update, counted from 1."""
        return min((span.first for span in self.spans), default=None)

    @property
    def end_step(self) -> int | None:
        """Last averaged update, counted from 1."""
        return max((span.last for span in self.spans), default=None)

    @property
    def n_averaged(self) -> int:
        """Number of averaged updates; one that is averaged twice counts twice."""
        return round(sum(len(span) * span.times for span in self.spans))

    def __str__(self) -> str:
        """Return one line for a log, however many spans there are.

        >>> print(Status(Phase.AVERAGING, "below the threshold 0.55", 0.55, (Span(401, 1000),)))
        averaging: below the threshold 0.55; averages 600 updates, 401-1000
        """
        averaged = f"{self.n_averaged:,} updates, {self.start_step}-{self.end_step}" if self.spans else "no update yet"
        doubt = "; probably a false start" if self.warning else ""
        return f"{self.phase}: {self.reason}; averages {averaged}{doubt}"


def every_nth(span: Span, anchor: int, every: int) -> tuple[Span, ...]:
    """Return the updates of `span` that are a multiple of `every` away from `anchor`: one span, or none.

    >>> every_nth(Span(5, 12), anchor=1, every=3)
    (Span(first=7, last=10, times=1, every=3),)
    """
    first = span.first + (anchor - span.first) % every
    last = span.last - (span.last - anchor) % every
    if first > last:
        return ()
    return (Span(first, last, span.times, every if first < last else 1),)


def add_up(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Write a sum of spans as the fewest spans that do not overlap.

    >>> [str(span) for span in add_up([Span(1, 4), Span(3, 4), Span(5, 6)])]
    ['1-2', '3-4 x2', '5-6']
    """
    change: dict[int, float] = {}
    for span in spans:
        change[span.first] = change.get(span.first, 0) + span.times
        change[span.last + 1] = change.get(span.last + 1, 0) - span.times
    added: list[Span] = []
    times: float = 0
    first = 0
    for step in sorted(step for step in change if change[step]):
        if times:
            added.append(Span(first, step - 1, times))
        times, first = times + change[step], step
    return tuple(added)
