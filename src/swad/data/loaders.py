"""Batches that depend on the seed and the step alone, so that a run goes on anywhere as if it had never stopped.

Which images a step sees, and how each is augmented, is drawn from ``(seed, step, domain, position)``. Nothing is
drawn in sequence: the number of workers, the number of processes and earlier steps cannot matter.

Transforms belong to splits, never to domains. Images stay bytes until they reach the device, where a whole batch is
scaled and normalized at once: a quarter of the traffic, and the same numbers.

A batch is made in two halves. Its *inputs* are tensors of fixed shapes from anywhere: decoded bytes, or only the
numbers of images that lie on the device already. `finish` makes images and labels of them on the device, without a look
at the host, so that a CUDA graph can hold it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from swad.data.domains import ArrayDomain, ByteArray, DataError, Domain, ImageSpec, IntArray
from swad.data.splits import DomainSplit, subsample
from swad.data.transforms import Normalize, Transform, _pil, eval_transform, train_transform
from swad.util.cores import cores

if TYPE_CHECKING:
    from swad.data.cache import ImageCache


from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass
Inputs = Mapping[str, Tensor]
"""What a batch is made of: tensors of the same shapes at every step."""

# Leading numbers keep the streams apart: SeedSequence takes (a, b) and (a, b, 0) for the same.
_INDICES, _AUGMENTATION = 1, 2


class Batch(NamedTuple):
    """One step's images, domain after domain: ``[domains × per domain, channels, height, width]``.

    With several views there is one more dimension in front, the first view being what one view alone would be.
    """

    step: int
    images: Tensor
    labels: Tensor


def draw_indices(seed: int, step: int, domain: int, n: int, size: int) -> IntArray:
    """The images a step takes from a domain of ``n``: ``size`` of them, with replacement."""
    # RandomState is the generator whose stream NumPy has promised to keep.
    stream = np.random.RandomState(np.random.MT19937(np.random.SeedSequence((_INDICES, seed, step, domain))))
    return stream.randint(0, n, size=size, dtype=np.int64)


class TrainLoader:
    """The batches of a run: ``batch_size`` images of every source domain at every step, with replacement.

    ``at(step)`` is a pure function; ``iterate(start, stop)`` gives the same batches in order, and ``inputs`` what they
    are made of, read ahead by ``workers`` processes where images come from files. Steps count updates from 1. Of
    ``world`` processes each gets its share of every domain's images, augmented as they would be in one process.
    """

    def __init__(
        self,
        parts: Sequence[DomainSplit],
        image_spec: ImageSpec,
        batch_size: int,
        seed: int,
        *,
        rank: int = 0,
        world: int = 1,
        views: int = 1,
        workers: int | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if not parts:
            raise DataError("training needs at least 1 source domain, got none")
        _check_ranks(rank, world)
        if batch_size < 1 or batch_size % world:
            raise DataError(
                f"{world} processes share the images of every domain evenly, so the batch size must be a positive "
                f"multiple of {world}; got {batch_size}"
            )
        if seed < 0 or views < 1:
            raise DataError(f"the seed must be 0 or more and the views 1 or more, got {seed} and {views}")
        for part in parts:
            if not len(part):
                raise DataError(f"domain {part.name} has no training images; add some or leave it away")
        self.parts, self.image_spec, self.batch_size, self.seed = tuple(parts), image_spec, batch_size, seed
        self.views, self.device = views, torch.device(device or "cpu")
        share = batch_size // world
        self.positions = range(rank * share, (rank + 1) * share)
        self.in_memory = image_spec.low_res and all(isinstance(part.domain, ArrayDomain) for part in parts)
        self.workers = 0 if self.in_memory else default_workers() if workers is None else workers
        self._normalize = Normalize(image_spec, device)
        self._held = torch.cat([_held(part.domain, device) for part in parts]) if self.in_memory else None
        # Where each domain begins among all images, and the label of each.
        self._begins = np.cumsum([0, *(len(part.domain) for part in parts)])[:-1]
        self._labels = torch.from_numpy(np.concatenate([part.domain.labels for part in parts])).to(self.device)
        self._transform = train_transform(image_spec)

    def keys(self, step: int) -> list[IntArray]:
        """This process's images of every domain at a step, as keys of the domains."""
        chosen = slice(self.positions.start, self.positions.stop)
        return [keys[chosen] for keys in self.whole_keys(step)]

    def whole_keys(self, step: int) -> list[IntArray]:
        """All processes' images of every domain at a step."""
        if step < 1:
            raise DataError(f"steps count updates from 1, got {step}")
        return [
            part.keys[draw_indices(self.seed, step, i, len(part), self.batch_size)] for i, part in enumerate(self.parts)
        ]

    def rows(self, step: int) -> IntArray:
        """This process's images at a step, counted through all domains."""
        return np.concatenate([begin + keys for begin, keys in zip(self._begins, self.keys(step), strict=True)])

    def at(self, step: int) -> Batch:
        """The batch of a step, made here and now."""
        return self._batch(step, self._inputs(step))

    def iterate(self, start: int = 1, stop: int | None = None) -> Iterator[Batch]:
        """The batches of steps ``start`` to ``stop``, both included; without end where ``stop`` is None."""
        for step, inputs in self.inputs(start, stop):
            yield self._batch(step, inputs)

    def inputs(self, start: int = 1, stop: int | None = None) -> Iterator[tuple[int, Inputs]]:
        """What the batches of these steps are made of, on the host or on the device, with their steps."""
        if self.workers == 0:
            for step in _Steps(start, stop):
                yield step, self._inputs(step)
            return
        loader: DataLoader[Inputs] = DataLoader(
            _ByKey(self._inputs),  # type: ignore[arg-type]
            batch_size=None,
            sampler=_Steps(start, stop),
            num_workers=self.workers,
            prefetch_factor=2,
            pin_memory=_on_gpu(self.device),
        )
        with _in_one_line():
            yield from zip(_Steps(start, stop), loader, strict=True)

    def finish(self, step: int, inputs: Inputs) -> Batch:
        """Images and labels of inputs that are on the device."""
        labels = self._labels.index_select(0, inputs["rows"])
        if self._held is not None:
            images = self._held.index_select(0, inputs["rows"])
            # Small images are not augmented, so all views are one.
            images = images if self.views == 1 else images.repeat(self.views, 1, 1, 1)
        else:
            images = inputs["images"]
        return Batch(step, self._viewed(self._normalize(images)), labels)

    def __iter__(self) -> Iterator[Batch]:
        return self.iterate()

    def _batch(self, step: int, inputs: Inputs) -> Batch:
        return self.finish(step, {name: value.to(self.device, non_blocking=True) for name, value in inputs.items()})

    def _inputs(self, step: int) -> Inputs:
        rows = {"rows": torch.from_numpy(self.rows(step))}
        return rows if self.in_memory else {**rows, "images": self._bytes(step)}

    def _bytes(self, step: int) -> Tensor:
        """The step's images as bytes, all views after one another."""
        keys = self.keys(step)
        rows = []
        for view in range(self.views):
            for i, (part, mine) in enumerate(zip(self.parts, keys, strict=True)):
                for position, key in zip(self.positions, mine.tolist(), strict=True):
                    where = (self.seed, step, i, position, view)
                    rows.append(_augmented(part.domain, key, self._transform, where))
        return torch.stack(rows)

    def _viewed(self, images: Tensor) -> Tensor:
        return images if self.views == 1 else images.view(self.views, -1, *images.shape[1:])


class EvalLoader:
    """One pass over a part, in order, in large batches of ``(images, labels)``.

    ``n`` evaluates a stated subsample: the first ``n`` images of a shuffle by ``seed``. Of ``world`` processes each
    passes over every ``world``-th image, or with ``whole`` every ``world``-th batch, for models whose predictions
    depend on what stands in a batch together. ``augment`` gives a seed to augment with (DomainBed augments its source
    validation). ``cache`` takes the pixels from there instead of from the files. ``keep`` holds the bytes on the
    device, so that later passes cost no decoding.
    """

    def __init__(
        self,
        part: DomainSplit,
        image_spec: ImageSpec,
        batch_size: int = 256,
        *,
        n: int | None = None,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        whole: bool = False,
        augment: int | None = None,
        cache: ImageCache | None = None,
        keep: bool = False,
        workers: int | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        _check_ranks(rank, world)
        if batch_size < 1:
            raise DataError(f"the batch size must be at least 1, got {batch_size}")
        chosen = subsample(part.keys, n, seed)
        # Positions go along with the keys, so that augmentation does not depend on the number of processes.
        positions = np.arange(len(chosen))
        self.positions = positions[(positions // (batch_size if whole else 1)) % world == rank]
        self.keys: IntArray = chosen[self.positions]
        self.part, self.image_spec, self.batch_size, self.device = (
            part,
            image_spec,
            batch_size,
            torch.device(device or "cpu"),
        )
        self.in_memory = image_spec.low_res and isinstance(part.domain, ArrayDomain)
        self._cache = cache if augment is None else None
        here = self.in_memory or self._cache is not None
        self.workers = 0 if here else default_workers() if workers is None else workers
        self._augment = augment
        self._transform = eval_transform(image_spec) if augment is None else train_transform(image_spec)
        self._normalize = Normalize(image_spec, device)
        self._held = _held(part.domain, device) if self.in_memory else None
        self._kept: list[Tensor] | None = None
        self._keep = keep and not self.in_memory

    def __len__(self) -> int:
        """The number of images this process passes over."""
        return len(self.keys)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        labels = self.labels()
        for start, images in zip(self._starts(), self._on_device(), strict=True):
            yield self._normalize(images), labels[start : start + self.batch_size]

    def bytes(self) -> Tensor:
        """All images on the device, not normalized."""
        return torch.cat(list(self._on_device()))

    def labels(self) -> Tensor:
        """The labels of all images, on the device."""
        return torch.from_numpy(self.part.domain.labels[self.keys]).to(self.device)

    def _on_device(self) -> Iterator[Tensor]:
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
        if self.workers == 0 or len(self.keys) <= 32:
            yield from map(self._bytes, self._starts())
            return
        loader: DataLoader[Tensor] = DataLoader(
            _ByKey(self._bytes),  # type: ignore[arg-type]
            batch_size=None,
            sampler=self._starts(),
            num_workers=min(self.workers, len(self._starts())),
            prefetch_factor=2,
            pin_memory=_on_gpu(self.device),
        )
        with _in_one_line():
            yield from loader

    def _bytes(self, start: int) -> Tensor:
        keys = self.keys[start : start + self.batch_size]
        if self._held is not None:
            return self._held[torch.from_numpy(keys).to(self._held.device)]
        if self._cache is not None:
            from swad.data.cached_loader import evaluation_bytes

            return evaluation_bytes(self._cache, self.part.name, keys, self.image_spec.size, self.device)
        if self._augment is None:
            return torch.stack([self._transform(_pil(self.part.domain, key)) for key in keys.tolist()])
        positions = self.positions[start : start + self.batch_size].tolist()
        return torch.stack(
            [
                _augmented(self.part.domain, key, self._transform, (self._augment, position))
                for position, key in zip(positions, keys.tolist(), strict=True)
            ]
        )


def default_workers() -> int:
    """As many reading processes as there are cores to this one, but not more than 8."""
    return min(8, cores())


class _ByKey:
    """What DataLoader asks of a dataset, over a function."""

    def __init__(self, function: Callable[[int], Any]) -> None:
        self.function = function

    def __getitem__(self, key: int) -> Any:
        return self.function(key)


class _Steps:
    """Steps from ``start`` to ``stop`` included, or without end."""

    def __init__(self, start: int, stop: int | None) -> None:
        if start < 1:
            raise DataError(f"steps count updates from 1, got {start}")
        self.start, self.stop = start, stop

    def __iter__(self) -> Iterator[int]:
        step = self.start
        while self.stop is None or step <= self.stop:
            yield step
            step += 1


def _held(domain: Domain, device: torch.device | str | None) -> Tensor:
    """All images of an in-memory domain on the device, channels first, still bytes."""
    assert isinstance(domain, ArrayDomain)
    images: ByteArray = np.ascontiguousarray(domain.images.transpose(0, 3, 1, 2))
    return torch.from_numpy(images).to(device or "cpu")


def _on_gpu(device: torch.device | str | None) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def _check_ranks(rank: int, world: int) -> None:
    if not 0 <= rank < world:
        raise DataError(f"the rank must be between 0 and {world - 1} for {world} processes, got {rank}")


@contextmanager
def _in_one_line() -> Iterator[None]:
    """What a worker says of a bad image, without the worker's traceback that torch puts around it."""
    try:
        yield
    except DataError as error:
        name = f"{DataError.__module__}.{DataError.__name__}: "
        raise DataError(str(error).strip().splitlines()[-1].removeprefix(name)) from None


def _augmented(domain: Domain, key: int, transform: Transform, where: tuple[int, ...]) -> Tensor:
    """One image, augmented by its own stream; the process's own random state is left as it was."""
    word = int(np.random.SeedSequence((_AUGMENTATION, *where)).generate_state(1, np.uint64)[0])
    # torchvision draws from the CPU's default generator. torch.manual_seed would reseed every GPU as well.
    generator = torch.default_generator
    before = generator.get_state()
    try:
        generator.manual_seed(word >> 1)
        return transform(_pil(domain, key))
    finally:
        generator.set_state(before)
