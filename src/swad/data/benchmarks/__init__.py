"""Datasets by name: every file of this folder that does not begin with ``_`` is one.

A file holds one ``BENCHMARK`` with its domains, classes, counts, license, citation and source; nothing else needs
to know of it. Only the file asked for is imported.

>>> from swad.data import benchmarks
>>> digits = benchmarks.load("digits")
>>> digits.domain_names
('board', 'clutter', 'outline', 'paper')
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swad.data.benchmark import Benchmark, Download
from swad.data.domains import DataError, Dataset

if TYPE_CHECKING:
    from swad.data.download import Fetched, fetch, show_fetched
    from swad.data.verify import CheckResult, check, show_check
    from swad.util.progress import progress_bar

__all__ = [
    "Benchmark",
    "CheckResult",
    "Download",
    "Fetched",
    "check",
    "fetch",
    "get",
    "load",
    "names",
    "progress_bar",
    "show_check",
    "show_fetched",
]

# Loaded on first use: they bring in HTTP, archives and the terminal, which reading a dataset does not need.
_LATER = {
    "CheckResult": "swad.data.verify",
    "check": "swad.data.verify",
    "show_check": "swad.data.verify",
    "Fetched": "swad.data.download",
    "fetch": "swad.data.download",
    "show_fetched": "swad.data.download",
    "progress_bar": "swad.util.progress",
}


def names() -> tuple[str, ...]:
    """The datasets there are, as file names."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")))


def get(name: str) -> Benchmark:
    """The facts of a dataset; case, ``_``, ``-`` and blanks in its name do not matter (``OfficeHome``)."""

    def plain(text: str) -> str:
        return "".join(c for c in text.lower() if c.isalnum())

    for known in names():
        if plain(known) == plain(name):
            benchmark = importlib.import_module(f"{__name__}.{known}").BENCHMARK
            assert isinstance(benchmark, Benchmark)
            return benchmark
    raise DataError(f"there is no dataset {name!r}; there are {', '.join(names())}")


def load(name: str, root: Path | str | None = None, *, check_counts: bool = True, **options: Any) -> Dataset:
    """Read a dataset under ``root`` (its folder, or the folder above it).

    ``check_counts`` refuses a known benchmark with other than its published number of images, naming the domains; pass
    ``check_counts=False`` to work on a part of one. ``options`` are those the dataset's file names.
    """
    from swad.data.image_folder import read_tree

    benchmark = get(name)
    unknown = sorted(set(options) - set(benchmark.options))
    if unknown:
        takes = ", ".join(sorted(benchmark.options)) or "none"
        raise DataError(f"dataset {benchmark.name} takes the options: {takes}; got {', '.join(unknown)}")
    reader = benchmark.read or read_tree
    return reader(benchmark, None if root is None else Path(root), check_counts, {**benchmark.options, **options})


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
