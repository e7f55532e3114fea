"""Algorithms by name: every file of this folder that does not begin with ``_`` is one.

A file holds one ``ALGORITHM``, a class with its loss, its hyperparameters and the paper it credits; nothing else
needs to know of it. Only the file asked for is imported. `NAME+sam` is SAM over the loss of another. Further folders
of such files are those that the environment variable SWAD_ALGORITHMS names.

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
import os
import pkgutil
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swad.algorithms.base import Algorithm

__all__ = ["AlgorithmError", "canonical", "get", "names"]


_FRAME = {"base", "hyperparameters"}
"""Files that are no algorithms: what authors import."""

FOLDERS = "SWAD_ALGORITHMS"
"""The environment variable with folders of one's own, which processes started from here inherit."""
__path__ = [*__path__, *filter(None, os.environ.get(FOLDERS, "").split(os.pathsep))]


class AlgorithmError(ValueError):
    """There is no such algorithm; the message lists those there are."""


def names() -> tuple[str, ...]:
    """The algorithms there are."""
    # One folder after the other: of two files with one name, pkgutil would hide the second.
    found = Counter(
        m.name
        for folder in __path__
        for m in pkgutil.iter_modules([folder])
        if m.name[0] != "_" and m.name not in _FRAME
    )
    if missing := [folder for folder in __path__ if not os.path.isdir(folder)]:
        raise AlgorithmError(f"{FOLDERS} names folders of algorithms, and {missing[0]} is none: mend or unset it")
    if twice := [name for name, times in found.items() if times > 1]:
        raise AlgorithmError(f"every algorithm needs a name of its own, and {twice[0]}.py is there twice: rename yours")
    return tuple(sorted(found))


def get(name: str) -> type[Algorithm]:
    """The class of an algorithm; case, ``-`` and ``_`` in its name do not matter."""
    return _get(canonical(name))


@cache
def _get(name: str) -> type[Algorithm]:
    base, plus, _ = name.partition("+")
    kind: type[Algorithm] | None = getattr(importlib.import_module(f"{__name__}.{base}"), "ALGORITHM", None)
    if kind is None:
        raise AlgorithmError(f"a file of an algorithm says which class it is, and {base}.py lacks ALGORITHM = ...")
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
