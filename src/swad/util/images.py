"""Image files as 8-bit RGB, for everything that reads some; torch is not needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import numpy as np

from swad.util.names import one_line

if TYPE_CHECKING:
    from PIL import Image


class DataError(ValueError):
    """Data is missing, damaged or not as expected; the message is one line that says what to do."""


def read_image(path: Path, content: BinaryIO | None = None) -> Image.Image:
    """Decode an image file as 8-bit RGB; the error names a file that cannot be decoded.

    The EXIF orientation is not applied, and the alpha channel is dropped.

    Args:
        path: The file.
        content: Its content, if it is not a file of its own.
    """
    from PIL import Image

    try:
        with Image.open(content or path) as image:
            return eight_bits(image).convert("RGB")
    # Pillow's plugins raise more than OSError on broken files (SyntaxError, struct.error, DecompressionBombError).
    except Exception as error:
        reason = getattr(error, "strerror", None) or one_line(error)
        if isinstance(error, Image.UnidentifiedImageError):  # its message names an object in memory
            reason = "it is in no known image format"
        raise DataError(f"cannot decode image {path}: {reason}; replace or remove it") from error


def eight_bits(image: Image.Image) -> Image.Image:
    """Scale 16-bit gray images to 8 bits, as Pillow does with 16-bit colors; it would clip gray ones at 255.

    A palette gets its alpha channel, without which Pillow warns about every image.
    """
    from PIL import Image

    # Pillow widens 16-bit PGM files to 32 bits; older versions do so with PNG files too.
    is_16_bit = image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM"))
    if is_16_bit:
        tags = getattr(image, "tag_v2", {})
        bits = tags.get(258, (16,))[0]  # TIFF files may have 12
        pixels = (np.asarray(image).astype(np.uint32) >> (bits - 8)).astype(np.uint8)
        # TIFF files may store white as 0, as X-ray devices do; Pillow inverts only those of 8 bits.
        return Image.fromarray(255 - pixels if tags.get(262) == 0 else pixels)
    if image.mode in ("I", "F"):
        raise ValueError(f"pixels of mode {image.mode} have no defined range; save it with 8 or 16 bits")
    return image.convert("RGBA") if image.mode == "P" and "transparency" in image.info else image


EXTENSIONS = frozenset({".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"})


@contextmanager
def without_worker_traceback() -> Iterator[None]:
    """Reduce a worker's `DataError`, which torch wraps in the worker's traceback, to its message."""
    try:
        yield
    except DataError as error:
        name = f"{DataError.__module__}.{DataError.__name__}: "
        raise DataError(str(error).strip().splitlines()[-1].removeprefix(name)) from None


class InputConfig(NamedTuple):
    """The images that a network was made for."""

    size: int = 224
    """Height and width."""
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    crop: float = 0.875
    """Share of the shorter side that is kept when ImageNet is evaluated."""
    interpolation: str = "bilinear"
