"""Bounds and types in words, the check of a value, and the parser of a text."""

from __future__ import annotations

import math
from itertools import product
from typing import Literal

import pytest

from swad.util.options import Bounds, describe, has_type, parse, text_options


def test_the_first_bound_that_a_number_breaks_is_named():
    limits = (-math.inf, 0, 1, math.inf)
    for minimum, maximum, above, below, value in product(limits, limits, limits, limits, (-1, 0, 0.5, 1, 2)):
        rules = {
            f"at least {minimum}": value >= minimum or not math.isfinite(minimum),
            f"at most {maximum}": value <= maximum or not math.isfinite(maximum),
            f"above {above}": value > above or not math.isfinite(above),
            f"below {below}": value < below or not math.isfinite(below),
        }
        first = next((rule for rule, kept in rules.items() if not kept), "")
        assert Bounds(minimum, maximum, above, below).broken_by(value) == first


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({}, ""),
        ({"minimum": 0, "maximum": 0.5}, "from 0 to 0.5"),
        ({"minimum": 0, "below": 1}, "at least 0 and below 1"),
        ({"above": 0, "maximum": 1024}, "at most 1024 and above 0"),
    ],
)
def test_bounds_in_words(bounds, words):
    assert str(Bounds(**bounds)) == words


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("7", int, 7),
        ("1e-3", float, 0.001),
        ("inf", float, math.inf),
        ("TRUE", bool, True),
        ("false", bool, False),
        (" x", str, " x"),
    ],
)
def test_a_text_becomes_a_value_of_its_type(text, kind, value):
    parsed = parse(text, kind)
    assert parsed == value
    assert type(parsed) is kind
    assert kind is float or has_type(parsed, kind)


@pytest.mark.parametrize(
    ("text", "kind"), [("1.5", int), ("", int), ("nan", float), ("fast", float), ("1", bool), ("", bool)]
)
def test_another_text_is_an_error_that_names_the_type(text, kind):
    with pytest.raises(ValueError, match="^true or false$" if kind is bool else f"^{describe(kind)}$"):
        parse(text, kind)


def test_options_of_a_function_are_what_a_text_can_set():
    def function(
        rule: Later,  # noqa: F821
        many: tuple[str, ...],
        n: int | None,
        share: float | int = 0.5,
        word: Literal["a", "b"] | None = None,
        keep=True,
        other=None,
    ): ...

    kinds = text_options(function, Later=object)
    assert kinds == {"n": int, "share": float, "word": str, "keep": bool}
