"""Whether the start of a valley was none: a plateau, or noise, before the loss first falls looks like one."""

from __future__ import annotations

MUCH_LOWER = 0.8
"""A loss below this share of the mean that gave the threshold speaks against the start. Of 24 trainings with a real
valley, none ended with more than 41 % of such losses; two that began on a plateau had 75 % and 88 %."""


class FalseStart:
    """Counts the losses since a valley was confirmed that are far below those at its start.

    One such loss is noise as often as not: 15 of those 24 trainings have one.

    Args:
        enough: Losses that must speak against the start, and in a row to be sure.
    """

    def __init__(self, enough: int) -> None:
        self.enough = enough
        self.since = self.much_lower = self.in_a_row = 0

    def take(self, is_much_lower: bool) -> None:
        """Count a loss."""
        self.since += 1
        self.much_lower += is_much_lower
        self.in_a_row = self.in_a_row + 1 if is_much_lower else 0

    @property
    def is_probable(self) -> bool:
        """Whether most losses speak against the start."""
        return self.since >= self.enough and 2 * self.much_lower > self.since

    @property
    def is_certain(self) -> bool:
        """Whether the last losses all do."""
        return self.in_a_row >= self.enough
