"""JPEG files decoded, cropped and resized on the device: workers only read files and draw the crops.

A core decodes and crops about 300 images of ImageNet's size per second, and reads 2,900: an H200 trains on more than 16
cores decode. The crops are those of `swad.testbed.data.transforms`; pixels differ by rounding. TorchCodec is used where
it is installed (``pip install 'swad[torchcodec]'``), else torchvision, which will lose its decoders.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import torch
from PIL import ExifTags, Image
from torch import Tensor

from swad.gpu.cuda_graph import Inputs
from swad.testbed.data.augmentation import Augmentation
from swad.testbed.data.domains import Domain, FileDomain
from swad.testbed.data.images import Images
from swad.testbed.data.sampling import Draw, Pool, Seed, seeded
from swad.testbed.data.shards import ShardDomain
from swad.testbed.data.transforms import Normalize, to_pil
from swad.testbed.data.workers import read_ahead
from swad.util.images import open_image

K = TypeVar("K")


class EncodedImages(Images):
    """Images whose files worker processes read and the device decodes.

    Args:
        pool: The images.
        size: Height and width of the result.
        augmentation: Crop and flip; colors are not changed.
        normalize: From bytes on the device to images.
        views: Number of views.
        workers: Number of processes. Default: one per core, at most 8.
        device: Device that decodes.
    """

    copies_ahead = True

    def __init__(
        self,
        pool: Pool,
        size: int,
        augmentation: Augmentation,
        normalize: Normalize,
        *,
        views: int = 1,
        workers: int | None = None,
        device: torch.device,
    ) -> None:
        from torchvision.transforms import v2

        self.prepare, self.views, self._size, self._flip = normalize, views, size, augmentation.flip
        self._pool, self._workers, self._device = pool, workers, device
        self._crop = v2.RandomResizedCrop(size, scale=(augmentation.crop, 1.0)) if augmentation.crop < 1 else None

    def read(self, draw: Callable[[K], Draw], keys: Iterable[K]) -> Iterator[Inputs]:
        """Iterate over the encoded bytes of the images, and their crops."""
        return read_ahead(partial(self._read, draw), keys, self._workers, self._device)

    def _read(self, draw: Callable[[K], Draw], key: K) -> Inputs:
        drawn = draw(key)
        images = [self._read_image(*image) for image in drawn.images(self._pool, self.views)]
        encoded, crops = zip(*images, strict=True)
        return {
            "rows": torch.from_numpy(drawn.own_rows),
            "encoded": torch.cat(encoded),
            "lengths": torch.tensor([len(content) for content in encoded]),
            "crops": torch.stack(crops),
        }

    def _read_image(self, domain: Domain, key: int, seed: Seed | None) -> tuple[Tensor, Tensor]:
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

    def place(self, inputs: Inputs) -> Inputs:
        """Decode, crop and resize the images on the device."""
        from torchvision.transforms.v2 import functional

        images = []
        contents = torch.split(inputs["encoded"], inputs["lengths"].tolist())
        for image, (*box, flip) in zip(self._decode(contents), inputs["crops"].tolist(), strict=True):
            cropped = functional.resized_crop(image, *box, [self._size, self._size])
            images.append(cropped.flip(-1) if flip else cropped)
        return {"rows": inputs["rows"].to(self._device), "images": torch.stack(images)}

    def _decode(self, contents: tuple[Tensor, ...]) -> list[Tensor]:
        try:
            from torchcodec.decoders import decode_jpeg
        except (ImportError, RuntimeError):  # the latter where it finds no FFmpeg
            from torchvision.io import decode_jpeg
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torchvision says in every process that its decoders move to TorchCodec
            return decode_jpeg(list(contents), mode="RGB", device=self._device)  # type: ignore[no-any-return]


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
