"""JPEG files decoded, cropped and resized on the device: workers only read files and draw the crops.

A core decodes and crops about 300 images of ImageNet's size per second, and reads 2,900: an H200 trains on more than 16
cores decode. The crops are those of `swad.testbed.data.transforms`; pixels differ by rounding. TorchCodec is used where
it is installed, else torchvision, which will lose its decoders.
"""

from __future__ import annotations

import io
import warnings
from contextlib import suppress
from typing import Any

import torch
from PIL import ExifTags, Image
from torch import Tensor

from swad.testbed.data.augmentation import Augmentation
from swad.testbed.data.domains import Domain, FileDomain
from swad.testbed.data.loaders import seeded
from swad.testbed.data.shards import ShardDomain
from swad.testbed.data.transforms import to_pil
from swad.util.images import open_image


class DeviceDecoder:
    """Makes augmented bytes from JPEG files.

    Args:
        size: Height and width of the result.
        augmentation: Crop and flip; colors are not changed.
        device: Device that decodes.
    """

    def __init__(self, size: int, augmentation: Augmentation, device: torch.device) -> None:
        from torchvision.transforms import v2

        self.size, self.device, self._flip = size, device, augmentation.flip
        self._crop = v2.RandomResizedCrop(size, scale=(augmentation.crop, 1.0)) if augmentation.crop < 1 else None

    def read(self, domain: Domain, key: int, seed: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Return the encoded bytes of an image, and its crop: top, left, height, width, and 1 for a flip."""
        content = jpeg(domain, key)
        # Reads the size without decoding.
        with Image.open(io.BytesIO(content), formats=["JPEG"]) as image, seeded(seed):
            crop: dict[str, Any] = {"top": 0, "left": 0, "height": image.height, "width": image.width}
            if self._crop is not None:
                crop = self._crop.make_params([image])
            flip = bool(torch.rand(1) < self._flip)
        box = [crop["top"], crop["left"], crop["height"], crop["width"], int(flip)]
        return torch.frombuffer(bytearray(content), dtype=torch.uint8), torch.tensor(box)

    def __call__(self, encoded: Tensor, lengths: Tensor, crops: Tensor) -> Tensor:
        """Decode, crop and resize images: ``[images, channels, size, size]``.

        Args:
            encoded: The encoded bytes of all images, one after another, in host memory.
            lengths: Number of bytes of each image.
            crops: The crop of each image, as `read` returns it.
        """
        from torchvision.transforms.v2 import functional

        images = []
        for image, (*box, flip) in zip(
            self._decode(torch.split(encoded, lengths.tolist())), crops.tolist(), strict=True
        ):
            cropped = functional.resized_crop(image, *box, [self.size, self.size])
            images.append(cropped.flip(-1) if flip else cropped)
        return torch.stack(images)

    def _decode(self, contents: tuple[Tensor, ...]) -> list[Tensor]:
        try:
            from torchcodec.decoders import decode_jpeg
        except (ImportError, RuntimeError):  # the latter where it finds no FFmpeg
            from torchvision.io import decode_jpeg
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torchvision says in every process that its decoders move to TorchCodec
            return decode_jpeg(list(contents), mode="RGB", device=self.device)  # type: ignore[no-any-return]


def jpeg(domain: Domain, key: int) -> bytes:
    """Return an image as JPEG. Other formats, colors that devices do not decode, and turned images are encoded with
    quality 100.
    """
    if isinstance(domain, FileDomain | ShardDomain):
        content = domain.content(key)
        # domain.image names an image that is damaged or too large.
        with suppress(Exception), open_image(domain.path(key), io.BytesIO(content)) as image:
            if image.format == "JPEG" and image.mode in ("RGB", "L") and _is_upright(image):
                return content
    out = io.BytesIO()
    to_pil(domain.image(key)).convert("RGB").save(out, "JPEG", quality=100, subsampling=0)
    return out.getvalue()


def _is_upright(image: Image.Image) -> bool:
    """Whether the image has no EXIF orientation: TorchCodec always applies it, but crops are drawn without it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of damaged EXIF data
            return bool(image.getexif().get(ExifTags.Base.Orientation, 1) == 1)
    except Exception:  # Pillow raises many classes
        return False
