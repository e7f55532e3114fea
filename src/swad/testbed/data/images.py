"""Where the pixels of batches come from: arrays in memory, files, encoded files that the device decodes, or the cache.

A batch is made in two stages. Its *inputs* are tensors of fixed shapes: decoded bytes, or only the rows of images that
are already on the device. They are read ahead of the training. `finish` turns inputs on the device into images without
synchronizing with the host, so that it can be captured in a CUDA graph.

Images stay bytes until they are on the device, where a whole batch is scaled and normalized at once: a quarter of the
traffic for the same numbers.
"""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from PIL import ExifTags, Image
from torch import Tensor
from torch.utils.data import DataLoader

from swad.gpu.cuda_graph import Inputs, to_device
from swad.testbed.data import augment_parameters, gpu_augment
from swad.testbed.data.augmentation import Augmentation
from swad.testbed.data.cache import ImageCache
from swad.testbed.data.device_store import Resident, Streaming, build_store
from swad.testbed.data.domains import ArrayDomain, ByteArray, Domain, FileDomain, ImageSpec, IntArray
from swad.testbed.data.sampling import Draw, Pool, Seed, seeded
from swad.testbed.data.shards import ShardDomain
from swad.testbed.data.transforms import Normalize, Transform, to_pil
from swad.util.images import open_image, without_worker_traceback
from swad.util.processes import available_cores

K = TypeVar("K")
T = TypeVar("T")
START_METHOD = "fork" if sys.platform == "linux" else None
"""How workers start; None: by the platform's default.

A forked worker has the loader, with its tensors on a GPU and its compiled functions, and uses none of them. Any other
start pickles the loader: functions cannot be pickled, tensors would open the GPU in every worker, and every worker
would import torch again. From Python 3.14 on, and in a process that was itself spawned, the default is another one.
"""
STEPS_AHEAD = 32
"""Steps whose augmentation parameters are drawn and copied to the device together. Drawn together, a step of 96 images
takes 31 instead of 107 µs; from 64 steps on the random numbers leave a core's cache, and it takes 60 and more."""


class ImageSource:
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


class ArrayImages(ImageSource):
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


class FileImages(ImageSource):
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


class EncodedImages(ImageSource):
    """JPEG files that the device decodes, crops and resizes: workers only read them and draw the crops.

    A core decodes and crops about 300 images of ImageNet's size per second, and reads 2,900: an H200 trains on more
    than 16 cores decode. The crops are those of `swad.testbed.data.transforms`; pixels differ by rounding. TorchCodec
    decodes where it is installed (``pip install 'swad[torchcodec]'``), else torchvision, which will lose its decoders.

    Args:
        pool: The images.
        size: Height and width of the result.
        augmentation: Crop and flip; colors are not changed.
        normalize: From bytes on the device to images.
        views: Number of views.
        workers: Number of processes. Default: one per core, at most 8.
        device: Device that decodes.
    """

    copies_ahead = True

    def __init__(
        self,
        pool: Pool,
        size: int,
        augmentation: Augmentation,
        normalize: Normalize,
        *,
        views: int = 1,
        workers: int | None = None,
        device: torch.device,
    ) -> None:
        from torchvision.transforms import v2

        self.prepare, self.views, self._size, self._flip = normalize, views, size, augmentation.flip
        self._pool, self._workers, self._device = pool, workers, device
        self._crop = v2.RandomResizedCrop(size, scale=(augmentation.crop, 1.0)) if augmentation.crop < 1 else None

    def read(self, draw: Callable[[K], Draw], keys: Iterable[K]) -> Iterator[Inputs]:
        """Iterate over the encoded bytes of the images, and their crops."""
        return read_ahead(partial(self._read, draw), keys, self._workers, self._device)

    def _read(self, draw: Callable[[K], Draw], key: K) -> Inputs:
        drawn = draw(key)
        images = [self._read_image(*image) for image in drawn.images(self._pool, self.views)]
        encoded, crops = zip(*images, strict=True)
        return {
            "rows": torch.from_numpy(drawn.own_rows),
            "encoded": torch.cat(encoded),
            "lengths": torch.tensor([len(content) for content in encoded]),
            "crops": torch.stack(crops),
        }

    def _read_image(self, domain: Domain, key: int, seed: Seed | None) -> tuple[Tensor, Tensor]:
        """Return the encoded bytes of an image, and its crop: top, left, height, width, and 1 for a flip."""
        content = jpeg(domain, key)
        # Reads the size without decoding.
        with Image.open(io.BytesIO(content), formats=["JPEG"]) as image, seeded(seed):
            crop: dict[str, Any] = {"top": 0, "left": 0, "height": image.height, "width": image.width}
            if self._crop is not None:
                crop = self._crop.make_params([image])
            flip = bool(torch.rand(1) < self._flip)
        box = [crop["top"], crop["left"], crop["height"], crop["width"], int(flip)]
        return torch.frombuffer(bytearray(content), dtype=torch.uint8), torch.tensor(box)

    def place(self, inputs: Inputs) -> Inputs:
        """Decode, crop and resize the images on the device."""
        from torchvision.transforms.v2 import functional

        images = []
        contents = torch.split(inputs["encoded"], inputs["lengths"].tolist())
        for image, (*box, flip) in zip(self._decode(contents), inputs["crops"].tolist(), strict=True):
            cropped = functional.resized_crop(image, *box, [self._size, self._size])
            images.append(cropped.flip(-1) if flip else cropped)
        return {"rows": inputs["rows"].to(self._device), "images": torch.stack(images)}

    def _decode(self, contents: tuple[Tensor, ...]) -> list[Tensor]:
        try:
            from torchcodec.decoders import decode_jpeg
        except (ImportError, RuntimeError):  # the latter where it finds no FFmpeg
            from torchvision.io import decode_jpeg
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torchvision says in every process that its decoders move to TorchCodec
            return decode_jpeg(list(contents), mode="RGB", device=self._device)  # type: ignore[no-any-return]


class CachedImages(ImageSource):
    """Images of the cache, augmented on the device, a whole batch at a time.

    The inputs of an image are a few numbers: its place in the store and the parameters of its augmentation. Each step
    takes the same images as from files, and the augmentation has the same distributions. The random numbers differ,
    because torchvision draws them one image at a time. They still depend only on (seed, step).

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


class CachedBytes(ImageSource):
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


def jpeg(domain: Domain, key: int) -> bytes:
    """Return an image as JPEG. Other formats, colors that devices do not decode, and turned images are encoded with
    quality 100.
    """
    if isinstance(domain, FileDomain | ShardDomain):
        content = domain.content(key)
        # domain.image names an image that is damaged or too large.
        with suppress(Exception), open_image(domain.path(key), io.BytesIO(content)) as image:
            if image.format == "JPEG" and image.mode in ("RGB", "L") and is_upright(image):
                return content
    out = io.BytesIO()
    to_pil(domain.image(key)).convert("RGB").save(out, "JPEG", quality=100, subsampling=0)
    return out.getvalue()


def is_upright(image: Image.Image) -> bool:
    """Whether the image has no EXIF orientation: TorchCodec always applies it, but crops are drawn without it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of damaged EXIF data
            return bool(image.getexif().get(ExifTags.Base.Orientation, 1) == 1)
    except Exception:  # Pillow raises many classes
        return False


# -- processes that read ahead ----------------------------------------------------------------------------------------


def default_workers() -> int:
    """Return the default number of processes that read images: one per core, at most 8."""
    return min(8, available_cores())


def read_ahead(function: Callable[[K], T], keys: Iterable[K], workers: int | None, device: torch.device) -> Iterator[T]:
    """Iterate over the results of a function, in the order of its keys, computed ahead of time by worker processes.

    ``workers`` is their number. None: one per core, at most 8.
    """
    workers = default_workers() if workers is None else workers
    if workers == 0:
        yield from map(function, keys)
        return
    loader: DataLoader[T] = DataLoader(
        _FunctionDataset(function),  # type: ignore[arg-type]
        batch_size=None,
        sampler=keys,
        num_workers=workers,
        prefetch_factor=2,
        pin_memory=device.type == "cuda",
        multiprocessing_context=START_METHOD,
    )
    with without_worker_traceback():
        yield from loader


class _FunctionDataset(Generic[K, T]):
    """A function as a map-style dataset."""

    def __init__(self, function: Callable[[K], T]) -> None:
        self._function = function

    def __getitem__(self, key: K) -> T:
        return self._function(key)
