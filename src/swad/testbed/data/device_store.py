"""Where the pixels are during training: in device memory if they fit, else streamed from the image cache.

Both kinds of store have the same bytes for the same rows of the cache.
"""

from __future__ import annotations

import sys
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from swad.testbed.data.cache import ImageCache
from swad.testbed.data.domains import ByteArray, IntArray

RESERVED_BYTES = 12 * 2**30
"""Device memory that images leave free for weights, activations and captured graphs: what the hungriest method takes on
MobileNetV2 with the paper's batch (VAT 12.2 GiB, ERM 5). On a small device it is half of what is free."""
HOST_BYTES = 128 * 2**20
"""Pinned host memory for images on their way to the device: each of two buffers holds 341 images of 256 x 256, more
than three batches of the paper's protocol."""


def build_store(
    cache: ImageCache, rows: IntArray, device: torch.device, log: Callable[[str], None] = lambda line: None
) -> Resident | Streaming:
    """Load the images that a run needs onto a device, or stream them if they do not fit.

    Args:
        cache: Image cache of the dataset.
        rows: Rows of the cache that will be used, sorted and unique.
        device: Device to load them onto.
        log: Called with one line that says where the images are stored and why.
    """
    need = len(rows) * _bytes_per_image(cache)
    images = f"{len(rows):,} images ({_megabytes(need)})"
    store = _kept_images(cache, device) if _keeps_images and device.type != "cpu" else None
    limit = _available_bytes(device)
    reason = f"limit {_megabytes(limit)}"
    if store is None and need <= limit:
        try:
            store = Resident(cache, rows, device)
        except torch.OutOfMemoryError:
            reason = "out of memory"
    if store is not None:
        log(f"{images} {'memory-mapped from the image cache' if store.mapped else f'loaded onto {device}'}")
        return store
    streaming = Streaming(cache, device)
    buffers = f"streaming them through {_megabytes(streaming.host_bytes)} of host memory"
    log(f"{images} do not fit on {device} ({reason}): {buffers}")
    return streaming


# -- images that stay on a device between the runs of a process ------------------------------------------------------

_keeps_images = False
_kept: OrderedDict[tuple[int, torch.device], Resident] = OrderedDict()


def keep_images(keep: bool = True) -> None:
    """Let the images of a dataset stay on a GPU for the next runs of this process, or release them.

    All images of a dataset are loaded, also those that the first run does not need: the next run holds out another
    domain. Images of the datasets that were used least recently leave when memory is short.
    """
    global _keeps_images
    _keeps_images = keep
    if not keep:
        _kept.clear()


def _kept_images(cache: ImageCache, device: torch.device) -> Resident | None:
    """Return all images of a cache on a device; None if they would take more than a quarter of what is free."""
    key = (id(cache), device)  # the store holds the cache, so that its number is not given to another one
    if key in _kept:
        _kept.move_to_end(key)
        return _kept[key]
    # A quarter, because they stay while other datasets are trained on, and hold images that no run of now needs.
    while cache.images.nbytes > _available_bytes(device) // 4:
        if not _kept:
            return None
        _kept.popitem(last=False)
        torch.cuda.empty_cache()
    try:
        _kept[key] = Resident(cache, np.arange(len(cache.images)), device)
    except torch.OutOfMemoryError:
        return None
    return _kept[key]


class Resident:
    """All rows in one tensor, which needs no copy per step: in the memory of a GPU, or on the CPU the mapped cache.

    A captured CUDA graph can select images from the tensor. Do not write to it: on the CPU it is the file.
    """

    def __init__(self, cache: ImageCache, rows: IntArray, device: torch.device) -> None:
        self._rows, self._cache = rows, cache
        self.mapped = device.type == "cpu"
        self.tensor = _as_tensor(cache.images) if self.mapped else next(Streaming(cache, device).stream([rows]))

    def index_of(self, rows: IntArray) -> IntArray:
        """Return the indices into ``tensor`` of rows of the cache."""
        return rows if self.mapped else np.searchsorted(self._rows, rows)


class Streaming:
    """Rows that are read from the image cache while the device computes.

    A thread fills one of two pinned buffers while the other is being copied to the device. The buffers are all the host
    memory this takes: pages of the mapped file belong to the operating system, which drops them when memory is short.
    """

    def __init__(self, cache: ImageCache, device: torch.device) -> None:
        self.device, self._images = device, cache.images
        self._capacity = min(len(cache.images), max(1, HOST_BYTES // 2 // _bytes_per_image(cache)))
        shape = (self._capacity, *cache.images.shape[1:])
        buffers = [torch.empty(shape, dtype=torch.uint8, pin_memory=device.type == "cuda") for _ in range(2)]
        self.host_bytes = sum(buffer.nbytes for buffer in buffers)
        # A buffer may be refilled once the event of its last copy has completed.
        self._idle: deque[tuple[Tensor, torch.cuda.Event | None]] = deque((buffer, None) for buffer in buffers)
        self._reader = ThreadPoolExecutor(1, "read images")

    def stream(self, batches: Sequence[IntArray]) -> Iterator[Tensor]:
        """Yield the images of the rows of each batch on the device, ``[b, height, width, channels]``, read ahead."""
        waiting = deque(chunk for rows in batches for chunk in self._chunks(rows))
        filling: deque[Future[Tensor]] = deque()

        def fill() -> None:
            while self._idle and waiting:
                filling.append(self._reader.submit(_read, self._images, waiting.popleft(), *self._idle.popleft()))

        try:
            fill()
            for rows in batches:
                images = torch.empty((len(rows), *self._images.shape[1:]), dtype=torch.uint8, device=self.device)
                start, on_gpu = 0, self.device.type == "cuda"
                for chunk in self._chunks(rows):
                    buffer = filling.popleft().result()
                    images[start : start + len(chunk)].copy_(buffer[: len(chunk)], non_blocking=True)
                    copied = torch.cuda.current_stream(self.device).record_event() if on_gpu else None
                    self._idle.append((buffer, copied))
                    fill()
                    start += len(chunk)
                yield images
        finally:  # what was read and not used
            while filling:
                self._idle.append((filling.popleft().result(), None))

    def _chunks(self, rows: IntArray) -> list[IntArray]:
        return [rows[i : i + self._capacity] for i in range(0, len(rows), self._capacity)]


def _read(images: ByteArray, rows: IntArray, buffer: Tensor, copied: torch.cuda.Event | None) -> Tensor:
    if copied is not None:
        copied.synchronize()
    # Without mode="clip" NumPy would allocate a temporary copy.
    np.take(images, rows, axis=0, out=buffer[: len(rows)].numpy(), mode="clip")
    return buffer


def _as_tensor(images: ByteArray) -> Tensor:
    with warnings.catch_warnings():
        # Silence the non-writable warning: the mapping is read-only by design.
        warnings.filterwarnings("ignore", message=".*not writable")
        return torch.from_numpy(images)


def _bytes_per_image(cache: ImageCache) -> int:
    return int(np.prod(cache.images.shape[1:]))


def _available_bytes(device: torch.device) -> int:
    """Return how much memory images may take on a device."""
    if device.type != "cuda":
        return sys.maxsize
    free, _ = torch.cuda.mem_get_info(device)
    return free - min(RESERVED_BYTES, free // 2)


def _megabytes(n: int) -> str:
    return f"{n / 1e6:,.1f} MB"
