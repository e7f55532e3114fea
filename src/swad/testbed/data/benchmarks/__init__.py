"""Datasets by name, one file each. The folder is the registry: there is no list to edit.

A dataset is a file of this folder, or of a folder named in the environment variable SWAD_DATASETS (several are
separated like PATH), that says ``BENCHMARK = Benchmark(...)``. Only the requested file is imported.

>>> from swad.testbed.data import benchmarks
>>> benchmarks.load("digits").domain_names
('board', 'clutter', 'outline', 'paper')
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from swad.testbed.data import mnist
from swad.testbed.data.benchmark import Benchmark, Options
from swad.testbed.data.domains import ArrayDomain, Dataset, Domain, FileDomain, ImageSpec
from swad.testbed.data.image_folder import locate, read_image_folder
from swad.testbed.data.parquet import as_folder
from swad.testbed.data.table import read_csv
from swad.util.data_path import data_name, is_csv, is_hub
from swad.util.images import DataError
from swad.util.names import did_you_mean, plain
from swad.util.plugins import Registry

__all__ = ["get", "load", "missing", "names", "option_problem", "read"]


def _check(benchmark: object, module: str) -> Benchmark:
    if not isinstance(benchmark, Benchmark):
        raise DataError(f"BENCHMARK must be a swad.testbed.data.benchmark.Benchmark, got {benchmark!r} in {module}.py")
    if plain(benchmark.name) != plain(module):  # runs store the name and find the dataset by it
        raise DataError(
            f"a dataset must be named like its file, got {benchmark.name!r} in {module}.py: rename one of them"
        )
    return benchmark


FILES = Registry("dataset", __name__, "SWAD_DATASETS", "BENCHMARK", _check, DataError)
OWN_FOLDER = "folder"
"""The dataset that is any directory of images."""


def names() -> tuple[str, ...]:
    """Return the names of all datasets, sorted."""
    return FILES.names()


def get(name: str) -> Benchmark:
    """Return the facts about a dataset; case, ``_``, ``-`` and spaces in `name` do not matter."""
    if module := FILES.match(name):
        return FILES.get(module)
    if Path(name).is_dir():
        raise DataError(f"there is no dataset {name!r}; for your own images use folder --data {name}")
    known = names()
    if hint := did_you_mean(name, known):
        raise DataError(f"there is no dataset {name!r}: {hint}")
    raise DataError(f"there is no dataset {name!r}; choose one of {', '.join(known)}")


def label(name: str, data: Path | None) -> str:
    """Return the name of a dataset in directories and results: only your own folder is named after its directory."""
    name = get(name).name
    return data_name(data) if name == OWN_FOLDER and data is not None else name


def option_problem(benchmark: Benchmark, options: Options) -> str:
    """Say which of the options a dataset does not have; "" if it has all."""
    unknown = sorted(set(options) - set(benchmark.options))
    known = ", ".join(sorted(benchmark.options)) or "none"
    return f"dataset {benchmark.name} has the options: {known}; got {', '.join(unknown)}" if unknown else ""


def missing(benchmark: Benchmark, root: Path | None) -> str:
    """Say that the files of a dataset are not in a directory, and what to do; "" if they are."""
    if benchmark.layout == "embedded":
        return ""
    if root is None:
        generated = ', or set layout="embedded" in its file if read needs none' if benchmark.read else ""
        return (
            f"dataset {benchmark.name} needs its directory: give it, or the one above it (--data, data_dir){generated}"
        )
    if is_hub(root):  # asking the Hub may take a while
        return ""
    if benchmark.read is None:
        root = as_folder(root)
    if benchmark.layout == "folders" and (is_csv(root) or benchmark.read is not None):
        return "" if root.exists() else f"the data of {benchmark.name} must be at {root}: check the path"
    if benchmark.layout == "folders":
        try:
            locate(benchmark, root)
        except DataError as error:
            return str(error)
    elif mnist.find(root) is None:
        return (
            f"{benchmark.name} needs the four idx files of MNIST, which are not in {root}: "
            f"run `swad datasets download {benchmark.name}`, or give the folder that contains them"
        )
    return ""


def load(name: str, root: Path | str | None = None, *, check_counts: bool = True, **options: Any) -> Dataset:
    """Read a dataset.

    Args:
        name: Name of the dataset.
        root: Its folder, or the folder above it.
        check_counts: Refuse a dataset whose image counts differ from the published ones.
        options: Options of the dataset, as its file names them.
    """
    benchmark = get(name)
    if problem := option_problem(benchmark, options):
        raise DataError(problem)
    return read(benchmark, None if root is None else Path(root), check_counts, {**benchmark.options, **options})


def read(benchmark: Benchmark, root: Path | None, check_counts: bool, options: Options) -> Dataset:
    """Read a dataset by its function or from image files, and check that its images are as its image spec says."""
    root = as_folder(root) if root is not None and benchmark.read is None else root
    reader = benchmark.read or (read_csv if is_csv(root) else read_image_folder)
    dataset = reader(benchmark, root, check_counts, options)
    if not isinstance(dataset, Dataset):
        raise DataError(
            f"read of the dataset {benchmark.name} must return a swad.testbed.data.domains.Dataset, got "
            f"{type(dataset).__name__}"
        )
    for domain in dataset.domains:
        _check_images(domain, dataset.image_spec)
    return dataset


def _check_images(domain: Domain, spec: ImageSpec) -> None:
    """Check the images of a domain against the image spec of its dataset: files have 3 channels, arrays any."""
    if isinstance(domain, ArrayDomain):
        height, width, channels = domain.images.shape[1:]
        if spec.low_res and (height, width) != (spec.size, spec.size):
            raise DataError(
                f"domain {domain.name}: low-resolution images keep their size, so they must have that of image_spec, "
                f"{spec.size} × {spec.size}, got {height} × {width}: resize them, or correct the size"
            )
    elif isinstance(domain, FileDomain):
        channels = 3
    else:
        return
    if channels != spec.channels:
        raise DataError(
            f"domain {domain.name}: images must have the channels of image_spec, {spec.channels}, got {channels}: "
            "correct channels, mean and std"
        )
    if not spec.low_res and channels not in (1, 3):
        raise DataError(
            f"domain {domain.name}: images that are resized and augmented must have 1 or 3 channels, got {channels}: "
            "set low_res=True in image_spec"
        )
