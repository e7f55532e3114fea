"""Predict the classes of image files, a batch at a time: memory does not grow with the number of images."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from swad.testbed.data.images import default_workers, is_upright
from swad.testbed.data.transforms import Normalize, PredictorTransform
from swad.testbed.deploy.images import ImageFile
from swad.testbed.training.export import Predictor
from swad.util.images import DataError, open_image
from swad.util.names import counted
from swad.util.progress import Progress

BATCH_SIZE = 32


class Prediction(NamedTuple):
    """The most probable class of an image."""

    path: str
    domain: str
    label: str
    """The name of its true class; "" if it is unknown."""
    predicted: str
    probability: float


def predict(
    predictor: Predictor,
    images: Sequence[ImageFile],
    device: torch.device,
    warn: Callable[[str], None],
    *,
    group_size: int | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Iterator[Prediction]:
    """Predict images; those that cannot be decoded are skipped.

    Args:
        predictor: The model.
        images: The files.
        device: Where the model predicts.
        warn: Called with the reason why an image is skipped, and with the number of EXIF orientations ignored.
        group_size: Images of a domain that are predicted together, if predictions depend on the batch (ARM, MTL).
            Batches are then of one domain each, in random order.
        workers: Threads that decode. Default: one per core, at most 8.
        progress: Called after each batch.
    """
    model, transform = predictor.model.to(device), predictor.transform
    normalize = Normalize(transform.image_spec, device)
    done = skipped = turned = 0
    with ThreadPoolExecutor(max(1, default_workers() if workers is None else workers)) as pool:
        for batch in _batches(images, group_size):
            read: list[tuple[ImageFile, Tensor]] = []
            for image, (decoded, is_turned) in zip(batch, pool.map(lambda i: _read(transform, i), batch), strict=True):
                turned += is_turned
                if isinstance(decoded, str):
                    skipped += 1
                    warn(f"skipped an image: {decoded}")
                else:
                    read.append((image, decoded))
            if read:
                with torch.inference_mode():
                    logits = model(normalize(torch.stack([pixels for _, pixels in read]).to(device)))
                    probabilities, classes = (values.tolist() for values in logits.float().softmax(1).max(1))
                for (image, _), probability, number in zip(read, probabilities, classes, strict=True):
                    predicted = predictor.class_names[number]
                    yield Prediction(str(image.path), image.domain, image.label, predicted, probability)
            done += len(batch)
            if progress:
                progress("predicting", done, len(images))
    if skipped == len(images):
        raise DataError(f"none of {counted(len(images), 'image')} could be predicted: see why each was skipped")
    if turned:
        warn(f"{counted(turned, 'image')} with an EXIF orientation, which is ignored as in training")


def _read(transform: PredictorTransform, image: ImageFile) -> tuple[Tensor | str, bool]:
    """Return the bytes of an image, or why there are none, and whether it has an EXIF orientation."""
    try:
        pixels = transform.pixels(image.path)
        with open_image(image.path) as opened:
            return pixels, not is_upright(opened)
    except (DataError, OSError) as error:
        return str(error) if str(image.path) in str(error) else f"{image.path}: {error}", False


def _batches(images: Sequence[ImageFile], group_size: int | None) -> Iterator[Sequence[ImageFile]]:
    size, groups = group_size or BATCH_SIZE, [list(images)]
    if group_size:
        by_domain = sorted(images, key=lambda image: image.domain)
        groups = [list(group) for _, group in groupby(by_domain, key=lambda image: image.domain)]
        for group in groups:
            random.Random(0).shuffle(group)  # a batch of one class would be unlike those in training
    return (group[start : start + size] for group in groups for start in range(0, len(group), size))
