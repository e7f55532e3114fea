"""Hyperparameters as dataclass fields that know their default, the range to search, and what they mean."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from swad.data import benchmarks


@dataclass(frozen=True)
class Power:
    """base^U(low, high); `whole` cuts the fraction off."""

    base: float
    low: float
    high: float
    whole: bool = False

    def __str__(self) -> str:
        return f"{'int ' if self.whole else ''}{self.base:g}^U({self.low:g}, {self.high:g})"

    def draw(self, random: random.Random) -> float:
        """Draw a value."""
        value = self.base ** random.uniform(self.low, self.high)
        return int(value) if self.whole else float(value)


@dataclass(frozen=True)
class Uniform:
    """U(low, high)."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"U({self.low:g}, {self.high:g})"

    def draw(self, random: random.Random) -> float:
        """Draw a value."""
        return random.uniform(self.low, self.high)


@dataclass(frozen=True)
class Choice:
    """One of the values, each as likely."""

    values: tuple[float, ...]

    def __str__(self) -> str:
        return f"one of {', '.join(f'{value:g}' for value in self.values)}"

    def draw(self, random: random.Random) -> float:
        """Draw a value."""
        return random.choice(self.values)


@dataclass(frozen=True)
class Constant:
    """Always the same: not searched."""

    value: float

    def __str__(self) -> str:
        return f"{self.value:g}, not searched"

    def draw(self, random: random.Random) -> float:
        """Draw the value."""
        return self.value


Range = Power | Uniform | Choice | Constant


def hyper(
    default: float,
    search: Range,
    about: str,
    *,
    low: float = 0,
    high: float = math.inf,
    small: Range | None = None,
    only: Mapping[str, Range] | None = None,
) -> Any:
    """Declare a field: its default, the values allowed, and where to search.

    `small` is the range for small images, `only` has those of single datasets by name.
    """
    told = {"range": search, "small": small or search, "only": only or {}, "about": about, "low": low, "high": high}
    return field(default=default, metadata=told)


@dataclass(frozen=True)
class Hyperparameters:
    """What every algorithm has; an algorithm's own are added in a subclass."""

    lr: float = hyper(5e-5, Power(10, -5, -3.5), "Adam's learning rate", small=Power(10, -4.5, -2.5))
    batch_size: int = hyper(
        32,
        Power(2, 3, 5.5, whole=True),
        "images of every source domain in a step",
        low=1,
        small=Power(2, 3, 9, whole=True),
        only={"DomainNet": Power(2, 3, 5, whole=True)},
    )
    weight_decay: float = hyper(0.0, Power(10, -6, -2), "Adam's L2 penalty", small=Constant(0))
    dropout: float = hyper(0.0, Choice((0, 0.1, 0.5)), "share of features dropped before the head", small=Constant(0))

    def problems(self) -> list[str]:
        """What is wrong with the values, one sentence each."""
        found = []
        for one in dataclasses.fields(self):
            value, low = getattr(self, one.name), one.metadata["low"]
            whole = isinstance(one.default, int)
            if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
                found.append(f"{one.name} must be a {'whole ' if whole else ''}number, got {value!r}")
            elif not math.isfinite(value):
                found.append(f"{one.name} must be a finite number, got {value!r}")
            elif value < low:
                found.append(f"{one.name} must be at least {low:g}, got {value!r}")
            elif value > one.metadata["high"]:
                found.append(f"{one.name} must be at most {one.metadata['high']:g}, got {value!r}")
        if not found and self.lr == 0:
            found.append("lr must be above 0, got 0")
        if not found and self.dropout >= 1:
            found.append(f"dropout must be below 1, got {self.dropout}")
        return found

    def problems_on_small_images(self) -> list[str]:
        """What is wrong with the values where images are small, and so not augmented."""
        return []


def fill(kind: type[Hyperparameters], given: Mapping[str, Any]) -> Hyperparameters:
    """Make hyperparameters of a kind from some of their values; unknown names are listed with those there are."""
    known = {one.name: one for one in dataclasses.fields(kind)}
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ValueError(f"no hyperparameter {', '.join(unknown)}; there are {', '.join(known)}")
    return kind(**given)


def draw(kind: type[Hyperparameters], seed: int, dataset: str) -> Hyperparameters:
    """Draw every hyperparameter from its range on a dataset: a function of the seed and the range alone."""
    values: dict[str, Any] = {
        one.name: search_range(one, dataset).draw(random.Random(f"{seed}/{one.name}"))
        for one in dataclasses.fields(kind)
    }
    return kind(**values)


def search_range(one: dataclasses.Field[Any], dataset: str) -> Range:
    """Where a field is searched on a dataset: the set's own range, or that of its kind of images."""
    benchmark = benchmarks.get(dataset)
    usual = one.metadata["small" if benchmark.image_spec.low_res else "range"]
    found: Range = one.metadata["only"].get(benchmark.name, usual)
    return found
