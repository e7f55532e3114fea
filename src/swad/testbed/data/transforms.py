"""Transforms of DomainBed and of ImageNet: PIL images to byte tensors on the CPU, then normalization on the device."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from swad.testbed.data.augmentation import Augmentation
from swad.testbed.data.domains import ByteArray, ImageSpec
from swad.util.images import DataError, eight_bits, read_image

if TYPE_CHECKING:
    from PIL import Image

Transform = Callable[[Any], Tensor]
"""From a PIL image to a byte tensor, ``[channels, height, width]``."""


def train_transform(image_spec: ImageSpec, augmentation: Augmentation | None = None) -> Transform:
    """Return the training augmentation, by default DomainBed's; low-resolution images are not augmented."""
    if image_spec.low_res:
        return eval_transform(image_spec)
    from torchvision.transforms import v2

    chosen, size = augmentation or Augmentation(), image_spec.size
    crops = chosen.crop < 1
    colors = []
    if chosen.jitter or chosen.grayscale:
        colors = [v2.ColorJitter(*[chosen.jitter] * 4), v2.RandomGrayscale(chosen.grayscale)]
    return v2.Compose(  # type: ignore[no-any-return]
        [
            v2.RandomResizedCrop(size, scale=(chosen.crop, 1.0)) if crops else v2.Resize((size, size)),
            v2.RandomHorizontalFlip(chosen.flip),
            *colors,
            v2.PILToTensor(),
        ]
    )


def eval_transform(image_spec: ImageSpec) -> Transform:
    """Return the evaluation transform: resize the whole image to a square; low-resolution images keep their size.

    A center crop keeps the proportions: the shorter side becomes 8/7 of the size (256 for 224). Images that a cache
    resized are resized twice.
    """
    if image_spec.low_res:
        return partial(to_bytes, size=image_spec.size)
    from torchvision.transforms import v2

    if image_spec.center_crop:
        resize = v2.Resize(round(image_spec.size * 8 / 7))
        return v2.Compose([resize, v2.CenterCrop(image_spec.size), v2.PILToTensor()])  # type: ignore[no-any-return]
    sizes = [size for size in (image_spec.resized_to, (image_spec.size, image_spec.size)) if size is not None]
    return v2.Compose([*map(v2.Resize, sizes), v2.PILToTensor()])  # type: ignore[no-any-return]


def to_bytes(image: Image.Image, size: int) -> Tensor:
    """Convert a PIL image of a size to a byte tensor, as torchvision does, whose import takes longer than a small
    experiment.
    """
    if image.size != (size, size):
        raise DataError(
            f"low-resolution images keep their size, which must be {size} × {size}, got "
            f"{image.height} × {image.width}: resize the image"
        )
    pixels = torch.from_numpy(np.array(image))
    return pixels.view(image.height, image.width, -1).permute(2, 0, 1).contiguous()


class Normalize:
    """Bytes to floats: divide by 255, subtract the mean and divide by the standard deviation of each channel.

    Args:
        image_spec: Mean and deviation.
        device: Device of the images.
        memory_format: Memory format of the result, in which the network wants it. Default: that of the images.
    """

    def __init__(
        self,
        image_spec: ImageSpec,
        device: torch.device | str | None = None,
        memory_format: torch.memory_format | None = None,
    ) -> None:
        if len(image_spec.mean) != image_spec.channels or len(image_spec.std) != image_spec.channels:
            got = f"{len(image_spec.mean)} and {len(image_spec.std)}"
            raise DataError(f"mean and std must have {image_spec.channels} values, one per channel, got {got}")
        self.mean = torch.tensor(image_spec.mean, device=device).view(-1, 1, 1)
        self.std = torch.tensor(image_spec.std, device=device).view(-1, 1, 1)
        self.memory_format = memory_format

    def __call__(self, images: Tensor) -> Tensor:
        """Normalize a batch of byte images."""
        images = images.to(torch.float32).div_(255).sub_(self.mean).div_(self.std)
        return images if self.memory_format is None else images.contiguous(memory_format=self.memory_format)


class PredictorTransform:
    """From an image to the tensor that a saved model was evaluated on, ``[channels, height, width]``.

    An image is a path, a PIL image, or a uint8 array ``[height, width, channels]`` or ``[height, width]``. As in
    training, the EXIF orientation is ignored. The transform can be pickled, for the workers of a `DataLoader`.
    """

    def __init__(self, image_spec: ImageSpec) -> None:
        self.image_spec = image_spec
        self.normalize = Normalize(image_spec)
        self._resize = eval_transform(image_spec)
        self._mode = {1: "L", 3: "RGB"}.get(image_spec.channels)

    def __call__(self, image: Image.Image | ByteArray | str | os.PathLike[str]) -> Tensor:
        """Resize and normalize an image."""
        return self.normalize(self.pixels(image))

    def pixels(self, image: Image.Image | ByteArray | str | os.PathLike[str]) -> Tensor:
        """Return the bytes of the resized image, before they are normalized."""
        from PIL import Image

        if isinstance(image, str | os.PathLike):
            image = read_image(Path(image))
        elif (
            isinstance(image, np.ndarray)
            and image.dtype == np.uint8
            and image.size
            and (image.ndim == 2 or image.shape[2:] in ((1,), (2,), (3,), (4,)))
        ):
            image = to_pil(image if image.ndim == 3 else image[..., None])
        elif not isinstance(image, Image.Image):
            got = f"{image.dtype} {tuple(image.shape)}" if hasattr(image, "dtype") else type(image).__name__
            raise DataError(
                "an image must be a path, a PIL image or a uint8 array [height, width, channels], "
                f"got {got}: convert it"
            )
        return self._resize(image if self._mode is None else eight_bits(image).convert(self._mode))


def to_pil(image: Image.Image | ByteArray) -> Image.Image:
    """Convert an image of a domain to PIL; images from files already are."""
    if not isinstance(image, np.ndarray):
        return image
    from PIL import Image

    return Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
