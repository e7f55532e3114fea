"""Find the images that a finished run was evaluated on, for people to look at; torch is not needed."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from swad.testbed.data import benchmarks
from swad.testbed.data.domains import Dataset
from swad.util.images import eight_bits, open_image

if TYPE_CHECKING:
    from PIL.Image import Image


def find_picture(dataset: str, data_dir: str | None, domain: str, number: int, label: str, path: str) -> Image | None:
    """Return an image from its file, large ones smaller, or else from its dataset; None if it is not there any more.

    Args:
        dataset: Name of the dataset.
        data_dir: Its directory.
        domain: Name of the domain.
        number: Number of the image in the domain.
        label: Name of its class.
        path: Its file; "" if the images are no files.
    """
    try:
        from PIL import Image

        if path:
            with open_image(Path(path)) as file:
                file.draft("RGB", (256, 256))  # a large JPEG is decoded at an eighth of its size, six times as fast
                return eight_bits(file).convert("RGB")
        loaded = _load(dataset, data_dir)
        images = loaded.domains[loaded.index(domain)]
        if loaded.classes[images.labels[number]] != label:
            return None
        image = images.image(number)
    except Exception:  # Pillow raises many classes for damaged files; without it, a report names its mistakes
        return None
    if isinstance(image, np.ndarray):
        shown = np.zeros((*image.shape[:2], 3), np.uint8)
        shown[..., : image.shape[2]] = image  # one channel is repeated below, two are red and green
        return Image.fromarray(shown if image.shape[2] > 1 else image[..., 0])
    return image


@cache
def _load(dataset: str, data_dir: str | None) -> Dataset:
    return benchmarks.load(dataset, data_dir, check_counts=False)
