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

from swad.testbed.data.device_decode import DeviceDecoder
from swad.testbed.data.domains import ImageSpec, IntArray
from swad.testbed.data.loaders import Batch, Inputs, TrainLoader, augmented, to_device
from swad.testbed.data.splits import DomainSplit
from swad.testbed.data.workers import read_ahead
from swad.util.images import DataError

_EPOCHS = 6  # the first number of the seed; see `swad.testbed.data.loaders`


class EpochLoader(TrainLoader):
    """A `TrainLoader` that goes through all images once per epoch, in a new order each time.

    Args:
        batch_size: Images per step, of all domains and processes together.
        micro_batch: Most images of this process in one part of a step. Default: the whole step is one part.
        decode_on_device: Let the device decode JPEG files; see `swad.testbed.data.device_decode`. Workers only read
            them.
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
        decode_on_device: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(splits, image_spec, batch_size, seed, **options)
        self._pool = np.concatenate(self._groups)
        self.steps_per_epoch = steps_per_epoch(len(self._pool), batch_size)
        share = len(self.positions)
        fewest = math.ceil(share / (micro_batch or share))
        self.n_parts = next(n for n in range(fewest, share + 1) if share % n == 0)  # all of one size
        if self.n_parts > fewest and 2 * (share // self.n_parts) < (micro_batch or share):
            raise DataError(
                f"a batch is computed in equal parts of up to {micro_batch} images, but {share} divide only into parts "
                f"of {share // self.n_parts}: choose a batch_size that is a multiple of micro_batch"
            )
        self._order: tuple[int, IntArray] = (-1, self._pool)
        self._decoder = None
        if decode_on_device and not image_spec.low_res:
            self._decoder = DeviceDecoder(image_spec.size, self.augmentation, self.device)
        if self.device.type == "cuda":
            self.prepare = _channels_last(self.prepare)

    def rows(self, step: int) -> IntArray:
        """Return this process's images at a step, numbered through all domains."""
        epoch, position = divmod(step - 1, self.steps_per_epoch)
        if self._order[0] != epoch:
            self._order = (epoch, self._pool[_permutation(self.seed, epoch, len(self._pool))])
        start = position * self.batch_size
        return self._order[1][start + self.positions.start : start + self.positions.stop]

    def inputs(self, start: int, stop: int) -> Iterator[tuple[int, Inputs]]:
        """Iterate over ``(step, inputs)`` with the tensors of all parts, on the device if that is a GPU."""
        steps = range(start, stop + 1)
        read = zip(steps, self._steps(steps), strict=True)
        if self.device.type == "cuda":
            return copied_ahead(read, self.device, self._place)
        return ((step, self._place(inputs)) for step, inputs in read)

    def parts(self, step: int, inputs: Inputs) -> Iterator[Batch]:
        """Make the batch of each part from inputs that are on the device, one at a time."""
        for part in range(self.n_parts):
            names = [name for name in inputs if name.endswith(f".{part}")]
            yield self.finish(step, {name.rpartition(".")[0]: inputs[name] for name in names})

    def compile(self, compile: Callable[[Any], Any]) -> None:
        """Compile what `parts` computes on the device."""
        self.prepare = compile(self.prepare)

    def _place(self, inputs: Inputs) -> Inputs:
        """Copy what workers read to the device; encoded images are decoded there."""
        if self._decoder is None:
            return to_device(inputs, self.device)
        placed: dict[str, Tensor] = {}
        for i in range(self.n_parts):
            encoded = (inputs[f"{name}.{i}"] for name in ("encoded", "lengths", "crops"))
            placed |= {f"rows.{i}": inputs[f"rows.{i}"].to(self.device), f"images.{i}": self._decoder(*encoded)}
        return placed

    def _steps(self, steps: Iterable[int]) -> Iterator[Inputs]:
        numbers = ((step, part) for step in steps for part in range(self.n_parts))
        read = read_ahead(self._part, numbers, self.workers, self.device)
        while parts := list(islice(read, self.n_parts)):
            yield {f"{name}.{i}": value for i, part in enumerate(parts) for name, value in part.items()}

    def _part(self, item: tuple[int, int]) -> Inputs:
        """Decode and augment one part of a step."""
        step, part = item
        size = len(self.positions) // self.n_parts
        rows = self.rows(step)[part * size : (part + 1) * size]
        inputs = {"rows": torch.from_numpy(rows)}
        if self.in_memory:
            return inputs
        first = self.positions.start + part * size
        images = [(*image, (self.seed, step, first + i)) for i, image in enumerate(self.locate(rows))]
        if self._decoder is None:
            pixels = [augmented(domain, key, self._transform, seed) for domain, key, seed in images]
            return {**inputs, "images": torch.stack(pixels)}
        encoded, crops = zip(*(self._decoder.read(*image) for image in images), strict=True)
        lengths = torch.tensor([len(content) for content in encoded])
        return {**inputs, "encoded": torch.cat(encoded), "lengths": lengths, "crops": torch.stack(crops)}


def steps_per_epoch(n_images: int, batch_size: int) -> int:
    """Return the number of full batches in an epoch.

    >>> steps_per_epoch(1_281_167, 2048)
    625
    """
    if n_images < batch_size:
        raise DataError(f"a batch must not exceed the {n_images:,} training images, got {batch_size}: lower batch_size")
    return n_images // batch_size


def copied_ahead(
    steps: Iterable[tuple[int, Inputs]], device: torch.device, place: Callable[[Inputs], Inputs]
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


def _channels_last(normalize: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return images in the layout of the network, so that the compiler normalizes and transposes in one pass."""

    def prepare(images: Tensor) -> Tensor:
        return normalize(images).contiguous(memory_format=torch.channels_last)

    return prepare


def _permutation(seed: int, epoch: int, n: int) -> IntArray:
    # RandomState, because NumPy guarantees that its stream never changes.
    stream = np.random.RandomState(np.random.MT19937(np.random.SeedSequence((_EPOCHS, seed, epoch))))
    return stream.permutation(n)
