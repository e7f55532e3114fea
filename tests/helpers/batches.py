"""The batches of a training loader by step, and the augmentation of one step."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from swad.testbed.data.augment_parameters import FloatArray, draw_steps
from swad.testbed.data.augmentation import Augmentation
from swad.testbed.data.domains import IntArray
from swad.testbed.data.loaders import Batch, TrainLoader, to_device


def iterate(loader: TrainLoader, start: int, stop: int) -> Iterator[Batch]:
    """Yield the batches of some steps, whole."""
    for step, inputs in loader.inputs(start, stop):
        parts = list(loader.parts(step, to_device(inputs, loader.device)))
        images, labels = (torch.cat([getattr(part, name) for part in parts]) for name in ("images", "labels"))
        yield parts[0] if len(parts) == 1 else Batch(step, images, labels)


def batch_at(loader: TrainLoader, step: int) -> Batch:
    """Return the batch of a step."""
    (batch,) = iterate(loader, step, step)
    return batch


def keys_at(loader: TrainLoader, step: int) -> list[IntArray]:
    """Return the images of every domain at a step of balanced batches, as indices into the domains."""
    return list(loader.rows(step).reshape(len(loader.splits), -1) - loader._offsets[:, None])


def draw(seed: int, sizes: IntArray, augmentation: Augmentation = Augmentation()) -> FloatArray:  # noqa: B008
    """Return the augmentation parameters of the images of the first step."""
    return draw_steps(seed, [1], sizes[None], 1, augmentation)[0, 0]
