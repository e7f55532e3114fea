"""Batches from the image cache: decoded once, augmented on the device, whole batches at a time.

The images a step sees are those of `TrainLoader`, and the distributions of the augmentation are the same; the numbers
drawn are others, since torchvision draws for one image after the other. All of it still follows from (seed, step).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from swad.data import gpu_augment
from swad.data.cache import ImageCache
from swad.data.device_store import Resident, place
from swad.data.domains import ImageSpec, IntArray
from swad.data.loaders import Batch, Inputs, TrainLoader
from swad.data.splits import DomainSplit

AHEAD = 64
"""Steps whose parameters are drawn and sent at once."""


class CachedTrainLoader(TrainLoader):
    """`TrainLoader` whose inputs are a few numbers an image: which it is, and what happens to it."""

    def __init__(
        self,
        cache: ImageCache,
        parts: Sequence[DomainSplit],
        image_spec: ImageSpec,
        batch_size: int,
        seed: int,
        *,
        device_bytes: int | None = None,
        log: Callable[[str], None] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(parts, image_spec, batch_size, seed, **{**options, "workers": 0})
        self._cache = cache
        self._starts = [cache.rows(part.name) for part in parts]
        needed = np.concatenate([start + part.keys for start, part in zip(self._starts, parts, strict=True)])
        self.images = place(cache, np.unique(needed), self.device, device_bytes=device_bytes, log=log)
        self.augment = gpu_augment.augment  # whoever compiles the step may compile this
        self._mean = torch.tensor(image_spec.mean, device=self.device)
        self._std = torch.tensor(image_spec.std, device=self.device)
        self._layout = torch.channels_last if self.device.type == "cuda" else torch.contiguous_format

    def inputs(self, start: int = 1, stop: int | None = None) -> Iterator[tuple[int, Inputs]]:
        """Which images, and their augmentation; the images themselves where they do not fit on the device."""
        first = start
        while stop is None or first <= stop:
            last = first + AHEAD - 1 if stop is None else min(stop, first + AHEAD - 1)
            yield from self._some(range(first, last + 1))
            first = last + 1

    def finish(self, step: int, inputs: Inputs) -> Batch:
        """Images and labels of inputs that are on the device."""
        if "images" in inputs:
            image_spec = inputs["images"]
        else:
            assert isinstance(self.images, Resident)
            image_spec = self.images.tensor.index_select(0, inputs["places"])
        if self.views > 1:
            image_spec = image_spec.repeat(self.views, 1, 1, 1)
        images = self.augment(
            image_spec, inputs["parameters"], self.image_spec.size, self._mean, self._std, memory_format=self._layout
        )
        return Batch(step, self._viewed(images), self._labels.index_select(0, inputs["rows"]))

    def _inputs(self, step: int) -> Inputs:
        return next(inputs for _, inputs in self._some(range(step, step + 1)))

    def _some(self, steps: range) -> Iterator[tuple[int, Inputs]]:
        whole = np.stack([np.stack(self.whole_keys(step)) for step in steps])  # [steps, domains, batch size]
        rows = whole + np.array(self._starts)[:, None]
        sizes = self._cache.sizes[rows].reshape(len(steps), -1, 2)
        parameters = gpu_augment.draw_steps(self.seed, steps, sizes, self.views)
        parameters = parameters.reshape(len(steps), self.views, *rows.shape[1:], -1)[..., self.positions, :]
        mine = rows[..., self.positions].reshape(len(steps), -1)
        counted = (whole + self._begins[:, None])[..., self.positions].reshape(len(steps), -1)
        table = {
            "rows": self._sent(counted),
            "parameters": self._sent(parameters.reshape(len(steps), -1, parameters.shape[-1])),
        }
        if isinstance(self.images, Resident):
            table["places"] = self._sent(self.images.index_of(mine.reshape(-1)).reshape(mine.shape))
            for i, step in enumerate(steps):
                yield step, {name: values[i] for name, values in table.items()}
            return
        for some in mine:
            self.images.announce(some)
        try:
            for i, step in enumerate(steps):
                yield step, {"images": self.images.take(mine[i]), **{name: values[i] for name, values in table.items()}}
        finally:
            self.images.forget()

    def _sent(self, values: Any) -> Tensor:
        values = torch.from_numpy(np.ascontiguousarray(values)) if isinstance(values, np.ndarray) else values
        if self.device.type == "cuda" and values.device.type == "cpu":
            values = values.pin_memory()
        return values.to(self.device, non_blocking=True)  # type: ignore[no-any-return]


def evaluation_bytes(cache: ImageCache, domain: str, keys: IntArray, size: int, device: torch.device) -> Tensor:
    """Images as evaluation sees them: resized to a square and rounded to bytes, ``[n, channels, size, size]``."""
    rows = cache.rows(domain) + keys
    image_spec = torch.from_numpy(np.ascontiguousarray(cache.images[rows])).to(device)
    parameters = torch.from_numpy(gpu_augment.identity(cache.sizes[rows])).to(device)
    levels = gpu_augment.resample(image_spec, parameters, size).mul_(255).round_().clamp_(0, 255)
    return levels.to(torch.uint8).contiguous()
