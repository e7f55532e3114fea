"""Where the pixels live while training: on the device if they fit, else streamed to it from the image cache.

Both kinds give the same bytes for the same rows of the cache. What comes next can be announced, so that streaming reads
it while the device is at work; where all pixels are on the device already, that does nothing.
"""

from __future__ import annotations

import sys
import warnings
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from swad.data.cache import ImageCache
from swad.data.domains import ByteArray, DataError, IntArray

# Beside pixels a device needs room for weights, activations and captured graphs: this much, or half of what is free.
ROOM = 12 * 2**30
# Host memory for what is on its way to the device.
HOST_BYTES = 128 * 2**20


def place(
    cache: ImageCache,
    rows: IntArray,
    device: torch.device | str,
    *,
    device_bytes: int | None = None,
    host_bytes: int = HOST_BYTES,
    log: Callable[[str], None] | None = None,
) -> Images:
    """Put the rows that a run needs (sorted, each once) on a device; stream them where they do not fit.

    ``device_bytes`` is the most that pixels may take there (default: what is free, less room for training),
    ``host_bytes`` the most host memory that is pinned for copies. ``say`` is told in one line where they are and why.
    """
    device = torch.device(device)
    if len(rows) == 0 or (np.diff(rows) <= 0).any() or rows[0] < 0 or rows[-1] >= len(cache.images):
        raise DataError(
            f"the rows to place must be one or more, sorted, each once, from 0 to {len(cache.images) - 1}; "
            "np.unique makes them so"
        )
    log = log or (lambda line: None)
    need = len(rows) * _row_bytes(cache)
    what = f"{len(rows):,} images ({_megabytes(need)})"
    allowed = _free(device) if device_bytes is None else device_bytes
    reason = f"{_megabytes(allowed)} are left beside training"
    if need <= allowed:
        try:
            resident = Resident(cache, rows, device, host_bytes)
        except torch.OutOfMemoryError:
            reason = "its memory is full"
        else:
            how = "read from the image cache as needed, nothing is copied" if resident.mapped else "all there"
            log(f"{what} on {device}: {how}")
            return resident
    streamed = Streamed(cache, rows, device, host_bytes)
    pinned = f"streamed through {_megabytes(streamed.host_bytes)} of host memory"
    log(f"{what} do not fit on {device} ({reason}): {pinned}")
    return streamed


class Resident:
    """All rows on the device, in one tensor; on the CPU the image cache itself, whose pages are read when used.

    ``tensor[index_of(rows)]`` is ``take(rows)``, so that a captured graph can do the selection. The tensor is to be
    read only: on the CPU it is the file.
    """

    def __init__(self, cache: ImageCache, rows: IntArray, device: torch.device, host_bytes: int = HOST_BYTES) -> None:
        self.device, self._rows = device, rows
        self.mapped = device.type == "cpu"
        if self.mapped:
            self.tensor = _as_tensor(cache.images)
            return
        self.tensor = torch.empty((len(rows), *cache.images.shape[1:]), dtype=torch.uint8, device=device)
        loader = Streamed(cache, rows, device, host_bytes)
        loader.take(rows, out=self.tensor)
        loader.close()

    def index_of(self, rows: IntArray | Tensor) -> IntArray:
        """Where rows of the cache are in ``tensor``."""
        wanted = _on_host(rows)
        index = _positions(self._rows, wanted)
        return wanted if self.mapped else index

    def announce(self, rows: IntArray | Tensor) -> None:
        """Do nothing: they are here."""

    def take(self, rows: IntArray | Tensor) -> Tensor:
        """The images of these rows on the device, ``[b, height, width, channels]``."""
        return self.tensor.index_select(0, torch.from_numpy(self.index_of(rows)).to(self.device))


class Streamed:
    """Rows read from the image cache when they are taken, or before, if they were announced.

    A thread fills one of two pinned buffers while the other is on its way to the device. They are all the host memory
    this takes: pages of the mapped file belong to the system, which drops them when memory is short.
    """

    def __init__(self, cache: ImageCache, rows: IntArray, device: torch.device, host_bytes: int = HOST_BYTES) -> None:
        self.device, self._images, self._rows = device, cache.images, rows
        self._capacity = min(len(rows), host_bytes // 2 // _row_bytes(cache))
        if self._capacity < 1:
            least = 2 * _row_bytes(cache)
            raise DataError(f"streaming keeps 2 images in host memory, {least:,} bytes; it was allowed {host_bytes:,}")
        shape = (self._capacity, *cache.images.shape[1:])
        buffers = [torch.empty(shape, dtype=torch.uint8, pin_memory=device.type == "cuda") for _ in range(2)]
        self.host_bytes = sum(buffer.nbytes for buffer in buffers)
        # A buffer may be filled again once the last copy from it is done.
        self._idle: deque[tuple[Tensor, torch.cuda.Event | None]] = deque((buffer, None) for buffer in buffers)
        self._announced: deque[IntArray] = deque()
        self._waiting: deque[IntArray] = deque()
        self._filling: deque[Future[Tensor]] = deque()
        self._reader = ThreadPoolExecutor(1, "read images")

    def announce(self, rows: IntArray | Tensor) -> None:
        """Begin to read rows that will be taken after those announced before."""
        wanted = _on_host(rows)
        _positions(self._rows, wanted)
        self._announced.append(wanted)
        self._waiting.extend(self._pieces(wanted))
        self._fill()

    def take(self, rows: IntArray | Tensor, out: Tensor | None = None) -> Tensor:
        """The images of these rows on the device, ``[b, height, width, channels]``; in ``out`` where it is given."""
        wanted = _on_host(rows)
        if not self._announced:
            self.announce(wanted)
        if not np.array_equal(self._announced[0], wanted):
            raise DataError("images were announced in another order than they are taken in; announce what comes next")
        self._announced.popleft()
        if out is None:
            out = torch.empty((len(wanted), *self._images.shape[1:]), dtype=torch.uint8, device=self.device)
        start, on_gpu = 0, self.device.type == "cuda"
        for piece in self._pieces(wanted):
            buffer = self._filling.popleft().result()
            out[start : start + len(piece)].copy_(buffer[: len(piece)], non_blocking=True)
            self._idle.append((buffer, torch.cuda.current_stream(self.device).record_event() if on_gpu else None))
            self._fill()
            start += len(piece)
        return out

    def forget(self) -> None:
        """Take back what was announced: whoever was going to take it has left."""
        self._announced.clear()
        self._waiting.clear()
        while self._filling:
            self._idle.append((self._filling.popleft().result(), None))

    def close(self) -> None:
        """End the thread that reads."""
        self._reader.shutdown(cancel_futures=True)

    def _pieces(self, rows: IntArray) -> list[IntArray]:
        return [rows[i : i + self._capacity] for i in range(0, len(rows), self._capacity)]

    def _fill(self) -> None:
        while self._idle and self._waiting:
            self._filling.append(
                self._reader.submit(_read, self._images, self._waiting.popleft(), *self._idle.popleft())
            )


Images = Resident | Streamed


def _read(images: ByteArray, rows: IntArray, buffer: Tensor, copied: torch.cuda.Event | None) -> Tensor:
    if copied is not None:
        copied.synchronize()
    # Without "clip" NumPy would read into memory of its own first; the rows were checked before.
    np.take(images, rows, axis=0, out=buffer[: len(rows)].numpy(), mode="clip")
    return buffer


def _positions(known: IntArray, wanted: IntArray) -> IntArray:
    """Where each wanted row is among the sorted known ones."""
    found: IntArray = np.searchsorted(known, wanted)
    missing = wanted[known[np.minimum(found, len(known) - 1)] != wanted]
    if len(missing):
        raise DataError(f"row {missing[0]} of the image cache was not placed; place every row that will be taken")
    return found


def _on_host(rows: IntArray | Tensor) -> IntArray:
    return rows.cpu().numpy() if isinstance(rows, Tensor) else rows


def _as_tensor(images: ByteArray) -> Tensor:
    with warnings.catch_warnings():
        # torch warns that the file cannot be written; nobody is to.
        warnings.filterwarnings("ignore", message=".*not writable")
        return torch.from_numpy(images)


def _row_bytes(cache: ImageCache) -> int:
    return int(np.prod(cache.images.shape[1:]))


def _free(device: torch.device) -> int:
    """How many bytes pixels may take on a device."""
    if device.type != "cuda":
        return sys.maxsize
    free, _ = torch.cuda.mem_get_info(device)
    return free - min(ROOM, free // 2)


def _megabytes(n: int) -> str:
    return f"{n / 1e6:,.1f} MB"
