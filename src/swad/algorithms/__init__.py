"""Algorithms by name: every file of this folder that does not begin with ``_`` is one.

A file holds one ``ALGORITHM``, a class with its loss, its hyperparameters and the paper it credits; nothing else
needs to know of it. Only the file asked for is imported. `NAME+sam` is SAM over the loss of another.

>>> from swad import algorithms
>>> "erm" in algorithms.names()
True
>>> algorithms.get("ERM").Hyperparameters().lr
5e-05
>>> algorithms.canonical("SAM + CORAL"), algorithms.canonical("erm+sam")
('coral+sam', 'sam')
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swad.algorithms._base import Algorithm

__all__ = ["AlgorithmError", "canonical", "get", "names"]


class AlgorithmError(ValueError):
    """There is no such algorithm; the message lists those there are."""


def names() -> tuple[str, ...]:
    """The algorithms there are."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")))


def get(name: str) -> type[Algorithm]:
    """The class of an algorithm; case, ``-`` and ``_`` in its name do not matter."""
    return _get(canonical(name))


@cache
def _get(name: str) -> type[Algorithm]:
    base, plus, _ = name.partition("+")
    kind: type[Algorithm] = importlib.import_module(f"{__name__}.{base}").ALGORITHM
    if not plus:
        return kind
    from swad.algorithms import sam

    return sam.over(kind)


def canonical(name: str) -> str:
    """An algorithm's name as its file spells it, with ``+sam`` behind it where SAM goes over it."""
    parts = [_known(part, name) for part in name.split("+")]
    if len(parts) == 1:
        return parts[0]
    others = [part for part in parts if part != "sam"]
    if len(parts) != 2 or len(others) != 1:
        raise AlgorithmError(f"only SAM goes over another algorithm, as in coral+sam; got {name!r}")
    return "sam" if others == ["erm"] else f"{others[0]}+sam"


def _known(part: str, name: str) -> str:
    def plain(text: str) -> str:
        return "".join(c for c in text.lower() if c.isalnum())

    for known in names():
        if plain(known) == plain(part):
            return known
    raise AlgorithmError(f"there is no algorithm {name!r}; there are {', '.join(names())}, and NAME+sam")
