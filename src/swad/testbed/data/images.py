"""Where the pixels of batches come from: arrays in memory, files, encoded files that the device decodes, or the cache.

A batch is made in two stages. Its *inputs* are tensors of fixed shapes: decoded bytes, or only the rows of images that
are already on the device. They are read ahead of the training. `finish` turns inputs on the device into images without
synchronizing with the host, so that it can be captured in a CUDA graph.

Images stay bytes until they are on the device, where a whole batch is scaled and normalized at once: a quarter of the
traffic for the same numbers. Encoded files are in `swad.testbed.data.encoded_images`, and training from the cache in
`swad.testbed.data.cached_images`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from swad.gpu.cuda_graph import Inputs, to_device
from swad.testbed.data import gpu_augment
from swad.testbed.data.cache import ImageCache
from swad.testbed.data.domains import ArrayDomain, ByteArray, ImageSpec
from swad.testbed.data.sampling import Draw, Pool, seeded
from swad.testbed.data.transforms import Normalize, Transform, to_pil
from swad.testbed.data.workers import read_ahead

K = TypeVar("K")


class Images:
    """A source of images. `read` yields inputs, `place` brings them to the device, `finish` makes images of them."""

    views = 1
    """Number of independently augmented views of each image; in a batch they follow one another."""
    copies_ahead = False
    """Whether the inputs are large enough to place those of the next step on a GPU while it computes."""
    prepare: Callable[..., Tensor]
    """What is computed on the device, an attribute so that a compiled function can replace it."""

    def read(self, draw: Callable[[K], Draw], keys: Iterable[K]) -> Iterator[Inputs]:
        """Iterate over the inputs of the images that ``draw`` returns for each key, read ahead.

        ``inputs["rows"]`` are the rows of the images, without views.
        """
        raise NotImplementedError

    def place(self, inputs: Inputs) -> Inputs:
        """Bring inputs to the device. By default the step does it, as they are a few numbers."""
        return inputs

    def bytes(self, inputs: Inputs) -> Tensor:
        """Return the bytes of the images, ``[images, channels, height, width]``, from inputs on the device."""
        return inputs["images"]

    def finish(self, inputs: Inputs) -> Tensor:
        """Make images from inputs on the device."""
        return self.prepare(self.bytes(inputs))


class ArrayImages(Images):
    """Low-resolution images that are all on the device. They are not augmented, so all views are equal."""

    def __init__(self, pool: Pool, normalize: Normalize, *, views: int = 1, device: torch.device) -> None:
        self.prepare, self.views = normalize, views
        self._all = torch.cat([_channels_first(split.domain).to(device) for split in pool.splits])

    def read(self, draw: Callable[[K], Draw], keys: Iterable[K]) -> Iterator[Inputs]:
        """Iterate over the rows of the images."""
        return ({"rows": torch.from_numpy(draw(key).own_rows)} for key in keys)

    def bytes(self, inputs: Inputs) -> Tensor:
        """Select images."""
        images = self._all.index_select(0, inputs["rows"])
        return images if self.views == 1 else images.repeat(self.views, 1, 1, 1)


class FileImages(Images):
    """Images that worker processes decode and transform.

    Args:
        pool: The images.
        transform: From an image to bytes, in a worker.
        normalize: From bytes on the device to images.
        views: Number of views.
        workers: Number of processes. Default: one per core, at most 8.
        device: Device of the batches.
    """

    copies_ahead = True

    def __init__(
        self,
        pool: Pool,
        transform: Transform,
        normalize: Normalize,
        *,
        views: int = 1,
        workers: int | None = None,
        device: torch.device,
    ) -> None:
        self.prepare, self.views, self._transform = normalize, views, transform
        self._pool, self._workers, self._device = pool, workers, device

    def read(self, draw: Callable[[K], Draw], keys: Iterable[K]) -> Iterator[Inputs]:
        """Iterate over the bytes of the images."""
        return read_ahead(partial(self._decode, draw), keys, self._workers, self._device)

    def _decode(self, draw: Callable[[K], Draw], key: K) -> Inputs:
        drawn, images = draw(key), []
        for domain, i, seed in drawn.images(self._pool, self.views):
            with seeded(seed):
                images.append(self._transform(to_pil(domain.image(i))))
        return {"rows": torch.from_numpy(drawn.own_rows), "images": torch.stack(images)}

    def place(self, inputs: Inputs) -> Inputs:
        """Copy the bytes to the device."""
        return to_device(inputs, self._device)


class CachedBytes(Images):
    """Images of the cache, resized as evaluation does it."""

    def __init__(self, cache: ImageCache, pool: Pool, size: int, device: torch.device) -> None:
        self._cache, self._pool, self._size, self._device = cache, pool, size, device

    def read(self, draw: Callable[[K], Draw], keys: Iterable[K]) -> Iterator[Inputs]:
        """Iterate over the bytes of the images, on the device."""
        for key in keys:
            rows = self._pool.renumber(draw(key).own_rows, self._cache.starts)
            pixels = torch.from_numpy(np.ascontiguousarray(self._cache.images[rows])).to(self._device)
            yield {"images": gpu_augment.resize_bytes(pixels, self._cache.sizes[rows], self._size)}


def in_memory(pool: Pool, image_spec: ImageSpec) -> bool:
    """Whether the images are arrays that are neither resized nor augmented, and so can all be on the device."""
    return image_spec.low_res and all(isinstance(split.domain, ArrayDomain) for split in pool.splits)


def _channels_first(domain: object) -> Tensor:
    assert isinstance(domain, ArrayDomain)
    images: ByteArray = np.ascontiguousarray(domain.images.transpose(0, 3, 1, 2))
    return torch.from_numpy(images)
