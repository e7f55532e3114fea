"""Image files as 8-bit RGB, for everything that reads some; torch is not needed."""

from __future__ import annotations

import os
import re
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import numpy as np

from swad.util.files import require_regular
from swad.util.names import one_line

if TYPE_CHECKING:
    from PIL import Image


class DataError(ValueError):
    """Data is missing, damaged or not as expected; the message is one line that says what to do."""


LUMINANCE = (0.2989, 0.587, 0.114)
"""Weights of red, green and blue in torchvision's gray."""

FORMATS = {
    "JPEG": (".jpg", ".jpeg"),
    "PNG": (".png",),
    "PPM": (".ppm", ".pgm"),
    "BMP": (".bmp",),
    "TIFF": (".tif", ".tiff"),
    "WEBP": (".webp",),
}
"""The formats that are read, by Pillow's names, with their extensions. Pillow reads more, EPS with Ghostscript."""
EXTENSIONS = frozenset(chain(*FORMATS.values()))
MAX_MEGAPIXELS = 120
"""Images of more pixels are refused. Cameras have 12 to 108 million; a file of 500 kB can declare any number."""


def is_image(name: str) -> bool:
    """Return whether a file's name has the extension of a format that is read."""
    return os.path.splitext(name)[1].lower() in EXTENSIONS


def image_files(folder: Path) -> list[str]:
    """Return the names of the image files that are directly in a folder, sorted, without hidden ones."""
    return sorted(e.name for e in entries(folder) if is_image(e.name) and not e.name.startswith(".") and e.is_file())


def entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return what is directly in a folder of images."""
    try:
        return list(os.scandir(folder))
    except PermissionError:
        raise DataError(f"no permission to read the folder {folder}; change its permissions or remove it") from None


def open_image(path: Path, content: BinaryIO | None = None) -> Image.Image:
    """Open an image file of an allowed format and size with Pillow, which reads its header.

    Args:
        path: The file.
        content: Its content, if it is not a file of its own.
    """
    from PIL import Image

    # The limit is ours, so Pillow's warning says nothing. `catch_warnings` would show others at every image, not once.
    if all(category is not Image.DecompressionBombWarning for _, _, category, *_ in warnings.filters):
        warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
    if content is None:
        require_regular(path)  # a pipe would wait for a writer
    try:
        image = Image.open(content or path, formats=list(FORMATS))
    except Image.DecompressionBombError as error:
        _require_allowed_size(path, int(re.findall(r"\d+", str(error))[0]))
        raise
    try:
        _require_allowed_size(path, image.width * image.height)
    except DataError:
        image.close()
        raise
    return image


def _require_allowed_size(path: Path, pixels: int) -> None:
    if pixels > MAX_MEGAPIXELS * 1e6:
        raise DataError(
            f"an image must have at most {MAX_MEGAPIXELS} megapixels, but {path} has {pixels:,} pixels: "
            "shrink, replace or remove it"
        )


def read_image(path: Path, content: BinaryIO | None = None) -> Image.Image:
    """Decode an image file as 8-bit RGB; the error names a file that cannot be decoded.

    The EXIF orientation is not applied, and the alpha channel is dropped.

    Args:
        path: The file.
        content: Its content, if it is not a file of its own.
    """
    from PIL import Image

    try:
        with open_image(path, content) as image:
            image.load()
            if image.format == "PNG" and _may_lack_rows(image) and not _has_all_rows(path, content):
                raise OSError("image file is truncated")
            return eight_bits(image).convert("RGB")
    except DataError:
        raise
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


ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""First column and row, and steps to the next ones, of the passes of an interlaced PNG file."""


def _may_lack_rows(image: Image.Image) -> bool:
    """Whether a decoded PNG file may lack rows: Pillow leaves their pixels at zero. Interlaced ones end anywhere."""
    return "interlace" in image.info or not any(image.crop((0, image.height - 1, *image.size)).tobytes())


def _has_all_rows(path: Path, content: BinaryIO | None) -> bool:
    """Whether the data of a PNG file, which Pillow has decoded, are as long as its header says."""
    if content is not None:
        content.seek(0)
    encoded = path.read_bytes() if content is None else content.read()
    width, height, depth, color, interlaced = struct.unpack(">IIBB2xB", encoded[16:29])
    bits = depth * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[color]
    missing = 0
    for left, top, right, down in ADAM7 if interlaced else ((0, 0, 1, 1),):
        columns, rows = -(-(width - left) // right), -(-(height - top) // down)
        missing += rows * (1 + -(-columns * bits // 8)) if columns else 0  # each row has a byte for its filter
    inflate, at = zlib.decompressobj(), 8
    while missing > 0 and at < len(encoded):
        size, kind = struct.unpack(">I4s", encoded[at : at + 8])
        data = encoded[at + 8 : at + 8 + size] if kind == b"IDAT" else b""
        while data and missing > 0:
            missing -= len(inflate.decompress(data, 1 << 20))  # in parts, since a small file may hold any number
            data = inflate.unconsumed_tail
        at += size + 12
    return missing <= len(inflate.flush())


@contextmanager
def without_worker_traceback() -> Iterator[None]:
    """Reduce a worker's `DataError`, which torch wraps in the worker's traceback, to its message."""
    try:
        yield
    except DataError as error:
        name = f"{DataError.__module__}.{DataError.__name__}: "
        raise DataError(str(error).strip().splitlines()[-1].removeprefix(name)) from None


IMAGENET_MEAN = (0.485, 0.456, 0.406)
"""Mean of red, green and blue on ImageNet, for pixels from 0 to 1."""
IMAGENET_STD = (0.229, 0.224, 0.225)
"""Standard deviation of red, green and blue on ImageNet."""


class InputConfig(NamedTuple):
    """The images that a network was made for."""

    size: int = 224
    """Height and width."""
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    crop: float = 0.875
    """Share of the shorter side that is kept when ImageNet is evaluated."""
    interpolation: str = "bilinear"
