"""Batches that depend only on the seed and the step, so that a resumed run sees what an uninterrupted one would.

The images of a step and the augmentation of each are drawn from ``(seed, step, domain, position)``. No random stream
continues from one step to the next, so neither the number of workers and processes nor earlier steps matter.

Transforms belong to splits, never to domains. Images stay bytes until they are on the device, where a whole batch is
scaled and normalized at once: a quarter of the traffic for the same numbers.

A batch is made in two stages. Its *inputs* are tensors of fixed shapes: decoded bytes, or only the indices of images
that are already on the device. `TrainLoader.finish` turns inputs on the device into images and labels without
synchronizing with the host, so that it can be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from swad.testbed.data import gpu_augment
from swad.testbed.data.augmentation import Augmentation
from swad.testbed.data.cache import ImageCache
from swad.testbed.data.domains import ArrayDomain, ByteArray, Domain, ImageSpec, IntArray
from swad.testbed.data.splits import DomainSplit
from swad.testbed.data.transforms import Normalize, Transform, eval_transform, to_pil, train_transform
from swad.testbed.data.workers import default_workers, read_ahead
from swad.util.images import DataError

Inputs = Mapping[str, Tensor]
"""Tensors from which a batch is made; their shapes are the same at every step."""

# The first number of each seed keeps the streams apart: SeedSequence treats (a, b) and (a, b, 0) as equal.
_INDICES, _AUGMENTATION = 1, 2


class Batch(NamedTuple):
    """The images of one step, one domain after another: ``[domains × per domain, channels, height, width]``.

    With several views, images have one more leading dimension; the first view equals that of a single-view batch.
    In a pooled batch the images are in any order, and ``domains`` has the number of each image's domain.
    """

    step: int
    images: Tensor
    labels: Tensor
    domains: Tensor | None = None


def draw_indices(seed: int, step: int, domain: int, n: int, size: int) -> IntArray:
    """Draw the images of a step from a domain of ``n`` images: ``size`` indices, with replacement."""
    # RandomState, because NumPy guarantees that its stream never changes.
    stream = np.random.RandomState(np.random.MT19937(np.random.SeedSequence((_INDICES, seed, step, domain))))
    return stream.randint(0, n, size=size, dtype=np.int64)


class TrainLoader:
    """Training batches: at every step ``batch_size`` images from each source domain, sampled with replacement.

    Pooled batches have ``batch_size`` images from all source domains together, each image equally likely.

    A batch is a pure function of the seed and the step. Steps count updates from 1.

    Args:
        splits: Training split of each source domain.
        image_spec: Size, channels and normalization of the images.
        batch_size: Images per domain and step, summed over all processes.
        seed: Seed of the batches and of the augmentation.
        rank: Rank of this process.
        world_size: Number of processes. Each gets an equal share of every domain's images, augmented as in one process.
        views: Number of independently augmented views of each image.
        pooled: Make pooled batches.
        augmentation: Settings of the augmentation. Default: DomainBed's.
        workers: Number of processes that read image files. Default: one per core, at most 8.
        device: Device on which batches are finished. Default: the CPU.
    """

    n_parts = 1
    """Number of parts over which the gradients of a step are accumulated."""

    def __init__(
        self,
        splits: Sequence[DomainSplit],
        image_spec: ImageSpec,
        batch_size: int,
        seed: int,
        *,
        rank: int = 0,
        world_size: int = 1,
        views: int = 1,
        pooled: bool = False,
        augmentation: Augmentation | None = None,
        workers: int | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if batch_size % world_size:
            raise DataError(
                f"the batch size{'' if pooled else ' per domain'} must be a multiple of the {world_size} "
                f"processes, got {batch_size}: change batch_size or the number of processes"
            )
        self.splits, self.image_spec, self.batch_size, self.seed = tuple(splits), image_spec, batch_size, seed
        self.views, self.device = views, torch.device(device or "cpu")
        share = batch_size // world_size
        self.positions = range(rank * share, (rank + 1) * share)
        self.in_memory = image_spec.low_res and all(isinstance(split.domain, ArrayDomain) for split in splits)
        self.workers = 0 if self.in_memory else default_workers() if workers is None else workers
        self.prepare: Callable[[Tensor], Tensor] = Normalize(image_spec, device)
        """From bytes on the device to images."""
        self._all_images = (
            torch.cat([_images_on_device(split.domain, device) for split in splits]) if self.in_memory else None
        )
        # Images are numbered through all domains: each domain's offset, and the label of every image.
        self._offsets = np.cumsum([0, *(len(split.domain) for split in splits)])[:-1]
        self._labels = torch.from_numpy(np.concatenate([split.domain.labels for split in splits])).to(self.device)
        self.pooled, self.augmentation = pooled, augmentation or Augmentation()
        self._transform = train_transform(image_spec, self.augmentation)
        # The images from which each group of a batch is drawn: those of one domain, or of all.
        self._groups = [offset + split.keys for offset, split in zip(self._offsets, splits, strict=True)]
        if pooled:
            self._groups = [np.concatenate(self._groups)]
            sizes = torch.tensor([len(split.domain) for split in splits])
            self._domains = torch.arange(len(splits)).repeat_interleave(sizes).to(self.device)

    def global_rows(self, step: int) -> IntArray:
        """Return the images at a step, of all processes together: ``[groups, batch size]``.

        Images are numbered through all domains. A group is a domain; a pooled batch has one group.
        """
        drawn = [
            rows[draw_indices(self.seed, step, i, len(rows), self.batch_size)] for i, rows in enumerate(self._groups)
        ]
        return np.stack(drawn)

    def rows(self, step: int) -> IntArray:
        """Return this process's images at a step, numbered through all domains."""
        return self.global_rows(step)[:, self.positions].reshape(-1)

    def domain_of(self, rows: IntArray) -> IntArray:
        """Return the numbers of the domains of images."""
        found: IntArray = np.searchsorted(self._offsets, rows, side="right") - 1
        return found

    def locate(self, rows: IntArray) -> list[tuple[Domain, int]]:
        """Return the domain of each image, and its index there."""
        numbers = self.domain_of(rows)
        keys = (rows - self._offsets[numbers]).tolist()
        return [(self.splits[number].domain, key) for number, key in zip(numbers, keys, strict=True)]

    def inputs(self, start: int, stop: int) -> Iterator[tuple[int, Inputs]]:
        """Iterate over ``(step, inputs)`` of steps ``start`` to ``stop``, inclusive; `finish` makes the batches.

        Inputs are on the host or on the device. Workers read them ahead.
        """
        steps = range(start, stop + 1)
        return zip(steps, read_ahead(self._inputs, steps, self.workers, self.device), strict=True)

    def finish(self, step: int, inputs: Inputs) -> Batch:
        """Make the batch from inputs that are on the device."""
        labels = self._labels.index_select(0, inputs["rows"])
        if self._all_images is not None:
            images = self._all_images.index_select(0, inputs["rows"])
            # Low-resolution images are not augmented, so all views are equal.
            images = images if self.views == 1 else images.repeat(self.views, 1, 1, 1)
        else:
            images = inputs["images"]
        return Batch(step, self._split_views(self.prepare(images)), labels, self._domain_labels(inputs))

    def parts(self, step: int, inputs: Inputs) -> Iterator[Batch]:
        """Make the batches over which the gradients of a step are accumulated: here, the whole batch."""
        yield self.finish(step, inputs)

    def compile(self, compile: Callable[[Any], Any]) -> None:
        """Compile what `finish` computes on the device; normalizing alone does not gain from it."""

    def _domain_labels(self, inputs: Inputs) -> Tensor | None:
        return self._domains.index_select(0, inputs["rows"]) if self.pooled else None

    def _inputs(self, step: int) -> Inputs:
        rows = {"rows": torch.from_numpy(self.rows(step))}
        return rows if self.in_memory else {**rows, "images": self._bytes(step)}

    def _bytes(self, step: int) -> Tensor:
        """Decode and augment the step's images; the views follow one another."""
        images = []
        groups = self.rows(step).reshape(-1, len(self.positions))
        for view in range(self.views):
            for group, rows in enumerate(groups):
                for position, image in zip(self.positions, self.locate(rows), strict=True):
                    seed = (self.seed, step, group, position, view)
                    images.append(augmented(*image, self._transform, seed))
        return torch.stack(images)

    def _split_views(self, images: Tensor) -> Tensor:
        return images if self.views == 1 else images.view(self.views, -1, *images.shape[1:])


class EvalLoader:
    """One pass over a split, in order, in batches of ``(images, labels)``.

    Args:
        split: Images to evaluate.
        image_spec: Size, channels and normalization of the images.
        batch_size: Images per batch.
        rank: Rank of this process.
        world_size: Number of processes; each evaluates every ``world_size``-th image.
        whole_batches: Give each process every ``world_size``-th batch instead, for models whose predictions depend on
            the other images of a batch.
        augmentation: Augment the images, as DomainBed does with source validation. Default: do not.
        seed: Seed of the augmentation.
        cache: Read the pixels from this cache instead of from files (unless they are augmented).
        keep: Keep the bytes on the device, so that later passes need no decoding.
        workers: Number of processes that read image files. Default: one per core, at most 8.
        device: Device of the batches. Default: the CPU.
    """

    def __init__(
        self,
        split: DomainSplit,
        image_spec: ImageSpec,
        batch_size: int = 256,
        *,
        rank: int = 0,
        world_size: int = 1,
        whole_batches: bool = False,
        augmentation: Augmentation | None = None,
        seed: int = 0,
        cache: ImageCache | None = None,
        keep: bool = False,
        workers: int | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        # The augmentation is seeded by global positions, so that it does not depend on the number of processes.
        positions = np.arange(len(split))
        self.positions = positions[(positions // (batch_size if whole_batches else 1)) % world_size == rank]
        self.keys: IntArray = split.keys[self.positions]
        self.split, self.image_spec, self.batch_size = split, image_spec, batch_size
        self.device = torch.device(device or "cpu")
        self.in_memory = image_spec.low_res and isinstance(split.domain, ArrayDomain)
        self._cache = cache if augmentation is None else None
        needs_no_files = self.in_memory or self._cache is not None
        self.workers = 0 if needs_no_files else default_workers() if workers is None else workers
        self._augments, self._seed = augmentation is not None, seed
        self._transform = (
            eval_transform(image_spec) if augmentation is None else train_transform(image_spec, augmentation)
        )
        self._normalize = Normalize(image_spec, device)
        self._all_images = _images_on_device(split.domain, device) if self.in_memory else None
        self._kept: list[Tensor] | None = None
        self._keep = keep and not self.in_memory

    def __len__(self) -> int:
        """Return the number of images that this process evaluates."""
        return len(self.keys)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        labels = self.labels()
        for start, images in zip(self._starts(), self._bytes_on_device(), strict=True):
            yield self._normalize(images), labels[start : start + self.batch_size]

    def bytes(self) -> Tensor:
        """Return all images on the device as bytes, not normalized."""
        return torch.cat(list(self._bytes_on_device()))

    def labels(self) -> Tensor:
        """Return the labels of all images on the device."""
        return torch.from_numpy(self.split.domain.labels[self.keys]).to(self.device)

    def _bytes_on_device(self) -> Iterator[Tensor]:
        if self._kept is not None:
            yield from self._kept
            return
        kept: list[Tensor] = []
        for images in self._read():
            images = images.to(self.device, non_blocking=True)
            if self._keep:
                kept.append(images)
            yield images
        if self._keep:
            self._kept = kept

    def _starts(self) -> range:
        return range(0, len(self.keys), self.batch_size)

    def _read(self) -> Iterator[Tensor]:
        # Few images are read sooner than a worker starts.
        workers = min(self.workers, len(self._starts())) if len(self.keys) > 32 else 0
        return read_ahead(self._bytes, self._starts(), workers, self.device)

    def _bytes(self, start: int) -> Tensor:
        """Return the images of the batch that starts at ``start``."""
        keys = self.keys[start : start + self.batch_size]
        if self._all_images is not None:
            return self._all_images[torch.from_numpy(keys).to(self._all_images.device)]
        if self._cache is not None:
            rows = self._cache.starts[self.split.name] + keys
            pixels = torch.from_numpy(np.ascontiguousarray(self._cache.images[rows])).to(self.device)
            return gpu_augment.resize_bytes(pixels, self._cache.sizes[rows], self.image_spec.size)
        if not self._augments:
            return torch.stack([self._transform(to_pil(self.split.domain.image(key))) for key in keys.tolist()])
        positions = self.positions[start : start + self.batch_size].tolist()
        return torch.stack(
            [
                augmented(self.split.domain, key, self._transform, (self._seed, position))
                for position, key in zip(positions, keys.tolist(), strict=True)
            ]
        )


def to_device(inputs: Inputs, device: torch.device) -> Inputs:
    """Copy inputs to a device."""
    return {name: value.to(device, non_blocking=True) for name, value in inputs.items()}


def _images_on_device(domain: Domain, device: torch.device | str | None) -> Tensor:
    """Return all images of an in-memory domain on the device as bytes, channels first."""
    assert isinstance(domain, ArrayDomain)
    images: ByteArray = np.ascontiguousarray(domain.images.transpose(0, 3, 1, 2))
    return torch.from_numpy(images).to(device or "cpu")


def augmented(domain: Domain, key: int, transform: Transform, seed: tuple[int, ...]) -> Tensor:
    """Augment one image with a random stream of its own."""
    with seeded(seed):
        return transform(to_pil(domain.image(key)))


@contextmanager
def seeded(seed: tuple[int, ...]) -> Iterator[None]:
    """Draw the augmentation of one image in the block; torch's global random state is restored."""
    word = int(np.random.SeedSequence((_AUGMENTATION, *seed)).generate_state(1, np.uint64)[0])
    # torchvision draws from the CPU's default generator. torch.manual_seed would reseed every GPU as well.
    generator = torch.default_generator
    before = generator.get_state()
    try:
        generator.manual_seed(word >> 1)
        yield
    finally:
        generator.set_state(before)
