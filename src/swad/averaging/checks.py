"""Checks of the numbers that users pass."""

from __future__ import annotations

from typing import Any


def as_number(loss: Any) -> float:
    """Return a validation loss as a number.

    >>> as_number([0.3, 0.4])
    Traceback (most recent call last):
    TypeError: a validation loss must be one number, got a list: average it over the examples first
    """
    try:
        return float(loss)
    except (TypeError, ValueError, RuntimeError):
        shape = getattr(loss, "shape", None)
        got = f"a {type(loss).__name__}" if shape is None else f"a {type(loss).__name__} of shape {tuple(shape)}"
        raise TypeError(
            f"a validation loss must be one number, got {got}: average it over the examples first"
        ) from None


def is_whole(number: Any, least: int) -> bool:
    """Whether a value is a whole number and not below `least`; 3.0 is one, "3" is not."""
    try:
        return bool(int(number) == number >= least)
    except (TypeError, ValueError, OverflowError):
        return False


def check_count(name: str, value: Any, what: str = "evaluations", least: int = 1) -> int:
    """Return a setting that counts something, or raise if it is no whole number of at least `least`."""
    if not is_whole(value, least):
        raise ValueError(f"{name} counts {what} and must be a whole number of at least {least}, got {value!r}")
    return int(value)
