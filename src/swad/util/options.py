"""Values that a user sets: their types and bounds in words, the check against them, and the parser of texts.

>>> size = Bounds(minimum=1)
>>> size.broken_by(0), str(Bounds(minimum=0, below=1)), str(Bounds(0, 1))
('at least 1', 'at least 0 and below 1', 'from 0 to 1')
>>> has_type(True, int), has_type(3, float), parse("3", float)
(False, True, 3.0)
"""

from __future__ import annotations

import inspect
import itertools
import math
import operator
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin


@dataclass(frozen=True)
class Bounds:
    """The bounds of a number; one that is infinite does not count.

    Args:
        minimum: The smallest number allowed.
        maximum: The largest number allowed.
        above: Numbers must be above this one.
        below: Numbers must be below this one.
    """

    minimum: float = -math.inf
    maximum: float = math.inf
    above: float = -math.inf
    below: float = math.inf

    def __str__(self) -> str:
        if math.isfinite(self.minimum) and math.isfinite(self.maximum):
            return f"from {self.minimum:g} to {self.maximum:g}"
        return " and ".join(words for words, _, _ in self._finite())

    def broken_by(self, value: float) -> str:
        """Return the first bound that a number breaks, in words; "" if it breaks none."""
        return next((words for words, bound, within in self._finite() if not within(value, bound)), "")

    def _finite(self) -> Iterator[tuple[str, float, Callable[[float, float], bool]]]:
        for words, bound, within in (
            ("at least", self.minimum, operator.ge),
            ("at most", self.maximum, operator.le),
            ("above", self.above, operator.gt),
            ("below", self.below, operator.lt),
        ):
            if math.isfinite(bound):
                yield f"{words} {bound:g}", bound, within


_WORDS = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Path: "a path",
    Mapping: "a dictionary",
}


def describe(kind: Any) -> str:
    """Return a declared type in words.

    >>> describe(int), describe(tuple[str, ...])
    ('a whole number', 'a list, each a text')
    """
    if get_origin(kind) is tuple:
        return f"a list, each {_WORDS[get_args(kind)[0]]}"
    return _WORDS[get_origin(kind) or kind]


def has_type(value: Any, kind: Any) -> bool:
    """Whether a value has a declared type, or can be converted to it: text to a path, a list to a tuple."""
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin is Literal:
        return value in arguments
    if origin is tuple:
        element = arguments[0]
        if isinstance(value, str):  # such as "swad,ema"
            return element is str
        return isinstance(value, Collection) and all(has_type(item, element) for item in value)
    if origin is float:
        return type(value) is int or (isinstance(value, float) and math.isfinite(value))
    if origin is int:
        return type(value) is int
    return isinstance(value, str | os.PathLike if origin is Path else origin)


def problem(name: str, value: Any, kinds: Collection[Any], bounds: Bounds) -> str:
    """Say how a value breaks the rule of an option; "" if it does not.

    >>> problem("steps", 0, (int,), Bounds(minimum=1)), problem("steps", 5, (int,), Bounds(minimum=1))
    ('steps must be a whole number of at least 1, got 0', '')
    >>> problem("mode", "fast", (Literal["slow", "exact"],), Bounds())
    "mode must be one of slow, exact, got 'fast'"

    Args:
        name: The name of the option.
        value: Its value.
        kinds: The types allowed.
        bounds: The bounds of a number.
    """
    if any(has_type(value, kind) for kind in kinds) and not bounds.broken_by(value):
        return ""
    words = choices_of(kinds)
    rule = f"one of {', '.join(words)}" if words else " or ".join(map(describe, kinds))
    if limits := str(bounds):
        rule += f" of {limits}" if limits.startswith("at") else f" {limits}"
    return f"{name} must be {rule}, got {value!r}"


def choices_of(kinds: Collection[Any]) -> tuple[str, ...]:
    """Return the words that the Literals among some types allow."""
    return tuple(choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind))


def text_options(function: Callable[..., Any], **names: Any) -> dict[str, type]:
    """Return the parameters that a text can set, each with its type, by its annotation or its default.

    >>> def save(path: Path, mode: Literal["w", "a"] = "w", limit: int | None = None, fast=False): ...
    >>> text_options(save)
    {'mode': <class 'str'>, 'limit': <class 'int'>, 'fast': <class 'bool'>}

    Args:
        function: The function or class.
        names: Names in its annotations that its module does not have while it runs.
    """
    kinds: dict[str, type] = {}
    for parameter in inspect.signature(function, eval_str=True, locals=names).parameters.values():
        declared = parameter.annotation if parameter.annotation is not parameter.empty else type(parameter.default)
        if kind := next((kind for kind in _members(declared) if kind in (bool, int, float, str)), None):
            kinds[parameter.name] = kind
    return kinds


def _members(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) is Literal:
        yield from map(type, get_args(annotation))
    elif get_origin(annotation) in (Union, UnionType):
        yield from itertools.chain.from_iterable(map(_members, get_args(annotation)))
    else:
        yield annotation


def parse(text: str, kind: type) -> Any:
    """Return the value of a type (bool, int, float or str) that a text states; an error names the type."""
    if kind is str:
        return text
    if kind is bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise ValueError("true or false")
    try:
        value = kind(text)
    except ValueError:
        raise ValueError(describe(kind)) from None
    if math.isnan(value):
        raise ValueError(describe(kind))
    return value
