"""Batches: a sampler chooses the images of each step, a source of images makes them, and the loader deals them to
processes and parts.

Transforms belong to splits, never to domains. For training, build `Loader` from a `swad.testbed.data.sampling.Sampler`
and a `swad.testbed.data.images.ImageSource`; `EvalLoader` passes once over a split and uses the same sources.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from swad.gpu.cuda_graph import Inputs, to_device
from swad.testbed.data.augmentation import Augmentation
from swad.testbed.data.cache import ImageCache
from swad.testbed.data.domains import ImageSpec, IntArray
from swad.testbed.data.images import ArrayImages, CachedBytes, FileImages, ImageSource, default_workers, in_memory
from swad.testbed.data.sampling import Draw, Pool, Sampler, Seed
from swad.testbed.data.splits import DomainSplit
from swad.testbed.data.transforms import Normalize, eval_transform, train_transform
from swad.util.images import DataError

T = TypeVar("T")
FEW_IMAGES = 32
"""As many photographs are decoded in this process before two workers have started: both take about 0.1 s."""


class Batch(NamedTuple):
    """The images of one step, one domain after another: ``[domains × per domain, channels, height, width]``.

    With several views, images have one more leading dimension; the first view equals that of a single-view batch.
    In a pooled batch the images are in any order, and ``domains`` has the number of each image's domain.
    """

    step: int
    images: Tensor
    labels: Tensor
    domains: Tensor | None = None


class Loader:
    """Training batches: those images that a sampler chooses, from a source of images. Steps count updates from 1.

    A step is read in parts of at most ``micro_batch`` images, one part per call of a worker: memory and the delay of
    the first step do not grow with the batch, and gradients are accumulated over the same parts.

    Args:
        pool: The training images.
        sampler: Chooses the images of a step.
        images: Makes the images.
        rank: Rank of this process.
        world_size: Number of processes. Each gets an equal share of every group's images, augmented as in one process,
            so the batch size must be a multiple of it.
        micro_batch: Most images of each group in one part of this process's share. Default: a step is one part.
        device: Device on which batches are finished.
    """

    n_parts: int
    """Number of parts over which the gradients of a step are accumulated."""

    def __init__(
        self,
        pool: Pool,
        sampler: Sampler,
        images: ImageSource,
        *,
        rank: int = 0,
        world_size: int = 1,
        micro_batch: int | None = None,
        device: torch.device,
    ) -> None:
        self.pool, self.sampler, self.images, self.device = pool, sampler, images, device
        share = sampler.batch_size // world_size
        self.positions = range(rank * share, (rank + 1) * share)
        self.n_parts = _equal_parts(share, micro_batch or share)
        self._labels = torch.from_numpy(pool.labels).to(device)
        self._domains = None
        if sampler.names_domains:
            self._domains = torch.arange(len(pool.sizes)).repeat_interleave(torch.tensor(pool.sizes)).to(device)

    def rows(self, step: int) -> IntArray:
        """Return the rows of this process's images at a step, one group after another."""
        return Draw(step, self.sampler.rows(step), self.positions, self.sampler.seed).own_rows

    def inputs(self, start: int, stop: int) -> Iterator[tuple[int, Inputs]]:
        """Iterate over ``(step, inputs)`` of steps ``start`` to ``stop``, inclusive; `parts` makes the batches.

        The inputs of part ``i`` have names that end with ``.i``. They are on the host or on the device.
        """
        steps = range(start, stop + 1)
        keys = ((step, part) for step in steps for part in range(self.n_parts))
        read = self.images.read(self._draw, keys)
        parts = ((step, list(islice(read, self.n_parts))) for step in steps)
        if self.device.type == "cuda" and self.images.copies_ahead:
            return copied_ahead(parts, self.device, self._place)
        return ((step, self._place(inputs)) for step, inputs in parts)

    def parts(self, step: int, inputs: Inputs) -> Iterator[Batch]:
        """Make the batch of each part from inputs that are on the device, one at a time."""
        for part in range(self.n_parts):
            suffix = f".{part}"
            own = {name.removesuffix(suffix): value for name, value in inputs.items() if name.endswith(suffix)}
            images, rows = self.images.finish(own), own["rows"]
            if self.images.views > 1:
                images = images.view(self.images.views, -1, *images.shape[1:])
            domains = None if self._domains is None else self._domains.index_select(0, rows)
            yield Batch(step, images, self._labels.index_select(0, rows), domains)

    def _draw(self, key: tuple[int, int]) -> Draw:
        step, part = key
        size = len(self.positions) // self.n_parts
        first = self.positions.start + part * size
        return Draw(step, self.sampler.rows(step), range(first, first + size), self.sampler.seed)

    def _place(self, parts: list[Inputs]) -> Inputs:
        placed = [self.images.place(inputs) for inputs in parts]
        return {f"{name}.{i}": value for i, inputs in enumerate(placed) for name, value in inputs.items()}


def _equal_parts(share: int, most: int) -> int:
    """Return into how many parts of one size and at most ``most`` images a share is divided."""
    fewest = math.ceil(share / most)
    n_parts = next(n for n in range(fewest, share + 1) if share % n == 0)
    if n_parts > fewest and 2 * (share // n_parts) < most:
        raise DataError(
            f"a batch is computed in equal parts of up to {most} images, but {share} divide only into parts "
            f"of {share // n_parts}: choose a batch_size that is a multiple of micro_batch"
        )
    return n_parts


def copied_ahead(
    steps: Iterable[tuple[int, T]], device: torch.device, place: Callable[[T], Inputs]
) -> Iterator[tuple[int, Inputs]]:
    """Place the inputs of the next step on the GPU in a stream of their own, while the GPU computes the current step.

    Args:
        steps: The inputs in host memory.
        device: The GPU.
        place: Places the inputs of a step.
    """
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    waiting: tuple[int, Inputs, torch.cuda.Event] | None = None
    for step, inputs in steps:
        with torch.cuda.stream(stream):
            placed = place(inputs)
        if waiting is not None:
            yield _arrived(*waiting)
        waiting = (step, placed, stream.record_event())
    if waiting is not None:
        yield _arrived(*waiting)


def _arrived(step: int, inputs: Inputs, event: torch.cuda.Event) -> tuple[int, Inputs]:
    current = torch.cuda.current_stream()
    current.wait_event(event)
    for value in inputs.values():
        value.record_stream(current)  # so that its memory is not reused before the current stream has read it
    return step, inputs


class EvalLoader:
    """One pass over a split, in order, in batches of ``(images, labels)``.

    Args:
        split: ImageSource to evaluate.
        image_spec: Size, channels and normalization of the images.
        batch_size: ImageSource per batch.
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
        self.positions: IntArray = positions[(positions // (batch_size if whole_batches else 1)) % world_size == rank]
        self.keys: IntArray = split.keys[self.positions]
        self.split, self.image_spec, self.batch_size = split, image_spec, batch_size
        self.device = torch.device(device or "cpu")
        self._seed = None if augmentation is None else seed
        self.normalize = Normalize(image_spec, device)
        """Returns bytes as a network takes them."""
        pool = Pool([split])
        is_array = in_memory(pool, image_spec)
        self._images: ImageSource
        if is_array:
            self._images = ArrayImages(pool, self.normalize, device=self.device)
        elif cache is not None and augmentation is None:
            self._images = CachedBytes(cache, pool, image_spec.size, self.device)
        else:
            augments = augmentation is not None
            transform = train_transform(image_spec, augmentation) if augments else eval_transform(image_spec)
            workers = default_workers() if workers is None else workers
            workers = min(workers, len(self._starts())) if len(self) > FEW_IMAGES else 0
            self._images = FileImages(pool, transform, self.normalize, workers=workers, device=self.device)
        self._kept: list[Tensor] | None = None
        self._keep = keep and not is_array

    def __len__(self) -> int:
        """Return the number of images that this process evaluates."""
        return len(self.keys)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        labels = self.labels()
        for start, images in zip(self._starts(), self.byte_batches(), strict=True):
            yield self.normalize(images), labels[start : start + self.batch_size]

    def bytes(self) -> Tensor:
        """Return all images on the device as bytes, not normalized."""
        return torch.cat(list(self.byte_batches()))

    def labels(self) -> Tensor:
        """Return the labels of all images on the device."""
        return torch.from_numpy(self.split.domain.labels[self.keys]).to(self.device)

    def byte_batches(self) -> Iterator[Tensor]:
        """Yield the images batch by batch on the device as bytes, not normalized."""
        if self._kept is not None:
            yield from self._kept
            return
        kept: list[Tensor] = []
        for inputs in self._images.read(self._draw, self._starts()):
            images = self._images.bytes(to_device(inputs, self.device))
            if self._keep:
                kept.append(images)
            yield images
        if self._keep:
            self._kept = kept

    def _starts(self) -> range:
        return range(0, len(self), self.batch_size)

    def _draw(self, start: int) -> Draw:
        """Return the images of the batch that starts at ``start``."""
        return Draw(0, self.split.keys[None], self.positions[start : start + self.batch_size], self._image_seed)

    def _image_seed(self, step: int, group: int, position: int, view: int) -> Seed | None:
        return None if self._seed is None else (self._seed, position)
