"""What one benchmark is: the facts its file states, and the few functions that differ from benchmark to benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swad.data.domains import Dataset, Defaults, ImageSpec

Options = Mapping[str, Any]
Reader = Callable[["Benchmark", Path | None, bool, Options], Dataset]


@dataclass(frozen=True)
class Download:
    """One file to fetch: an archive to unpack, or with ``unpack=False`` a file that stays as it is."""

    url: str
    filename: str
    sha256: str | None = None
    unpack: bool = True


@dataclass(frozen=True)
class Benchmark:
    """The facts of one dataset, as its file states them.

    ``counts`` are images per domain, and ``other_totals`` totals that are also right (a dataset that changed
    after publication). ``aliases`` maps folder names found in some downloads to the domain's name. ``inner`` is
    the folder inside the archive that becomes ``folder``; ``arrange`` makes that folder where renaming is not
    enough. ``excluded`` names images to leave out. ``options`` says what ``load`` takes beyond the folder.
    """

    name: str
    folder: str
    domains: tuple[str, ...]
    counts: Mapping[str, int] = field(default_factory=dict)
    n_classes: int | None = None
    classes: tuple[str, ...] | None = None
    other_totals: tuple[int, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    image_spec: ImageSpec = field(default_factory=ImageSpec)
    defaults: Defaults = field(default_factory=Defaults)
    license: str = ""
    citation: str = ""
    homepage: str = ""
    downloads: tuple[Download, ...] = ()
    inner: str = ""
    max_unpacked: int = 4 * 2**30
    options: Options = field(default_factory=dict)
    read: Reader | None = None
    arrange: Callable[[Path], Path] | None = None
    excluded: Callable[[Path, Options], frozenset[str]] | None = None
    kind: str = "tree"

    @property
    def total(self) -> int | None:
        """Images in all domains, where the number is known."""
        return sum(self.counts.values()) if self.counts else None
