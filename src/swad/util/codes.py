"""Numbers for equal items, so that a file stores each item once and refers to it by its number.

>>> codes = Codes()
>>> [codes.code(name) for name in ("photo", "sketch", "photo")], codes.items
([0, 1, 0], ['photo', 'sketch'])
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any


class Codes:
    """Numbers equal items in the order of their appearance."""

    def __init__(self) -> None:
        self._codes: dict[Hashable, int] = {}

    def code(self, item: Hashable) -> int:
        """Return the number of an item; a new item gets the next one."""
        return self._codes.setdefault(item, len(self._codes))

    @property
    def items(self) -> list[Any]:
        """The items in the order of their numbers."""
        return list(self._codes)
