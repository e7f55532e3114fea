"""Datasets by name, one file each. The folder is the registry: there is no list to edit.

A dataset is a file of this folder, or of a folder named in the environment variable SWAD_DATASETS (several are
separated like PATH), that says ``BENCHMARK = Benchmark(...)``. Only the requested file is imported.

>>> from swad.data import benchmarks
>>> benchmarks.load("digits").domain_names
('board', 'clutter', 'outline', 'paper')
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections import Counter
from pathlib import Path
from typing import Any

from swad.data.benchmark import Benchmark
from swad.data.domains import DataError, Dataset
from swad.data.image_folder import read_image_folder

__all__ = ["get", "load", "names"]

# Processes started from here inherit the variable, and so find the same datasets.
__path__ = [*__path__, *filter(None, os.environ.get("SWAD_DATASETS", "").split(os.pathsep))]


def names() -> tuple[str, ...]:
    """Return the names of all datasets, sorted."""
    for folder in __path__:
        if not os.path.isdir(folder):
            raise DataError(f"SWAD_DATASETS must name existing folders, got {folder}: correct the variable or unset it")
    # Folder by folder: over several folders at once, pkgutil would hide the second of two files with the same name.
    counts = Counter(
        module.name
        for folder in __path__
        for module in pkgutil.iter_modules([folder])
        if not module.name.startswith("_")
    )
    for name, count in counts.items():
        if count > 1:
            raise DataError(f"dataset names must be unique, but there are {count} files {name}.py: rename yours")
    return tuple(sorted(counts))


def get(name: str) -> Benchmark:
    """Return the facts about a dataset; case, ``_``, ``-`` and spaces in `name` do not matter."""

    def plain(text: str) -> str:
        return "".join(c for c in text.lower() if c.isalnum())

    known = names()
    for module in known:
        if plain(module) == plain(name):
            benchmark = getattr(importlib.import_module(f"{__name__}.{module}"), "BENCHMARK", None)
            if not isinstance(benchmark, Benchmark):
                raise DataError(f"a file of a dataset must define BENCHMARK, but {module}.py does not: add the line")
            return benchmark
    raise DataError(f"there is no dataset {name!r}; choose one of {', '.join(known)}")


def load(name: str, root: Path | str | None = None, *, check_counts: bool = True, **options: Any) -> Dataset:
    """Read a dataset.

    Args:
        name: Name of the dataset.
        root: Its folder, or the folder above it.
        check_counts: Refuse a dataset whose image counts differ from the published ones.
        options: Options of the dataset, as its file names them.
    """
    benchmark = get(name)
    unknown = sorted(set(options) - set(benchmark.options))
    if unknown:
        known = ", ".join(sorted(benchmark.options)) or "none"
        raise DataError(f"dataset {benchmark.name} has the options: {known}; got {', '.join(unknown)}")
    read = benchmark.read or read_image_folder
    return read(benchmark, None if root is None else Path(root), check_counts, {**benchmark.options, **options})
