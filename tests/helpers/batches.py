"""Training loaders of every source of images, their batches by step, and the augmentation of one step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from swad.gpu.cuda_graph import to_device
from swad.testbed.data.augment_parameters import FloatArray, draw_steps
from swad.testbed.data.augmentation import Augmentation
from swad.testbed.data.cache import ImageCache
from swad.testbed.data.domains import ImageSpec, IntArray
from swad.testbed.data.images import ArrayImages, CachedImages, EncodedImages, FileImages, ImageSource, in_memory
from swad.testbed.data.loaders import Batch, Loader
from swad.testbed.data.sampling import Balanced, Epochs, Pool, Pooled, Sampler
from swad.testbed.data.splits import DomainSplit
from swad.testbed.data.transforms import Normalize, train_transform

CPU = torch.device("cpu")


def train_loader(
    splits: Sequence[DomainSplit],
    image_spec: ImageSpec,
    batch_size: int,
    seed: int,
    *,
    pooled: bool = False,
    epochs: bool = False,
    cache: ImageCache | None = None,
    decode_on_device: bool = False,
    views: int = 1,
    augmentation: Augmentation | None = None,
    workers: int = 0,
    rank: int = 0,
    world_size: int = 1,
    micro_batch: int | None = None,
) -> Loader:
    """Compose a loader on the CPU."""
    pool = Pool(splits)
    chosen: type[Balanced] | type[Epochs] = Epochs if epochs else Pooled if pooled else Balanced
    sampler: Sampler = chosen(pool, batch_size, seed)
    normalize = Normalize(image_spec)
    images: ImageSource
    if cache is not None:
        images = CachedImages(cache, pool, image_spec, seed, augmentation=augmentation, views=views, device=CPU)
    elif in_memory(pool, image_spec):
        images = ArrayImages(pool, normalize, views=views, device=CPU)
    elif decode_on_device:
        crops = augmentation or Augmentation()
        images = EncodedImages(pool, image_spec.size, crops, normalize, views=views, workers=workers, device=CPU)
    else:
        transform = train_transform(image_spec, augmentation)
        images = FileImages(pool, transform, normalize, views=views, workers=workers, device=CPU)
    return Loader(pool, sampler, images, rank=rank, world_size=world_size, micro_batch=micro_batch, device=CPU)


def iterate(loader: Loader, start: int, stop: int) -> Iterator[Batch]:
    """Yield the batches of some steps, whole."""
    for step, inputs in loader.inputs(start, stop):
        parts = list(loader.parts(step, to_device(inputs, loader.device)))
        images, labels = (torch.cat([getattr(part, name) for part in parts]) for name in ("images", "labels"))
        yield parts[0] if len(parts) == 1 else Batch(step, images, labels)


def batch_at(loader: Loader, step: int) -> Batch:
    """Return the batch of a step."""
    (batch,) = iterate(loader, step, step)
    return batch


def keys_at(loader: Loader, step: int) -> list[IntArray]:
    """Return the images of every domain at a step of balanced batches, as indices into the domains."""
    return list(loader.rows(step).reshape(len(loader.pool.splits), -1) - loader.pool.offsets[:, None])


def draw(seed: int, sizes: IntArray, augmentation: Augmentation = Augmentation()) -> FloatArray:  # noqa: B008
    """Return the augmentation parameters of the images of the first step."""
    return draw_steps(seed, [1], sizes[None], 1, augmentation)[0, 0]
