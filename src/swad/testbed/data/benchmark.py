"""The facts about one dataset, as its file in `swad.testbed.data.benchmarks` or in a folder of your own states them.

Authors of a dataset import `Benchmark` and, for files to download, `Download`:

    BENCHMARK = Benchmark(name="MyData", folder="my_data", domains=("photo", "sketch"), license="CC BY 4.0")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from swad.testbed.data.domains import Dataset, Defaults, ImageSpec

Options = Mapping[str, Any]
"""Options of a dataset beyond its folder."""
Reader = Callable[["Benchmark", Path | None, bool, Options], Dataset]
"""``reader(benchmark, root, check_counts, options)`` reads a dataset."""


@dataclass(frozen=True)
class Download:
    """A file to download."""

    url: str
    """Address of the file; links to Google Drive files work too."""
    filename: str
    """Name under which it is stored."""
    sha256: str | None = None
    """Published checksum. None: the checksum of the first download is recorded and compared with later ones."""
    unpack: bool = True
    """Unpack the file as an archive (zip or tar)."""


Source = tuple[Download, ...] | str
"""All files of a dataset, at one place; or ``hub:owner/name``, at the Hugging Face Hub."""


def addresses(source: Source) -> tuple[str, ...]:
    """Return the addresses of a source."""
    return (source,) if isinstance(source, str) else tuple(item.url for item in source)


@dataclass(frozen=True)
class Benchmark:
    """The facts about one dataset.

    Only ``name``, ``folder`` and ``domains`` are required: a dataset of image files ``<domain>/<class>/<image>`` needs
    no code.
    """

    name: str
    """Name of the dataset, e.g. ``PACS``."""
    folder: str
    """Folder of the dataset below the data root."""
    domains: tuple[str, ...]
    """Names of the domains in order. Empty: every folder is a domain."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Published number of images of each domain. Empty: any number is accepted."""
    n_classes: int | None = None
    """Number of classes. None: any."""
    classes: tuple[str, ...] | None = None
    """Names of the classes in order. None: the names of the class folders."""
    other_totals: tuple[int, ...] = ()
    """Total numbers of images that are also correct, for a dataset that changed after its publication."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Folder names in some downloads, mapped to the domain's name."""
    image_spec: ImageSpec = field(default_factory=ImageSpec)
    """How images become tensors."""
    defaults: Defaults = field(default_factory=Defaults)
    """Default settings of a training run."""
    license: str = ""
    citation: str = ""
    homepage: str = ""
    sources: tuple[Source, ...] = ()
    """Places to download the dataset from, in the order in which they are tried: links die. Files of one name are
    copies of each other. Empty: the dataset cannot be downloaded."""
    options: Options = field(default_factory=dict)
    """Options that ``load`` accepts for this dataset, with their defaults."""
    read: Reader | None = None
    """Reads the dataset. None: read image files ``<domain>/<class>/<image>``."""
    arrange: Callable[[Path], Path] | None = None
    """Arranges the unpacked files as ``<domain>/<class>/<image>`` and returns that folder. None: they are arranged, and
    the folder is found by its domains."""
    excluded: Callable[[Path, Options], frozenset[str]] | None = None
    """Returns the relative paths of images to leave out."""
    layout: Literal["folders", "idx", "embedded"] = "folders"
    """How the dataset is stored: image folders, MNIST's idx files, or in no directory ("embedded"): made by code, or
    inside an installed package."""

    @property
    def total(self) -> int | None:
        """Number of images of all domains, if it is known."""
        return sum(self.counts.values()) if self.counts else None
