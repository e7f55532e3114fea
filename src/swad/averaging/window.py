"""The rule of SWA: a window of updates that is fixed before training. No tensors."""

from __future__ import annotations

from typing import Any

from swad.averaging.checks import is_whole
from swad.averaging.rule import Rule
from swad.averaging.spans import FOREVER, Phase, Span, Status, every_nth


class Window(Rule):
    """The updates (start, end], every `interval` of them.

    >>> Window(4000, 5000, interval=100).spans(4850)
    (Span(first=4100, last=4800, times=1, every=100),)

    Args:
        start: The last update before the window.
        end: The last update of the window. By default the end of training.
        interval: Average every `interval`-th update after `start`.
    """

    settings = ("start", "end", "interval")
    max_segment = 256  # so that rounding does not grow with the window, for which no evaluation is needed

    def __init__(self, start: int, end: int | None = None, interval: int = 1) -> None:
        if not is_whole(start, 0) or not is_whole(interval, 1) or not (end is None or is_whole(end, start + interval)):
            raise ValueError(
                f"a window needs whole numbers of updates, start >= 0, interval >= 1 and start + interval <= end; "
                f"got {start=}, {end=}, {interval=}"
            )
        self.start, self.end, self.interval = int(start), None if end is None else int(end), int(interval)
        self.dense = interval == 1

    @property
    def _last(self) -> int:
        return FOREVER if self.end is None else self.end

    def spans(self, step: int) -> tuple[Span, ...]:
        """Return the part of the window up to `step`."""
        last = min(step, self._last)
        return every_nth(Span(self.start + 1, last), self.start, self.interval) if last > self.start else ()

    def needed(self) -> tuple[Span, ...]:
        """Return the whole window."""
        return (Span(self.start + 1, self._last),)

    def takes(self, step: Any) -> Any:
        """Whether the update is in the window, and a whole number of intervals after its start."""
        return (step > self.start) & (step <= self._last) & ((step - self.start) % self.interval == 0)

    def finished(self, step: int) -> bool:
        """Whether the window has ended."""
        return step >= self._last

    def status_at(self, step: int) -> Status:
        """Return where `step` is relative to the window."""
        window = f"the window ({self.start}, {'end' if self.end is None else self.end}]"
        if step <= self.start:
            return Status(Phase.SEARCHING, f"update {step} is before {window}")
        if self.finished(step):
            return Status(Phase.STOPPED, f"{window} is complete", None, self.spans(step))
        return Status(Phase.AVERAGING, f"update {step} is in {window}", None, self.spans(step))

    def why_empty(self, step: int) -> str:
        """Say when the window begins."""
        first = self.start + self.interval
        return (
            f"the first averaged update is {first} (start={self.start}, interval={self.interval}), "
            f"but the last one was {step}: train longer, or start earlier"
        )
