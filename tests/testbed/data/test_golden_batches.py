"""Batches never change: a change here changes results, so add it to the changelog.

Every case is the batches of a few steps, or two passes of an evaluation: hashed exactly where Pillow and integers make
the pixels, and compared by two sums where floating-point products round differently between machines.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from helpers.batches import iterate, train_loader
from swad.testbed.data import device_store
from swad.testbed.data.augmentation import Augmentation
from swad.testbed.data.cache import open_cache
from swad.testbed.data.domains import ArrayDomain, Dataset, FileDomain, ImageSpec
from swad.testbed.data.loaders import EvalLoader
from swad.testbed.data.splits import Sources, hold_out

GOLDEN = Path(__file__).with_name("golden_batches.json")
SPEC, SMALL = ImageSpec(size=16), ImageSpec(size=20, low_res=True, mean=(0.5,) * 3, std=(0.25,) * 3)
SIZES = {"a": 30, "b": 26, "c": 21, "held": 17}
CROPS = Augmentation(crop=0.3, flip=0.5, jitter=0, grayscale=0)


def pixels(name: str) -> np.ndarray:
    return np.random.RandomState(ord(name[0])).randint(0, 256, (SIZES[name], 20, 20, 3)).astype(np.uint8)


def labels(name: str) -> np.ndarray:
    return np.random.RandomState(1 + ord(name[0])).randint(0, 4, SIZES[name]).astype(np.int64)


def arrays(spec: ImageSpec) -> Dataset:
    domains = tuple(ArrayDomain(name, labels(name), pixels(name)) for name in SIZES)
    return Dataset("golden", domains, tuple("wxyz"), spec)


def files(root: Path) -> Dataset:
    """PNG and, every third, JPEG files of several sizes."""
    domains = []
    for name, n in SIZES.items():
        names = []
        for i, image in enumerate(pixels(name)):
            names.append(f"{name}{i}.{'jpg' if i % 3 == 0 else 'png'}")
            smooth = Image.fromarray(image[:3, :3]).resize((24 + i % 5, 20 + i % 3), Image.Resampling.BILINEAR)
            smooth.save(root / names[-1], **({"quality": 95, "subsampling": 0} if i % 3 == 0 else {}))
        domains.append(FileDomain(name, labels(name), root, tuple(names)))
        assert len(names) == n
    return Dataset("golden", tuple(domains), tuple("wxyz"), SPEC)


class Maker:
    """Builds the loaders of every case."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "files").mkdir()
        self.files = files(root / "files")

    def sources(self, kind: str) -> tuple[Dataset, Sources]:
        dataset = self.files if kind == "files" else arrays(SMALL if kind == "low_res" else SPEC)
        return dataset, hold_out(dataset, "held").sources

    def train(self, kind: str, start: int = 1, stop: int = 3, **options) -> Iterator[Tensor]:
        _, sources = self.sources(kind)
        yield from flat(iterate(train_loader(sources.train, sources.image_spec, 6, 7, **options), start, stop))

    def cached(self, kind: str, start: int = 1, stop: int = 3, streamed: bool = False, **options) -> Iterator[Tensor]:
        dataset, sources = self.sources(kind)
        with pytest.MonkeyPatch.context() as patch:
            if streamed:
                patch.setattr(device_store, "_available_bytes", lambda device: 0)
            cache = open_cache(dataset, self.root / "cache")
            loader = train_loader(sources.train, sources.image_spec, 6, 7, cache=cache, **options)
        yield from flat(iterate(loader, start, stop))

    def epochs(self, kind: str, start: int = 1, stop: int = 8, **options) -> Iterator[Tensor]:
        _, sources = self.sources(kind)
        yield from flat(
            iterate(train_loader(sources.train, sources.image_spec, 10, 7, epochs=True, **options), start, stop)
        )

    def evaluation(self, kind: str, cached: bool = False, **options) -> Iterator[Tensor]:
        dataset, _ = self.sources(kind)
        cache = open_cache(dataset, self.root / "cache") if cached else None
        split = hold_out(dataset, "a").target.val[0]
        for _ in range(2):
            for images, targets in EvalLoader(split, dataset.image_spec, 4, cache=cache, workers=0, **options):
                yield from (images, targets)


def flat(batches: Iterator) -> Iterator[Tensor]:
    for batch in batches:
        assert isinstance(batch.step, int)
        yield from filter(lambda part: part is not None, batch[1:])


CASES: dict[str, Callable[[Maker], Iterator[Tensor]]] = {
    "low_res": lambda make: make.train("low_res"),
    "low_res, pooled": lambda make: make.train("low_res", pooled=True),
    "low_res, 2 views": lambda make: make.train("low_res", views=2),
    "low_res, rank 1 of 2": lambda make: make.train("low_res", rank=1, world_size=2),
    "files": lambda make: make.train("files"),
    "files, steps 40 and 41": lambda make: make.train("files", 40, 41),
    "files, 2 workers": lambda make: make.train("files", 1, 5, workers=2),
    "files, pooled": lambda make: make.train("files", pooled=True),
    "files, 3 views": lambda make: make.train("files", views=3),
    "files, rank 1 of 3": lambda make: make.train("files", rank=1, world_size=3),
    "files, pooled, rank 0 of 2, 2 views": lambda make: make.train(
        "files", pooled=True, world_size=2, views=2, augmentation=CROPS
    ),
    "arrays": lambda make: make.train("arrays"),
    "cached files": lambda make: make.cached("files"),
    "cached files, steps 62 to 67": lambda make: make.cached("files", 62, 67),
    "cached files, streamed": lambda make: make.cached("files", 62, 67, streamed=True),
    "cached arrays": lambda make: make.cached("arrays"),
    "cached arrays, pooled": lambda make: make.cached("arrays", pooled=True),
    "cached arrays, 2 views, rank 1 of 2": lambda make: make.cached("arrays", views=2, rank=1, world_size=2),
    "cached arrays, pooled, streamed, other augmentation": lambda make: make.cached(
        "arrays", pooled=True, streamed=True, views=2, augmentation=CROPS
    ),
    "epochs of low_res": lambda make: make.epochs("low_res"),
    "epochs of low_res in parts": lambda make: make.epochs("low_res", micro_batch=5),
    "epochs of files": lambda make: make.epochs("files", 4, 9),
    "epochs of files in parts": lambda make: make.epochs("files", 4, 9, micro_batch=5, workers=1, augmentation=CROPS),
    "epochs of files in parts, rank 1 of 2": lambda make: make.epochs(
        "files", 6, 8, rank=1, world_size=2, micro_batch=1
    ),
    "epochs of files, decoded on the device": lambda make: make.epochs(
        "files", 5, 8, micro_batch=5, augmentation=CROPS, decode_on_device=True
    ),
    "evaluation of low_res": lambda make: make.evaluation("low_res"),
    "evaluation of low_res, rank 1 of 2": lambda make: make.evaluation("low_res", rank=1, world_size=2),
    "evaluation of files": lambda make: make.evaluation("files", keep=True),
    "evaluation of files, whole batches of rank 1 of 2": lambda make: make.evaluation(
        "files", whole_batches=True, rank=1, world_size=2
    ),
    "evaluation of files, augmented": lambda make: make.evaluation(
        "files", augmentation=Augmentation(), seed=3, rank=1, world_size=2, cached=True
    ),
    "evaluation of cached files": lambda make: make.evaluation("files", cached=True),
    "evaluation of cached arrays": lambda make: make.evaluation("arrays", cached=True, keep=True),
}
"""The parts of every batch: its images, labels and, if they say it, domains."""

ROUNDED = ("cached", "decoded on the device")
"""Cases whose pixels are products of floating-point numbers."""


def summary(tensors: Iterator[Tensor], exact: bool) -> list[object]:
    """Return a hash of exact tensors and, for rounded images, their mean and their mean under fixed weights."""
    digest, sums = hashlib.sha256(), []
    for tensor in tensors:
        digest.update(repr((tensor.dtype, tuple(tensor.shape))).encode())
        if exact or not tensor.is_floating_point():
            digest.update(tensor.contiguous().numpy().tobytes())
        else:
            values = tensor.contiguous().double().flatten()
            weights = torch.from_numpy(np.random.RandomState(0).standard_normal(len(values)))
            sums += [float(values.mean()), float((values * weights).mean())]
    return [digest.hexdigest()[:16], *(round(value, 6) for value in sums)]


@pytest.fixture(scope="module")
def maker(tmp_path_factory) -> Maker:
    return Maker(tmp_path_factory.mktemp("golden"))


@pytest.mark.parametrize("case", CASES)
def test_batches_are_those_of_the_first_release(maker, case):
    exact = not any(word in case for word in ROUNDED) or "augmented" in case
    want = json.loads(GOLDEN.read_text())[case]
    got = summary(CASES[case](maker), exact)
    assert got[0] == want[0]
    assert got[1:] == pytest.approx(want[1:], abs=2e-5)
