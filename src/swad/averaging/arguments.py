"""Checks of arguments that several averages have in common: each error is one line with the rule and the value."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from swad.util.names import did_you_mean


def require_options(build: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raise if `build(model, **options)` is no valid call, and name the options there are."""
    signature = inspect.signature(build)
    try:
        signature.bind(None, **options)
    except TypeError as error:
        known = list(signature.parameters)[1:]
        unknown = [option for option in options if option not in known]
        hints = [hint for hint in (did_you_mean(option, known) for option in unknown) if hint]
        rule = f"{getattr(build, '__name__', 'the average')} takes {', '.join(known)}"
        raise TypeError(f"{rule}; {error}{f': {hints[0]}' if hints else ''}") from None


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
