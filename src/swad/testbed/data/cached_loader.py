"""Training batches from the image cache: decoded once, then augmented on the device, a whole batch at a time.

Each step sees the same images as with `TrainLoader`, and the augmentation has the same distributions. The random
numbers differ, because torchvision draws them one image at a time. They still depend only on (seed, step).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from swad.testbed.data import augment_parameters, gpu_augment
from swad.testbed.data.cache import ImageCache
from swad.testbed.data.device_store import OnDevice, Streaming, build_store
from swad.testbed.data.domains import ImageSpec
from swad.testbed.data.loaders import Batch, Inputs, TrainLoader
from swad.testbed.data.splits import DomainSplit

STEPS_AHEAD = 64
"""Steps whose augmentation parameters are drawn and copied to the device together: a copy for each step would cost
more than the few numbers that it moves."""


class CachedTrainLoader(TrainLoader):
    """A `TrainLoader` whose inputs are a few numbers per image: its index and its augmentation parameters.

    Args:
        cache: Image cache of the whole dataset.
        log: Called with one line that says where the images are stored.
        options: Further options of `TrainLoader`.
    """

    def __init__(
        self,
        cache: ImageCache,
        splits: Sequence[DomainSplit],
        image_spec: ImageSpec,
        batch_size: int,
        seed: int,
        *,
        log: Callable[[str], None] = lambda line: None,
        **options: Any,
    ) -> None:
        super().__init__(splits, image_spec, batch_size, seed, **{**options, "workers": 0})
        self._cache = cache
        self._starts = [cache.starts[split.name] for split in splits]
        needed = np.concatenate([start + split.keys for start, split in zip(self._starts, splits, strict=True)])
        self.images = build_store(cache, np.unique(needed), self.device, log)
        self.augment = gpu_augment.augment  # an attribute, so that a compiled step can replace it
        self._mean = torch.tensor(image_spec.mean, device=self.device)
        self._std = torch.tensor(image_spec.std, device=self.device)
        self._memory_format = torch.channels_last if self.device.type == "cuda" else torch.contiguous_format

    def inputs(self, start: int, stop: int) -> Iterator[tuple[int, Inputs]]:
        """Iterate over ``(step, inputs)``: indices and augmentation, and the images if they are streamed."""
        for first in range(start, stop + 1, STEPS_AHEAD):
            yield from self._inputs_of(range(first, min(first + STEPS_AHEAD, stop + 1)))

    def finish(self, step: int, inputs: Inputs) -> Batch:
        """Make the batch from inputs that are on the device: select, augment and normalize."""
        if "images" in inputs:
            pixels = inputs["images"]
        else:
            assert isinstance(self.images, OnDevice)
            pixels = self.images.tensor.index_select(0, inputs["store_index"])
        if self.views > 1:
            pixels = pixels.repeat(self.views, 1, 1, 1)
        images = self.augment(
            pixels,
            inputs["parameters"],
            self.image_spec.size,
            self._mean,
            self._std,
            memory_format=self._memory_format,
        )
        labels = self._labels.index_select(0, inputs["rows"])
        return Batch(step, self._split_views(images), labels, self._domain_labels(inputs))

    def compile(self, compile: Callable[[Any], Any]) -> None:
        """Compile what `finish` computes on the device."""
        self.augment = compile(self.augment)

    def _inputs_of(self, steps: range) -> Iterator[tuple[int, Inputs]]:
        rows = np.stack([self.global_rows(step) for step in steps])  # [steps, groups, batch size]
        cache_rows = rows + (np.array(self._starts) - self._offsets)[self.domain_of(rows)]
        # Draw the parameters of all processes and keep those of this one, so that their number does not matter.
        sizes = self._cache.sizes[cache_rows].reshape(len(steps), -1, 2)
        parameters = augment_parameters.draw_steps(self.seed, steps, sizes, self.views, self.augmentation)
        parameters = parameters.reshape(len(steps), self.views, *cache_rows.shape[1:], -1)[..., self.positions, :]
        local_rows = cache_rows[..., self.positions].reshape(len(steps), -1)
        rows = rows[..., self.positions].reshape(len(steps), -1)
        inputs = {
            "rows": self._to_device(rows),
            "parameters": self._to_device(parameters.reshape(len(steps), -1, parameters.shape[-1])),
        }
        if isinstance(self.images, OnDevice):
            inputs["store_index"] = self._to_device(self.images.index_of(local_rows))
        streamed = self.images.stream(list(local_rows)) if isinstance(self.images, Streaming) else None
        for i, step in enumerate(steps):
            images = {} if streamed is None else {"images": next(streamed)}
            yield step, {**images, **{name: values[i] for name, values in inputs.items()}}

    def _to_device(self, values: np.ndarray[Any, Any]) -> Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(values))
        if self.device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)
