"""Training batches of a large dataset: epochs without replacement, read from files or shards while training.

The images of all source domains are one pool. The order of an epoch is a permutation drawn from (seed, epoch), and the
augmentation of an image from (seed, step, position), so a run resumes in mid-epoch without replaying anything. Images
that do not fill a last batch are left out of their epoch.

A step is read in parts of at most ``micro_batch`` images, one part per call of a worker: memory and the delay of the
first step do not grow with the batch, and gradients are accumulated over the same parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from swad.data.domains import DataError, ImageSpec, IntArray
from swad.data.loaders import (
    Batch,
    FunctionDataset,
    Inputs,
    Steps,
    TrainLoader,
    augmented,
    without_worker_traceback,
)
from swad.data.splits import DomainSplit

_EPOCHS = 5  # the first number of the seed; see `swad.data.loaders`


class EpochLoader(TrainLoader):
    """A `TrainLoader` that goes through all images once per epoch, in a new order each time.

    Args:
        batch_size: Images per step, of all domains and processes together.
        micro_batch: Most images of this process in one part of a step. Default: the whole step is one part.
        options: Further options of `TrainLoader`.
    """

    def __init__(
        self,
        splits: Sequence[DomainSplit],
        image_spec: ImageSpec,
        batch_size: int,
        seed: int,
        *,
        micro_batch: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(splits, image_spec, batch_size, seed, **options)
        self._pool = np.concatenate(
            [offset + split.keys for offset, split in zip(self._offsets, self.splits, strict=True)]
        )
        self.steps_per_epoch = steps_per_epoch(len(self._pool), batch_size)
        share = len(self.positions)
        self.n_parts = math.ceil(share / (micro_batch or share))
        if share % self.n_parts:
            raise DataError(
                f"a batch must be a multiple of its parts, got {share} images per process in parts of up to "
                f"{micro_batch}: choose a micro_batch that divides {share}"
            )
        self._order: tuple[int, IntArray] = (-1, self._pool)
        if self.device.type == "cuda":
            self.prepare = _channels_last(self.prepare)

    def rows(self, step: int) -> IntArray:
        """Return this process's images at a step, numbered through all domains."""
        epoch, position = divmod(step - 1, self.steps_per_epoch)
        if self._order[0] != epoch:
            self._order = (epoch, self._pool[_permutation(self.seed, epoch, len(self._pool))])
        start = position * self.batch_size
        return self._order[1][start + self.positions.start : start + self.positions.stop]

    def inputs(self, start: int = 1, stop: int | None = None) -> Iterator[tuple[int, Inputs]]:
        """Iterate over ``(step, inputs)`` with the tensors of all parts, on the device if that is a GPU."""
        steps = ((step, inputs) for step, inputs in zip(Steps(start, stop), self._steps(start, stop), strict=True))
        return copied_ahead(steps, self.device) if self.device.type == "cuda" else steps

    def parts(self, step: int, inputs: Inputs) -> Iterator[Batch]:
        """Make the batch of each part from inputs that are on the device, one at a time."""
        for part in range(self.n_parts):
            names = [name for name in inputs if name.endswith(f".{part}")]
            yield super().finish(step, {name.rpartition(".")[0]: inputs[name] for name in names})

    def finish(self, step: int, inputs: Inputs) -> Batch:
        """Make the whole batch from inputs that are on the device."""
        parts = list(self.parts(step, inputs))
        if len(parts) == 1:
            return parts[0]
        return Batch(step, torch.cat([part.images for part in parts]), torch.cat([part.labels for part in parts]))

    def compile(self, compile: Callable[[Any], Any]) -> None:
        """Compile what `finish` computes on the device."""
        self.prepare = compile(self.prepare)

    def _inputs(self, step: int) -> Inputs:
        return _merged([self._part((step, part)) for part in range(self.n_parts)])

    def _steps(self, start: int, stop: int | None) -> Iterator[Inputs]:
        if self.workers == 0:
            yield from map(self._inputs, Steps(start, stop))
            return
        loader: DataLoader[Inputs] = DataLoader(
            FunctionDataset(self._part),  # type: ignore[arg-type]
            batch_size=None,
            sampler=_Parts(start, stop, self.n_parts),
            num_workers=self.workers,
            prefetch_factor=2,
            pin_memory=self.device.type == "cuda",
        )
        with without_worker_traceback():
            parts = iter(loader)
            while step := list(islice(parts, self.n_parts)):
                yield _merged(step)

    def _part(self, item: tuple[int, int]) -> Inputs:
        """Decode and augment one part of a step."""
        step, part = item
        size = len(self.positions) // self.n_parts
        rows = self.rows(step)[part * size : (part + 1) * size]
        inputs = {"rows": torch.from_numpy(rows)}
        if self.in_memory:
            return inputs
        domains = np.searchsorted(self._offsets, rows, side="right") - 1
        first = self.positions.start + part * size
        images = [
            augmented(self.splits[i].domain, key, self._transform, (self.seed, step, first + position))
            for position, (i, key) in enumerate(zip(domains, (rows - self._offsets[domains]).tolist(), strict=True))
        ]
        return {**inputs, "images": torch.stack(images)}


def steps_per_epoch(n_images: int, batch_size: int) -> int:
    """Return the number of full batches in an epoch.

    >>> steps_per_epoch(1_281_167, 2048)
    625
    """
    if n_images < batch_size:
        raise DataError(f"a batch must not exceed the {n_images:,} training images, got {batch_size}: lower batch_size")
    return n_images // batch_size


def copied_ahead(steps: Iterable[tuple[int, Inputs]], device: torch.device) -> Iterator[tuple[int, Inputs]]:
    """Copy the inputs of the next step to the GPU on a stream of their own, while the GPU computes the current step."""
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    waiting: tuple[int, Inputs, torch.cuda.Event] | None = None
    for step, inputs in steps:
        with torch.cuda.stream(stream):
            copied = {name: value.to(device, non_blocking=True) for name, value in inputs.items()}
        if waiting is not None:
            yield _arrived(*waiting)
        waiting = (step, copied, stream.record_event())
    if waiting is not None:
        yield _arrived(*waiting)


def _arrived(step: int, inputs: Inputs, event: torch.cuda.Event) -> tuple[int, Inputs]:
    current = torch.cuda.current_stream()
    current.wait_event(event)
    for value in inputs.values():
        value.record_stream(current)  # so that its memory is not reused before the current stream has read it
    return step, inputs


def _channels_last(normalize: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return images in the layout of the network, so that the compiler normalizes and transposes in one pass."""

    def prepare(images: Tensor) -> Tensor:
        return normalize(images).contiguous(memory_format=torch.channels_last)

    return prepare


def _permutation(seed: int, epoch: int, n: int) -> IntArray:
    # RandomState, because NumPy guarantees that its stream never changes.
    stream = np.random.RandomState(np.random.MT19937(np.random.SeedSequence((_EPOCHS, seed, epoch))))
    return stream.permutation(n)


def _merged(parts: Sequence[Inputs]) -> Inputs:
    return {f"{name}.{i}": value for i, part in enumerate(parts) for name, value in part.items()}


class _Parts:
    """A sampler of ``(step, part)``."""

    def __init__(self, start: int, stop: int | None, n_parts: int) -> None:
        self.steps, self.n_parts = Steps(start, stop), n_parts

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return ((step, part) for step in self.steps for part in range(self.n_parts))
