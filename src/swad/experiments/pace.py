"""Whether one more run side by side pays, by measurement: steps a second of all runs together.

One run may leave a GPU or the cores half idle, or fill them; which, nobody knows beforehand. So runs are added one at
a time, each is given time to find its pace, and as soon as one more does not bring a tenth more, it stays at that.
"""

from __future__ import annotations

from collections import deque

WINDOW = 6.0
"""Seconds over which a pace is measured, after as many of settling."""
GAIN = 1.1
"""How much faster all runs together must be for one more to pay."""


class Pace:
    """Follows the steps of runs under way and says when to add one.

    >>> pace = Pace(limit=3)
    >>> for second in range(14):
    ...     pace.moved("a", 10 * second, float(second))
    >>> pace.wants_more(13.0)
    True
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.runs = limit, 1
        self.rates: list[float] = []
        self._moves: dict[str, deque[tuple[float, int]]] = {}
        self._since: float | None = None  # all runs have been under way
        self._held = False

    def moved(self, name: str, step: int, now: float) -> None:
        """A run has come to a step."""
        if name not in self._moves:
            self._since = None
        moves = self._moves.setdefault(name, deque())
        moves.append((now, step))
        while moves[0][0] < now - 2 * WINDOW:
            moves.popleft()
        if self._since is None and len(self._moves) == self.runs:
            self._since = now

    def ended(self, name: str) -> None:
        """A run is over; the pace of the others begins anew."""
        self._moves.pop(name, None)
        self._since = None

    def rate(self, now: float) -> float | None:
        """Steps a second of all runs together over the last window; None before they have settled."""
        if self._since is None or now < self._since + 2 * WINDOW:
            return None
        total = 0.0
        for moves in self._moves.values():
            first = next((move for move in moves if move[0] >= now - WINDOW), moves[-1])
            (begin, low), (end, high) = first, moves[-1]
            if end <= begin:
                return None
            total += (high - low) / (end - begin)
        return total

    def wants_more(self, now: float) -> bool:
        """Whether to start one more run now."""
        if self._held or self.runs >= self.limit:
            return False
        rate = self.rate(now)
        if rate is None:
            return False
        self.rates.append(rate)
        if len(self.rates) > 1 and rate < GAIN * self.rates[-2]:
            self._held = True
            return False
        self.runs += 1
        self._since = None
        return True

    def describe(self) -> str:
        """What was found, in one line."""
        found = ", ".join(f"{n} side by side {rate:.0f} steps/s" for n, rate in enumerate(self.rates, 1))
        return f"{found}: {self.runs} at a time"
