"""The dataset of a run: count and load its images, notice that they changed, and decode each before training."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from swad.testbed.data import benchmarks
from swad.testbed.data.cache import default_folder
from swad.testbed.data.domains import ArrayDomain, Dataset, Domain, FileDomain, ImageSpec
from swad.testbed.data.shards import ShardDomain
from swad.testbed.data.splits import Sources, hold_out, n_train
from swad.testbed.data.verify import find_bad_images
from swad.testbed.training.config import ResolvedConfig, RunConfig
from swad.testbed.training.recipes import recipe_of
from swad.testbed.training.run_dir import RunError
from swad.util.images import DataError
from swad.util.names import listed
from swad.util.progress import Progress


def training_images(config: RunConfig) -> tuple[int, ...]:
    """Return the number of training images of every source domain."""
    benchmark = benchmarks.get(config.dataset)
    if benchmark.counts and config.check_counts:
        counts = [count for name, count in benchmark.counts.items() if name not in config.targets]
        return tuple(n_train(count, three_way=config.three_way) for count in counts)
    sources = hold_out(_list_images(config), config.targets, trial=config.trial, three_way=config.three_way).sources
    return tuple(len(part) for part in sources.train)


def count_images(config: RunConfig) -> int:
    """Return the number of images of the dataset of a run."""
    return sum(map(len, _list_images(config).domains))


def load_dataset(config: ResolvedConfig, data_dir: Path | None = None, *, counted: bool = False) -> Dataset:
    """Load the dataset of a run.

    Args:
        config: Resolved settings of the run.
        data_dir: Where the dataset is now, if it moved since training.
        counted: Whether `resolve` has just counted the images of this run, so that they need not be listed again.
    """
    if not counted:  # what is kept may be of an earlier run, and files may have changed since
        forget_images()
    dataset = _list_images(config if data_dir is None else config.replace(data_dir=data_dir))
    forget_images()  # counting and training are one use each; labels of a large dataset take memory
    return replace(dataset, image_spec=image_spec(config, dataset.image_spec))


def forget_images() -> None:
    """List images again: in a notebook, some may have been added or removed since the last training."""
    _load.cache_clear()


def _list_images(config: RunConfig) -> Dataset:
    options = json.dumps(config.dataset_options, sort_keys=True)
    return _load(benchmarks.get(config.dataset).name, config.data_dir, config.check_counts, options)


@lru_cache(1)
def _load(dataset: str, folder: Path | None, check_counts: bool, options: str) -> Dataset:
    return benchmarks.load(dataset, folder, check_counts=check_counts, **json.loads(options))


def image_spec(config: ResolvedConfig, spec: ImageSpec) -> ImageSpec:
    """Return the form of the images of a run: that of the dataset, with the changes that the settings ask for."""
    values = {
        "size": config.image_size,
        "mean": config.image_mean,
        "std": config.image_std,
        "center_crop": recipe_of(config).center_crop,
    }
    changes: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
    return replace(spec, **changes)


def untrained_classes(sources: Sources) -> list[str]:
    """List the classes without any training image."""
    trained = np.unique(np.concatenate([part.labels for part in sources.train]))
    return [name for label, name in enumerate(sources.classes) if label not in trained]


def domain_contents(dataset: Dataset) -> dict[str, list[int | str]]:
    """Return what identifies the images of every domain, without decoding any: their number and a hash.

    The hash is of labels, file names and file sizes (of shards, if the images are in shards); of labels and pixels if
    the images are in memory.
    """
    return {domain.name: [len(domain), _digest(domain)] for domain in dataset.domains}


def _digest(domain: Domain) -> str:
    digest = hashlib.blake2b(domain.labels.tobytes(), digest_size=16)
    if isinstance(domain, ArrayDomain):
        digest.update(repr(domain.images.shape).encode())
        digest.update(domain.images.reshape(-1).data)
    elif isinstance(domain, FileDomain):
        for i, name in enumerate(domain.files):
            digest.update(f"{name}\0{_size(domain.path(i))}\0".encode(errors="surrogateescape"))
    elif isinstance(domain, ShardDomain):
        for shard in domain.shards:
            digest.update(f"{shard.name}\0{_size(shard)}\0".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise DataError(f"cannot read image {path}: {error.strerror}; restore it or remove it") from None


def require_same_images(run_dir: Path, before: Mapping[str, object], now: Mapping[str, list[int | str]]) -> None:
    """Refuse to resume with other images than at the start.

    The split depends on the number of images, so with another number the run would train on validation images.
    """
    changed = []
    for name in sorted({*before, *now}):
        then, current = before.get(name), now.get(name)
        if then != current:
            then_count = then[0] if isinstance(then, list) and then else 0
            now_count = 0 if current is None else current[0]
            counts = f"{then_count} images then, {now_count} now"
            changed.append(f"{name}: {'other files or sizes' if then_count == now_count else counts}")
    if changed:
        raise RunError(
            f"the data changed since {run_dir} was started ({', '.join(changed)}): restore the images, or remove that "
            "directory to start again"
        )


def require_decodable(
    dataset: Dataset, cache: Path | None, workers: int | None, progress: Progress, log: Callable[[str], None]
) -> None:
    """Decode every image once, so that a damaged image of the target is found before training, not after it.

    Images whose names, sizes and modification times have not changed since they were decoded are not decoded again.

    Args:
        cache: Directory of decoded images, where a file for each checked dataset is kept. Default: the default cache.
        workers: Threads that decode. Default: one per core.
        progress: Called while decoding.
        log: Called with a message if the result cannot be kept.
    """
    domains = [domain for domain in dataset.domains if isinstance(domain, FileDomain)]
    if not domains:
        return
    digest = hashlib.blake2b(digest_size=16)
    for path in (domain.path(i) for domain in domains for i in range(len(domain))):
        status = path.stat()
        digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0".encode(errors="surrogateescape"))
    marker = (cache or default_folder()) / "decoded" / digest.hexdigest()
    if marker.exists():
        return
    bad = find_bad_images(domains, progress, workers or None)
    if len(bad) == 1:
        raise DataError(bad[0].reason)
    if bad:
        files = listed((image.path for image in bad), 5)
        raise DataError(
            f"cannot decode {len(bad)} of {sum(map(len, domains)):,} images: {files}; replace or remove them"
        )
    try:
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()
    except OSError as error:
        log(f"cannot write {marker} ({error.strerror}), so the next run decodes all images again")
