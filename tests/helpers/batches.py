"""The batches of a training loader, by step."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from swad.data.domains import IntArray
from swad.data.loaders import Batch, TrainLoader, to_device


def iterate(loader: TrainLoader, start: int, stop: int) -> Iterator[Batch]:
    """Yield the batches of some steps, whole."""
    for step, inputs in loader.inputs(start, stop):
        parts = list(loader.parts(step, to_device(inputs, loader.device)))
        images, labels = (torch.cat([getattr(part, name) for part in parts]) for name in ("images", "labels"))
        yield parts[0] if len(parts) == 1 else Batch(step, images, labels)


def batch_at(loader: TrainLoader, step: int) -> Batch:
    """Return the batch of a step."""
    return next(iterate(loader, step, step))


def keys_at(loader: TrainLoader, step: int) -> list[IntArray]:
    """Return the images of every domain at a step of balanced batches, as indices into the domains."""
    return list(loader.rows(step).reshape(len(loader.splits), -1) - loader._offsets[:, None])
