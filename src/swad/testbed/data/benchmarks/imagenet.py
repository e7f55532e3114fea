"""ImageNet, or any large dataset of its layout: ``train/<class>/<image>`` and ``val/<class>/<image>``.

It is one domain, whose folders are its training and validation split, and it is trained from scratch by the recipe of
the paper's appendix B.6. Instead of class folders there may be WebDataset shards: ``train/*.tar`` and ``val/*.tar``, or
``*train*.tar`` and ``*val*.tar`` in one folder. If they number the classes, ``classes.txt`` may name them, one a line.
"""

import re
from dataclasses import replace
from pathlib import Path

from swad.testbed.data.benchmark import Benchmark, Options
from swad.testbed.data.domains import Dataset, Defaults
from swad.testbed.data.image_folder import ONLY_DOMAIN, SPLITS, read_image_folder
from swad.testbed.data.shards import read_shards
from swad.util.images import DataError


def read(benchmark: Benchmark, root: Path | None, check_counts: bool, options: Options) -> Dataset:
    """Read shards if there are any, else class folders."""
    splits = [] if root is None else [_shards(root, split) for split in ("train", "val", "test")]
    if root is None or not any(splits):
        dataset = read_image_folder(benchmark, root, check_counts, options)
        if len(dataset.domains) == 1 or set(dataset.domain_names) <= set(SPLITS):  # the latter have a note already
            return dataset
        folders = ", ".join(dataset.domain_names)
        note = f"the folders {folders} are trained as one pool: if one of them is the validation split, rename it val"
        return replace(dataset, notes=(*dataset.notes, note))
    if not splits[0] or not splits[1]:
        raise DataError(f"{benchmark.name} needs shards for training and validation, got one of them in {root}")
    names = root / "classes.txt"
    listed = names.read_text(encoding="utf-8").splitlines() if names.is_file() else None
    domain, classes = read_shards(ONLY_DOMAIN, splits, listed)
    if (highest := int(domain.labels.max())) >= len(classes):
        raise DataError(f"{names} names {len(classes)} classes, and shards have class {highest}: name all, one a line")
    return Dataset(root.resolve().name, (domain,), classes, benchmark.image_spec, benchmark.defaults)


def _shards(root: Path, split: str) -> list[Path]:
    # A word that only ends like the split is another: latest-train-0.tar is not a shard of the test images.
    named = [path for path in root.glob(f"*{split}*.tar") if re.search(f"(?<![a-z]){split}", path.name)]
    return sorted([*root.glob(f"{split}*/*.tar"), *named])


BENCHMARK = Benchmark(
    name="ImageNet",
    folder="",
    domains=(),
    # 90 epochs of 1,281,167 images in batches of 2,048; another dataset has other steps.
    defaults=Defaults(
        steps=90 * 625, evaluate_every=625, published_schedule=True, batch_size=2048, lr=0.1, recipe="imagenet"
    ),
    license="non-commercial research",
    citation="Russakovsky et al.: ImageNet Large Scale Visual Recognition Challenge. IJCV, 2015.",
    homepage="https://www.image-net.org",
    read=read,
)
