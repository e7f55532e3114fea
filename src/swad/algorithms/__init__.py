"""Algorithms by name: every file of this folder that does not begin with ``_`` is one.

A file holds one ``ALGORITHM``, a class with its loss, its hyperparameters and the paper it credits; nothing else
needs to know of it. Only the file asked for is imported.

>>> from swad import algorithms
>>> "erm" in algorithms.names()
True
>>> algorithms.get("ERM").Hyperparameters().lr
5e-05
"""

from __future__ import annotations

import importlib
import pkgutil
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
    kind: type[Algorithm] = importlib.import_module(f"{__name__}.{canonical(name)}").ALGORITHM
    return kind


def canonical(name: str) -> str:
    """An algorithm's name as its file spells it."""

    def plain(text: str) -> str:
        return "".join(c for c in text.lower() if c.isalnum())

    for known in names():
        if plain(known) == plain(name):
            return known
    raise AlgorithmError(f"there is no algorithm {name!r}; there are {', '.join(names())}")
