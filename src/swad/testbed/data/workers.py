"""Worker processes that read images ahead of the training."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

import torch
from torch.utils.data import DataLoader

from swad.util.images import without_worker_traceback
from swad.util.processes import available_cores

K = TypeVar("K")
T = TypeVar("T")
START_METHOD = "fork" if sys.platform == "linux" else None
"""How workers start; None: by the platform's default.

A forked worker has the loader, with its tensors on a GPU and its compiled functions, and uses none of them. Any other
start pickles the loader: functions cannot be pickled, tensors would open the GPU in every worker, and every worker
would import torch again. From Python 3.14 on, and in a process that was itself spawned, the default is another one.
"""


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
