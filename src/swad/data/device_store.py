"""Where the pixels are during training: in device memory if they fit, else streamed from the image cache.

Both kinds of store return the same bytes for the same rows of the cache. Rows can be prefetched, so that a streaming
store reads them while the device computes; a store on the device ignores that.
"""

from __future__ import annotations

import sys
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from swad.data.cache import ImageCache
from swad.data.domains import ByteArray, DataError, IntArray

# Device memory reserved for weights, activations and captured graphs: this much, or half of what is free.
RESERVED_BYTES = 12 * 2**30
# Pinned host memory for images on their way to the device.
HOST_BYTES = 128 * 2**20


def build_store(
    cache: ImageCache,
    rows: IntArray,
    device: torch.device | str,
    *,
    device_bytes: int | None = None,
    host_bytes: int = HOST_BYTES,
    log: Callable[[str], None] | None = None,
) -> ImageStore:
    """Load the images that a run needs onto a device, or stream them if they do not fit.

    Args:
        cache: Image cache of the dataset.
        rows: Rows of the cache that will be used, sorted and unique.
        device: Device to load them onto.
        device_bytes: Most device memory that images may take. Default: what is free, less room for training.
        host_bytes: Most host memory to pin for copies.
        log: Called with one line that says where the images are stored and why.
    """
    device = torch.device(device)
    if len(rows) == 0 or (np.diff(rows) <= 0).any() or rows[0] < 0 or rows[-1] >= len(cache.images):
        raise DataError(
            f"rows must be non-empty, sorted, unique and between 0 and {len(cache.images) - 1}; use np.unique"
        )
    log = log or (lambda line: None)
    need = len(rows) * _bytes_per_image(cache)
    images = f"{len(rows):,} images ({_megabytes(need)})"
    if _keeps_images and device.type != "cpu" and device_bytes is None:
        kept = _kept_images(cache, device, host_bytes)
        if kept is not None:
            log(f"{images} loaded onto {device}")
            return kept
    limit = _available_bytes(device) if device_bytes is None else device_bytes
    reason = f"limit {_megabytes(limit)}"
    if need <= limit:
        try:
            store = OnDevice(cache, rows, device, host_bytes)
        except torch.OutOfMemoryError:
            reason = "out of memory"
        else:
            log(f"{images} {'memory-mapped from the image cache' if store.mapped else f'loaded onto {device}'}")
            return store
    streaming = Streaming(cache, rows, device, host_bytes)
    buffers = f"streaming them through {_megabytes(streaming.host_bytes)} of host memory"
    log(f"{images} do not fit on {device} ({reason}): {buffers}")
    return streaming


# -- images that stay on a device between the runs of a process ------------------------------------------------------

_keeps_images = False
_kept: OrderedDict[tuple[int, torch.device], OnDevice] = OrderedDict()


def keep_images(keep: bool = True) -> None:
    """Let the images of a dataset stay on a GPU for the next runs of this process, or release them.

    All images of a dataset are loaded, also those that the first run does not need: the next run holds out another
    domain. Images of the datasets that were used least recently leave when memory is short.
    """
    global _keeps_images
    _keeps_images = keep
    if not keep:
        _kept.clear()


def _kept_images(cache: ImageCache, device: torch.device, host_bytes: int) -> OnDevice | None:
    """Return all images of a cache on a device; None if they would take more than a quarter of what is free."""
    key = (id(cache), device)  # the store holds the cache, so that its number is not given to another one
    if key in _kept:
        _kept.move_to_end(key)
        return _kept[key]
    while cache.nbytes > _available_bytes(device) // 4:
        if not _kept:
            return None
        _kept.popitem(last=False)
        torch.cuda.empty_cache()
    try:
        _kept[key] = OnDevice(cache, np.arange(len(cache.images)), device, host_bytes)
    except torch.OutOfMemoryError:
        return None
    return _kept[key]


class OnDevice:
    """All rows on the device in one tensor; on the CPU the memory-mapped cache itself.

    ``tensor[index_of(rows)]`` equals ``fetch(rows)``, so a captured CUDA graph can do the selection. Do not write to
    the tensor: on the CPU it is the file.
    """

    def __init__(self, cache: ImageCache, rows: IntArray, device: torch.device, host_bytes: int = HOST_BYTES) -> None:
        self.device, self._rows, self._cache = device, rows, cache
        self.mapped = device.type == "cpu"
        if self.mapped:
            self.tensor = _as_tensor(cache.images)
            return
        self.tensor = torch.empty((len(rows), *cache.images.shape[1:]), dtype=torch.uint8, device=device)
        source = Streaming(cache, rows, device, host_bytes)
        source.fetch(rows, out=self.tensor)
        source.close()

    def index_of(self, rows: IntArray | Tensor) -> IntArray:
        """Return the indices into ``tensor`` of rows of the cache."""
        rows = _on_host(rows)
        index = _positions(self._rows, rows)
        return rows if self.mapped else index

    def prefetch(self, rows: IntArray | Tensor) -> None:
        """Do nothing: the images are already on the device."""

    def fetch(self, rows: IntArray | Tensor) -> Tensor:
        """Return the images of these rows on the device, ``[b, height, width, channels]``."""
        return self.tensor.index_select(0, torch.from_numpy(self.index_of(rows)).to(self.device))


class Streaming:
    """Rows that are read from the image cache when they are fetched, or earlier if they were prefetched.

    A thread fills one of two pinned buffers while the other is being copied to the device. The buffers are all the host
    memory this takes: pages of the mapped file belong to the operating system, which drops them when memory is short.
    """

    def __init__(self, cache: ImageCache, rows: IntArray, device: torch.device, host_bytes: int = HOST_BYTES) -> None:
        self.device, self._images, self._rows = device, cache.images, rows
        self._capacity = min(len(rows), host_bytes // 2 // _bytes_per_image(cache))
        if self._capacity < 1:
            least = 2 * _bytes_per_image(cache)
            raise DataError(f"streaming needs host_bytes of at least {least:,} (2 images), got {host_bytes:,}")
        shape = (self._capacity, *cache.images.shape[1:])
        buffers = [torch.empty(shape, dtype=torch.uint8, pin_memory=device.type == "cuda") for _ in range(2)]
        self.host_bytes = sum(buffer.nbytes for buffer in buffers)
        # A buffer may be refilled once the event of its last copy has completed.
        self._idle: deque[tuple[Tensor, torch.cuda.Event | None]] = deque((buffer, None) for buffer in buffers)
        self._prefetched: deque[IntArray] = deque()
        self._waiting: deque[IntArray] = deque()
        self._filling: deque[Future[Tensor]] = deque()
        self._reader = ThreadPoolExecutor(1, "read images")

    def prefetch(self, rows: IntArray | Tensor) -> None:
        """Start reading rows that will be fetched after those prefetched before."""
        rows = _on_host(rows)
        _positions(self._rows, rows)
        self._prefetched.append(rows)
        self._waiting.extend(self._chunks(rows))
        self._fill()

    def fetch(self, rows: IntArray | Tensor, out: Tensor | None = None) -> Tensor:
        """Return the images of these rows on the device, ``[b, height, width, channels]``; in ``out`` if given."""
        rows = _on_host(rows)
        if not self._prefetched:
            self.prefetch(rows)
        if not np.array_equal(self._prefetched[0], rows):
            raise DataError(
                "images must be fetched in the order in which they were prefetched; call cancel() to change it"
            )
        self._prefetched.popleft()
        if out is None:
            out = torch.empty((len(rows), *self._images.shape[1:]), dtype=torch.uint8, device=self.device)
        start, on_gpu = 0, self.device.type == "cuda"
        for chunk in self._chunks(rows):
            buffer = self._filling.popleft().result()
            out[start : start + len(chunk)].copy_(buffer[: len(chunk)], non_blocking=True)
            self._idle.append((buffer, torch.cuda.current_stream(self.device).record_event() if on_gpu else None))
            self._fill()
            start += len(chunk)
        return out

    def cancel(self) -> None:
        """Drop everything that was prefetched and not fetched."""
        self._prefetched.clear()
        self._waiting.clear()
        while self._filling:
            self._idle.append((self._filling.popleft().result(), None))

    def close(self) -> None:
        """Stop the reading thread."""
        self._reader.shutdown(cancel_futures=True)

    def _chunks(self, rows: IntArray) -> list[IntArray]:
        return [rows[i : i + self._capacity] for i in range(0, len(rows), self._capacity)]

    def _fill(self) -> None:
        while self._idle and self._waiting:
            self._filling.append(
                self._reader.submit(_read, self._images, self._waiting.popleft(), *self._idle.popleft())
            )


ImageStore = OnDevice | Streaming


def _read(images: ByteArray, rows: IntArray, buffer: Tensor, copied: torch.cuda.Event | None) -> Tensor:
    if copied is not None:
        copied.synchronize()
    # Without mode="clip" NumPy would allocate a temporary copy; the rows were checked before.
    np.take(images, rows, axis=0, out=buffer[: len(rows)].numpy(), mode="clip")
    return buffer


def _positions(stored: IntArray, rows: IntArray) -> IntArray:
    """Return the position of each row among the sorted stored rows."""
    positions: IntArray = np.searchsorted(stored, rows)
    missing = rows[stored[np.minimum(positions, len(stored) - 1)] != rows]
    if len(missing):
        raise DataError(
            f"row {missing[0]} of the image cache is not in the store; pass every needed row to build_store"
        )
    return positions


def _on_host(rows: IntArray | Tensor) -> IntArray:
    return rows.cpu().numpy() if isinstance(rows, Tensor) else rows


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
