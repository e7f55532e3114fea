"""Hyperparameters: dataclass fields that know their default, the range to search and what they mean.

An algorithm declares its own in a subclass of `Hyperparameters`:

>>> @dataclass(frozen=True)
... class CORALHyperparameters(Hyperparameters):
...     gamma: float = hyper(1.0, Power(10, -1, 1), "weight of the distance between domains")
>>> fill(CORALHyperparameters, {"gamma": 0.5}).gamma
0.5
>>> fill(CORALHyperparameters, {"gamma": -1}).problems()
['gamma must be a number of at least 0, got -1']
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from swad.testbed.data import benchmarks
from swad.testbed.data.benchmark import Benchmark
from swad.testbed.data.splits import seed_hash
from swad.util.options import Bounds, problem

Seeding = Literal["2020", "present"]
"""How DomainBed seeds the draws of a search: in its version of October 2020, or since November 2020."""


@dataclass(frozen=True)
class Power:
    """The distribution base^U(low, high); with `integer` the fraction is cut off."""

    base: float
    low: float
    high: float
    integer: bool = False

    def __str__(self) -> str:
        return f"{'int ' if self.integer else ''}{self.base:g}^U({self.low:g}, {self.high:g})"

    def draw(self, random: np.random.RandomState) -> float:
        """Draw a value."""
        value = self.base ** random.uniform(self.low, self.high)
        return int(value) if self.integer else float(value)


@dataclass(frozen=True)
class Uniform:
    """The uniform distribution U(low, high)."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"U({self.low:g}, {self.high:g})"

    def draw(self, random: np.random.RandomState) -> float:
        """Draw a value."""
        return random.uniform(self.low, self.high)


@dataclass(frozen=True)
class Choice:
    """One of the values, all equally likely."""

    values: tuple[float, ...]

    def __str__(self) -> str:
        return f"one of {', '.join(f'{value:g}' for value in self.values)}"

    def draw(self, random: np.random.RandomState) -> float:
        """Draw a value."""
        value: float = random.choice(self.values).item()
        return value


@dataclass(frozen=True)
class Constant:
    """Always the same value: the hyperparameter is not searched."""

    value: float | str

    def __str__(self) -> str:
        return f"{as_text(self.value)}, not searched"

    def draw(self, random: np.random.RandomState) -> float | str:
        """Return the value."""
        return self.value


Range = Power | Uniform | Choice | Constant


def as_text(value: Any) -> str:
    """Write the value of a hyperparameter.

    >>> as_text(5e-5), as_text("outputs")
    ('5e-05', 'outputs')
    """
    return value if isinstance(value, str) else f"{value:g}"


def hyper(
    default: float | str,
    search: Range,
    help: str,
    *,
    low: float | None = None,
    high: float = math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    options: tuple[str, ...] = (),
    low_res: Range | None = None,
    by_dataset: Mapping[str, Range] | None = None,
    range_2020: Range | None = None,
    domainbed: str = "",
) -> Any:
    """Declare a hyperparameter as a dataclass field.

    Args:
        default: The default. An integer default makes the hyperparameter an integer.
        search: The range that a random search draws from.
        help: What it means, in a few words; `swad algorithms show` prints it.
        low: The smallest value allowed. By default 0, unless `above` is given.
        high: The largest value allowed.
        above: Values must be above this number.
        below: Values must be below this number.
        options: The words allowed, for a hyperparameter that is a word and no number.
        low_res: The search range on low-resolution images (digits, MNIST), if it differs. A constant is the default
            there, too.
        by_dataset: Search ranges of single datasets by name, if they differ.
        range_2020: The search range in DomainBed's version of October 2020, if it differs.
        domainbed: Its name in DomainBed, which seeds its draws, if it differs.
    """
    if low is None:
        low = 0 if math.isinf(above) else -math.inf
    metadata = {
        "range": search,
        "low_res": low_res or search,
        "by_dataset": by_dataset or {},
        "range_2020": range_2020,
        "domainbed": domainbed,
        "help": help,
        "bounds": Bounds() if options else Bounds(low, high, above, below),
        "options": options,
    }
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that every algorithm has; defaults and ranges are DomainBed's."""

    lr: float = hyper(5e-5, Power(10, -5, -3.5), "learning rate", above=0, low_res=Power(10, -4.5, -2.5))
    batch_size: int = hyper(
        32,
        Power(2, 3, 5.5, integer=True),
        "images of every source domain in a step",
        low=1,
        low_res=Power(2, 3, 9, integer=True),
        by_dataset={"DomainNet": Power(2, 3, 5, integer=True)},
    )
    weight_decay: float = hyper(0.0, Power(10, -6, -2), "L2 penalty of the weights", low_res=Constant(0))
    dropout: float = hyper(
        0.0,
        Choice((0, 0.1, 0.5)),
        "fraction of the features dropped before the head",
        below=1,
        low_res=Constant(0),
        domainbed="resnet_dropout",
    )

    def problems(self) -> list[str]:
        """Return what is wrong with the values, one sentence each."""
        problems = (
            problem(declared.name, getattr(self, declared.name), (_kind(declared),), declared.metadata["bounds"])
            for declared in dataclasses.fields(self)
        )
        return list(filter(None, problems))

    @classmethod
    def defaults_on(cls, benchmark: Benchmark) -> dict[str, Any]:
        """Return defaults that a dataset changes, besides those that it changes for every algorithm."""
        return {}

    @classmethod
    def draw_on(cls, benchmark: Benchmark, seed: int) -> dict[str, Any] | None:
        """Return a draw of the values from ranges of their own; None for the declared ranges."""
        return None

    def problems_on_low_res(self) -> list[str]:
        """Return what is wrong with the values on low-resolution images, which are never augmented."""
        return []


def _kind(declared: dataclasses.Field[Any]) -> Any:
    """Return the type of a hyperparameter: its words, or a whole or any number."""
    if options := declared.metadata["options"]:
        return Literal[options]
    return int if type(declared.default) is int else float


def fill(cls: type[Hyperparameters], values: Mapping[str, Any]) -> Hyperparameters:
    """Build hyperparameters of a class from some of their values; the others take their defaults."""
    known = [declared.name for declared in dataclasses.fields(cls)]
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise ValueError(f"there is no hyperparameter {', '.join(unknown)}; choose from {', '.join(known)}")
    return cls(**values)


def draw(
    cls: type[Hyperparameters], dataset: str, number: int, trial: int = 0, seeding: Seeding = "present"
) -> dict[str, Any]:
    """Draw hyperparameters as DomainBed does: the same numbers give the same values, and every trial has its own.

    The version of October 2020 draws all values from one stream, in a fixed order. Later versions give every name a
    stream of its own, so that a value does not depend on which others the algorithm has.

    Args:
        cls: The class of the algorithm's hyperparameters.
        dataset: Name of the dataset, on which the ranges depend.
        number: Number of the draw, DomainBed's `hparams_seed`. Number 0 is the defaults: no value is set.
        trial: Number of the trial, DomainBed's `trial_seed`.
        seeding: The version of DomainBed.
    """
    if number == 0:
        return {}
    seed, benchmark = seed_hash(number, trial), benchmarks.get(dataset)
    if (own := cls.draw_on(benchmark, seed)) is not None:
        return own
    declared = {field.name: field for field in dataclasses.fields(cls)}
    if seeding == "2020":
        return _draw_2020(declared, benchmark, np.random.RandomState(seed))
    return {
        name: _range(field, benchmark, seeding).draw(
            np.random.RandomState(seed_hash(seed, field.metadata["domainbed"] or name))
        )
        for name, field in declared.items()
    }


_ORDER_2020 = ("dropout", "lr", "batch_size", "weight_decay", "lr_g", "lr_d", "wd_g", "adversary", "wd_d")
"""The hyperparameters that are drawn first; the others follow as they are declared."""


def _draw_2020(
    declared: Mapping[str, dataclasses.Field[Any]], benchmark: Benchmark, random: np.random.RandomState
) -> dict[str, Any]:
    common = {field.name: field for field in dataclasses.fields(Hyperparameters)}
    first = [name for name in _ORDER_2020 if name in declared]
    values: dict[str, Any] = {}
    for name in (*first, *(name for name in declared if name not in first)):
        own = _range(declared[name], benchmark, "2020")
        drawn = own
        if name in common:  # drawn for every algorithm, also for one that ignores the value: ARM's batch size is 8
            drawn = _range(common[name], benchmark, "2020")
        if name == "dropout":  # drawn on low-resolution images too, whose network has none
            drawn = common[name].metadata["range"]
        value = drawn.draw(random)
        values[name] = own.value if isinstance(own, Constant) else value
    return {name: values[name] for name in declared}


def search_range(declared: dataclasses.Field[Any], dataset: str, seeding: Seeding = "present") -> Range:
    """Return the range of a hyperparameter on a dataset: the dataset's own range, or that of its resolution."""
    return _range(declared, benchmarks.get(dataset), seeding)


def _range(declared: dataclasses.Field[Any], benchmark: Benchmark, seeding: Seeding) -> Range:
    if seeding == "2020" and declared.metadata["range_2020"]:
        former: Range = declared.metadata["range_2020"]
        return former
    usual = declared.metadata["low_res" if benchmark.image_spec.low_res else "range"]
    search: Range = declared.metadata["by_dataset"].get(benchmark.name, usual)
    return search
