"""Warnings that show the line of the caller outside this package."""

from __future__ import annotations

import sys
import warnings


def warn_caller(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn, and show the line that called into `swad`.

    Args:
        message: The text.
        category: The class of the warning.
    """
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("swad.", "contextlib")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
