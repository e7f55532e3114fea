"""Problems of a command line that are reported together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from swad.testbed.training.config import ConfigError

T = TypeVar("T")


class Problems(list[str]):
    """The problems found so far, one sentence each."""

    def collect(self, function: Callable[..., T], *arguments: Any) -> T | None:
        """Call a function; its error becomes a problem."""
        try:
            return function(*arguments)
        except ValueError as error:
            self += getattr(error, "problems", (str(error),))
            return None

    def require_none(self) -> None:
        """Raise all problems together."""
        if self:
            raise ConfigError(list(dict.fromkeys(self)))
