"""Find algorithms by name. The folder is the registry: there is no list to edit.

An algorithm is a file of `swad.algorithms`, or of a folder named in SWAD_ALGORITHMS, that says ``ALGORITHM = <class>``.
Only the requested file is imported. ``NAME+sam`` combines an algorithm with SAM.

>>> from swad.algorithms.registry import canonical_name, get_algorithm, list_algorithms
>>> "erm" in list_algorithms()
True
>>> get_algorithm("ERM").Hyperparameters().lr
5e-05
>>> canonical_name("SAM + CORAL"), canonical_name("erm+sam")
('coral+sam', 'sam')
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING

from swad import algorithms as package
from swad.algorithms._errors import AlgorithmError

if TYPE_CHECKING:
    from swad.algorithms.base import Algorithm

__all__ = ["AlgorithmError", "canonical_name", "get_algorithm", "list_algorithms"]

_NOT_ALGORITHMS = {"base", "hyperparameters", "registry"}


def list_algorithms() -> tuple[str, ...]:
    """Return the names of all algorithms, sorted."""
    for folder in package.__path__:
        if not os.path.isdir(folder):
            raise AlgorithmError(
                f"SWAD_ALGORITHMS must name existing folders, got {folder}: correct the variable or unset it"
            )
    # Folder by folder: over several folders at once, pkgutil would hide the second of two files with the same name.
    counts = Counter(
        module.name
        for folder in package.__path__
        for module in pkgutil.iter_modules([folder])
        if not module.name.startswith("_") and module.name not in _NOT_ALGORITHMS
    )
    for name, count in counts.items():
        if count > 1:
            raise AlgorithmError(f"algorithm names must be unique, but there are {count} files {name}.py: rename yours")
    return tuple(sorted(counts))


def get_algorithm(name: str) -> type[Algorithm]:
    """Return the class of an algorithm; case, ``-`` and ``_`` in `name` do not matter."""
    return _load(canonical_name(name))


@cache
def _load(name: str) -> type[Algorithm]:
    module, plus, _ = name.partition("+")
    algorithm: type[Algorithm] | None = getattr(
        importlib.import_module(f"{package.__name__}.{module}"), "ALGORITHM", None
    )
    if algorithm is None:
        raise AlgorithmError(f"a file of an algorithm must define ALGORITHM, but {module}.py does not: add the line")
    if not plus:
        return algorithm
    # Imported here because it needs torch, which looking up names does not.
    from swad.algorithms.sam import wrap_with_sam

    return wrap_with_sam(algorithm)


def canonical_name(name: str) -> str:
    """Return an algorithm's name as its file spells it, with ``+sam`` at the end if it is combined with SAM."""
    parts = [_match(part, name) for part in name.split("+")]
    if len(parts) == 1:
        return parts[0]
    others = [part for part in parts if part != "sam"]
    if len(parts) != 2 or len(others) != 1:
        raise AlgorithmError(f"only SAM can be combined with another algorithm, as in coral+sam; got {name!r}")
    return "sam" if others == ["erm"] else f"{others[0]}+sam"


def _match(part: str, name: str) -> str:
    def plain(text: str) -> str:
        return "".join(c for c in text.lower() if c.isalnum())

    known = list_algorithms()
    for algorithm in known:
        if plain(algorithm) == plain(part):
            return algorithm
    raise AlgorithmError(f"there is no algorithm {name!r}; choose one of {', '.join(known)}, or NAME+sam")
