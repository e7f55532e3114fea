"""Evaluate classifiers of ImageNet on parts of its benchmarks: several at once, as fast as images can be decoded.

A part is a folder of images that are judged together, such as one corruption at one severity. Worker processes decode
the images of all parts in one stream, so a GPU never waits for workers to start. Each batch goes to the device once, as
bytes, and through every classifier.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate
from torch.utils.data import DataLoader, Dataset

from swad.robustness.imagenet import N_CLASSES, Part
from swad.util.images import DataError, InputConfig, read_image, without_worker_traceback
from swad.util.processes import available_cores
from swad.util.progress import Progress


class Classifier:
    """A model with its input and its classes: from images as bytes to outputs in fp32.

    Args:
        model: From normalized images to outputs.
        input: Size, crop and normalization of the images that the model takes.
        classes: Class of ImageNet of every output, for a model of some of them. Default: all 1,000 in their order, or
            the labels of a benchmark.
        device: Device to compute on.
        bf16: Compute in bf16.
    """

    def __init__(
        self,
        model: nn.Module,
        input: InputConfig | None = None,
        classes: Sequence[int] | None = None,
        *,
        device: torch.device | str = "cpu",
        bf16: bool = False,
    ) -> None:
        self.input = input or InputConfig()
        self.device, self.bf16 = torch.device(device), bf16
        # Convolutions of a GPU are fastest in this layout, and decoded images already have it.
        layout = torch.channels_last if self.device.type == "cuda" else torch.preserve_format
        self.model = model.eval().to(self.device).to(memory_format=layout)
        self.classes = torch.arange(N_CLASSES) if classes is None else torch.tensor(classes)
        self._columns = None if classes is None else self.classes.to(self.device)
        self._mean = torch.tensor(self.input.mean, device=self.device).view(-1, 1, 1)
        self._std = torch.tensor(self.input.std, device=self.device).view(-1, 1, 1)

    def __call__(self, images: Tensor) -> Tensor:
        """Return the outputs for `[images, 3, height, width]`: bytes, or floats from 0 to 1."""
        values = images.float() / 255 if images.dtype == torch.uint8 else images
        if values.shape[2:] != (self.input.size, self.input.size):
            size = (self.input.size, self.input.size)
            mode = "bilinear" if self.input.interpolation == "bilinear" else "bicubic"  # PIL has more
            values = interpolate(values, size, mode=mode, antialias=True).clamp(0, 1)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            outputs: Tensor = self.model((values - self._mean) / self._std)
        outputs = outputs.float()
        if self._columns is None:
            return outputs
        everything = outputs.new_full((len(outputs), N_CLASSES), -torch.inf)
        everything[:, self._columns] = outputs
        return everything


def decode(image: Any, input: InputConfig, stored: bool) -> Tensor:
    """Turn an RGB image into bytes, `[height, width, 3]`, as ImageNet is evaluated: resize, then crop the center.

    A stored image that already has the size of the input is not touched, and any other is resized without a crop
    inside it.
    """
    if not stored or image.size != (input.size, input.size):
        short = input.size if stored else int(input.size / input.crop)
        size = tuple(int(short * side / min(image.size)) for side in image.size)
        if size != image.size:
            image = image.resize(size, _resampling(input.interpolation))
        left, top = (round((side - input.size) / 2) for side in size)
        image = image.crop((left, top, left + input.size, top + input.size))
    return torch.from_numpy(np.array(image))


def _resampling(name: str) -> Any:
    from PIL import Image

    return Image.Resampling[name.upper()]


class _Files(Dataset[Tensor]):
    """The images of several parts, one after the other; `input` as in `image_batches`."""

    def __init__(self, parts: Sequence[Part], input: InputConfig | tuple[int, int]) -> None:
        self.parts, self.input = parts, input
        self.ends = np.cumsum([len(part.images) for part in parts])

    def __getitem__(self, index: int) -> Tensor:
        number = int(np.searchsorted(self.ends, index, side="right"))
        part = self.parts[number]
        path = part.images.path(index - int(self.ends[number]))  # counted from the end of the part
        image = read_image(path)
        if isinstance(self.input, InputConfig):
            return decode(image, self.input, part.stored)
        if (image.height, image.width) != self.input:
            height, width = self.input
            raise DataError(
                f"images and masks of the challenge must have one size: {path} has {image.height} x {image.width} "
                f"pixels, masks have {height} x {width}; restore the files"
            )
        return torch.from_numpy(np.array(image))


def default_batch_size(device: torch.device) -> int:
    """Return the images of a forward pass: enough to fill a GPU; on a CPU large batches cause page faults."""
    return 256 if device.type == "cuda" else 32


def image_batches(
    parts: Sequence[Part],
    input: InputConfig | tuple[int, int],
    device: torch.device,
    batch_size: int | None = None,
    workers: int | None = None,
) -> Iterator[tuple[int, Tensor]]:
    """Yield the number of a part and a batch of its images, `[images, 3, height, width]` as bytes on the device.

    Args:
        parts: The parts, in the order in which they are read. A batch holds images of one part.
        input: Input of the model; or the height and width that all images have, for images as they are.
        device: Device of the batches.
        batch_size: Images of a batch. Default: 256 on a GPU, 32 on a CPU.
        workers: Processes that decode images. Default: one per core on a GPU, else half of them.
    """
    on_gpu = device.type == "cuda"
    batch_size = batch_size or default_batch_size(device)
    workers = max(1, available_cores() // (1 if on_gpu else 2)) if workers is None else workers
    files, numbers, batches = _Files(parts, input), [], []
    for number, end in enumerate(files.ends.tolist()):
        start = end - len(parts[number].images)
        for first in range(start, end, batch_size):
            numbers.append(number)
            batches.append(range(first, min(first + batch_size, end)))
    loader = DataLoader(files, batch_sampler=batches, num_workers=workers, pin_memory=on_gpu)  # type: ignore[arg-type]
    with without_worker_traceback():
        for number, batch in zip(numbers, loader, strict=True):
            yield number, batch.to(device, non_blocking=True).permute(0, 3, 1, 2)


def evaluate(
    classifiers: Mapping[str, Classifier],
    parts: Sequence[tuple[Part, Sequence[str]]],
    *,
    batch_size: int | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Iterator[tuple[Part, dict[str, tuple[int, int]]]]:
    """Yield every part with the number of correct and of judged images by classifier, as soon as they are known.

    A classifier of some of the classes is judged on the images of labels that it knows.

    Args:
        classifiers: Classifiers by name, with the same input and device.
        parts: Each part, with the names of the classifiers to evaluate on it.
        batch_size: Images of a forward pass.
        workers: Processes that decode images.
        progress: Called after every batch with the images that are done.
    """
    first = next(iter(classifiers.values()))
    total, done = sum(len(part.images) for part, _ in parts), 0
    stream = image_batches([part for part, _ in parts], first.input, first.device, batch_size, workers)
    for number, batches in groupby(stream, key=itemgetter(0)):
        part, names = parts[number]
        labels, position = torch.from_numpy(part.images.labels).to(first.device), 0
        correct = {name: torch.zeros((), dtype=torch.long, device=first.device) for name in names}
        for _, images in batches:
            now = slice(position, position + len(images))
            with torch.inference_mode():
                for name in names:  # counts are read at the end of the part: no wait for a GPU
                    correct[name] += (part.labels.predict(classifiers[name](images)) == labels[now]).sum()
            position, done = position + len(images), done + len(images)
            if progress is not None:
                progress("images", done, total)
        known = {name: part.labels.known(classifiers[name].classes).numpy() for name in names}
        yield part, {name: (int(correct[name]), int(np.isin(part.images.labels, known[name]).sum())) for name in names}
