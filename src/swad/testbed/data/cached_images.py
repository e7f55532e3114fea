"""Training images from the cache: decoded once, then augmented on the device, a whole batch at a time.

Each step takes the same images as from files, and the augmentation has the same distributions. The random numbers
differ, because torchvision draws them one image at a time. They still depend only on (seed, step).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from swad.gpu.cuda_graph import Inputs
from swad.testbed.data import augment_parameters, gpu_augment
from swad.testbed.data.augmentation import Augmentation
from swad.testbed.data.cache import ImageCache
from swad.testbed.data.device_store import Resident, Streaming, build_store
from swad.testbed.data.domains import ImageSpec, IntArray
from swad.testbed.data.images import Images
from swad.testbed.data.sampling import Draw, Pool

K = TypeVar("K")
STEPS_AHEAD = 32
"""Steps whose augmentation parameters are drawn and copied to the device together. Drawn together, a step of 96 images
takes 31 instead of 107 µs; from 64 steps on the random numbers leave a core's cache, and it takes 60 and more."""


class CachedImages(Images):
    """Images whose inputs are a few numbers each: the image's place in the store and its augmentation parameters.

    Args:
        cache: Image cache of the whole dataset.
        pool: The images.
        image_spec: Size, channels and normalization of the images.
        seed: Seed of the augmentation.
        augmentation: Settings of the augmentation. Default: DomainBed's.
        views: Number of views.
        device: Device of the batches.
        log: Called with one line that says where the images are stored.
    """

    def __init__(
        self,
        cache: ImageCache,
        pool: Pool,
        image_spec: ImageSpec,
        seed: int,
        *,
        augmentation: Augmentation | None = None,
        views: int = 1,
        device: torch.device,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.views, self._device, self._seed, self._size = views, device, seed, image_spec.size
        self._cache, self._pool, self._augmentation = cache, pool, augmentation or Augmentation()
        self.store = build_store(cache, np.unique(self._cache_rows(np.concatenate(pool.groups))), device, log)
        self.prepare = gpu_augment.augment
        self._mean = torch.tensor(image_spec.mean, device=device)
        self._std = torch.tensor(image_spec.std, device=device)
        self._memory_format = torch.channels_last if device.type == "cuda" else torch.contiguous_format

    def read(self, draw: Callable[[K], Draw], keys: Iterable[K]) -> Iterator[Inputs]:
        """Iterate over places and parameters on the device, and the images if they are streamed."""
        keys = iter(keys)
        while draws := [draw(key) for key in islice(keys, STEPS_AHEAD)]:
            yield from self._inputs(draws)

    def _inputs(self, draws: list[Draw]) -> Iterator[Inputs]:
        # Draw the parameters of all processes and keep those of this one, so that their number does not matter.
        rows = np.stack([draw.rows for draw in draws])
        sizes = self._cache.sizes[self._cache_rows(rows)].reshape(len(draws), -1, 2)
        steps = [draw.step for draw in draws]
        parameters = augment_parameters.draw_steps(self._seed, steps, sizes, self.views, self._augmentation)
        by_group = parameters.reshape(len(draws), self.views, *rows.shape[1:], -1)
        own = [one[..., draw.positions, :] for one, draw in zip(by_group, draws, strict=True)]
        rows = np.stack([draw.own_rows for draw in draws])
        cache_rows = self._cache_rows(rows)
        inputs = {
            "rows": self._copy(rows),
            "parameters": self._copy(np.stack(own).reshape(len(draws), -1, parameters.shape[-1])),
        }
        if isinstance(self.store, Resident):
            inputs["store_index"] = self._copy(self.store.index_of(cache_rows))
        streamed = self.store.stream(list(cache_rows)) if isinstance(self.store, Streaming) else None
        for i in range(len(draws)):
            images = {} if streamed is None else {"images": next(streamed)}
            yield {**images, **{name: values[i] for name, values in inputs.items()}}

    def finish(self, inputs: Inputs) -> Tensor:
        """Select, augment and normalize images."""
        if "images" in inputs:
            pixels = inputs["images"]
        else:
            assert isinstance(self.store, Resident)
            pixels = self.store.tensor.index_select(0, inputs["store_index"])
        if self.views > 1:
            pixels = pixels.repeat(self.views, 1, 1, 1)
        return self.prepare(
            pixels, inputs["parameters"], self._size, self._mean, self._std, memory_format=self._memory_format
        )

    def _cache_rows(self, rows: IntArray) -> IntArray:
        return self._pool.renumber(rows, self._cache.starts)

    def _copy(self, values: np.ndarray[Any, Any]) -> Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(values))
        if self._device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self._device, non_blocking=True)
