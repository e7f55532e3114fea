"""Predict the classes of image files, a batch at a time: memory does not grow with the number of images."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from swad.testbed.data.images import is_upright
from swad.testbed.data.transforms import Normalize
from swad.testbed.data.workers import default_workers
from swad.testbed.deploy.images import ImageFile
from swad.testbed.training.export import Predictor
from swad.util.images import DataError, open_image
from swad.util.names import counted
from swad.util.progress import Progress


class Prediction(NamedTuple):
    """The most probable class of an image."""

    path: str
    domain: str
    label: str
    """The name of its true class; "" if it is unknown."""
    predicted: str
    probability: float


@dataclass
class Summary:
    """Counts of one domain."""

    images: int = 0
    labeled: int = 0
    correct: int = 0
    probability: float = 0.0
    """Sum over the images."""

    def add(self, prediction: Prediction) -> None:
        """Count a prediction."""
        self.images += 1
        self.labeled += prediction.label != ""
        self.correct += prediction.label == prediction.predicted
        self.probability += prediction.probability


@dataclass
class Predictions:
    """Predictions of images, one after the other, and their counts so far.

    Args:
        predictor: The model.
        images: The files.
        device: Where the model predicts.
        batch_size: Images per forward pass.
        group_size: Images of a domain that are predicted together, if predictions depend on the batch (ARM, MTL).
            Batches are then of one domain each, in random order.
        workers: Threads that decode. Default: one per core, at most 8.
        skip: Called with the reason why an image is skipped, which names it.
        progress: Called after each batch.
    """

    predictor: Predictor
    images: Sequence[ImageFile]
    device: torch.device
    batch_size: int = 32
    group_size: int | None = None
    workers: int | None = None
    skip: Callable[[str], None] = print
    progress: Progress | None = None
    by_domain: dict[str, Summary] = field(default_factory=dict, init=False)
    turned: int = field(default=0, init=False)
    """Number of images with an EXIF orientation, which is ignored as in training."""

    def __iter__(self) -> Iterator[Prediction]:
        model = self.predictor.model.to(self.device)
        normalize = Normalize(self.predictor.transform.image_spec, self.device)
        done = 0
        for batch, decoded in self._decoded():
            read = [(image, pixels) for image, pixels in zip(batch, decoded, strict=True) if pixels is not None]
            if read:
                with torch.inference_mode():
                    logits = model(normalize(torch.stack([pixels for _, pixels in read]).to(self.device)))
                    highest, classes = (values.tolist() for values in logits.float().softmax(1).max(1))
                for (image, _), probability, number in zip(read, highest, classes, strict=True):
                    predicted = self.predictor.class_names[number]
                    prediction = Prediction(str(image.path), image.domain, image.label, predicted, probability)
                    self.by_domain.setdefault(image.domain, Summary()).add(prediction)
                    yield prediction
            done += len(batch)
            if self.progress:
                self.progress("predicting", done, len(self.images))
        if not self.by_domain:
            raise DataError(
                f"none of {counted(len(self.images), 'image')} could be predicted: see why each was skipped"
            )

    def _decoded(self) -> Iterator[tuple[list[ImageFile], list[Tensor | None]]]:
        """Yield batches with their bytes, of which the next one is decoded while one is predicted."""
        waiting: deque[tuple[list[ImageFile], list[Future[tuple[Tensor | str, bool]]]]] = deque()
        with ThreadPoolExecutor(max(1, default_workers() if self.workers is None else self.workers)) as pool:
            for batch in (*self._batches(), []):
                waiting.append((batch, [pool.submit(self._read, image) for image in batch]))
                if len(waiting) == 1:
                    continue
                images, futures = waiting.popleft()
                results = [future.result() for future in futures]
                for result, is_turned in results:
                    self.turned += is_turned
                    if isinstance(result, str):
                        self.skip(result)
                yield images, [None if isinstance(result, str) else result for result, _ in results]

    def _read(self, image: ImageFile) -> tuple[Tensor | str, bool]:
        """Return the bytes of an image, or why there are none, and whether it has an EXIF orientation."""
        try:
            pixels = self.predictor.transform.pixels(image.path)
            with open_image(image.path) as opened:
                return pixels, not is_upright(opened)
        except (DataError, OSError) as error:
            return str(error) if str(image.path) in str(error) else f"{image.path}: {error}", False

    def _batches(self) -> Iterator[list[ImageFile]]:
        if self.group_size is None:
            yield from _split(self.images, self.batch_size)
            return
        by_domain = sorted(self.images, key=lambda image: image.domain)
        for _, group in groupby(by_domain, key=lambda image: image.domain):
            of_domain = list(group)
            random.Random(0).shuffle(of_domain)  # a group of one class would be unlike those in training
            yield from _split(of_domain, self.group_size)


def _split(images: Sequence[ImageFile], size: int) -> Iterator[list[ImageFile]]:
    return (list(images[start : start + size]) for start in range(0, len(images), size))
