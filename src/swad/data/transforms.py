"""TODO."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from swad.data.domains import DataError, Domain, ImageSpec

if TYPE_CHECKING:
    pass

Transform = Callable[[Any], Tensor]


def train_transform(image_spec: ImageSpec) -> Transform:
    """The protocol's augmentation, from a PIL image to a byte tensor; small images are only made tensors."""
    from torchvision.transforms import v2

    if image_spec.low_res:
        return eval_transform(image_spec)
    return v2.Compose(  # type: ignore[no-any-return]
        [
            v2.RandomResizedCrop(image_spec.size, scale=(0.7, 1.0)),
            v2.RandomHorizontalFlip(),
            v2.ColorJitter(0.3, 0.3, 0.3, 0.3),
            v2.RandomGrayscale(0.1),
            v2.PILToTensor(),
        ]
    )


def eval_transform(image_spec: ImageSpec) -> Transform:
    """The protocol's evaluation transform, from a PIL image to a byte tensor: resized to a square, nothing cut off."""
    from torchvision.transforms import v2

    if image_spec.low_res:
        return v2.PILToTensor()  # type: ignore[no-any-return]
    return v2.Compose([v2.Resize((image_spec.size, image_spec.size)), v2.PILToTensor()])  # type: ignore[no-any-return]


class Normalize:
    """Bytes to floats: divided by 255, minus the mean, over the standard deviation, per channel."""

    def __init__(self, image_spec: ImageSpec, device: torch.device | str | None = None) -> None:
        if len(image_spec.mean) != image_spec.channels or len(image_spec.std) != image_spec.channels:
            got = f"{len(image_spec.mean)} and {len(image_spec.std)}"
            raise DataError(f"{image_spec.channels} channels need as many means and deviations, got {got}")
        self.mean = torch.tensor(image_spec.mean, device=device).view(-1, 1, 1)
        self.std = torch.tensor(image_spec.std, device=device).view(-1, 1, 1)

    def __call__(self, images: Tensor) -> Tensor:
        """Normalize a batch of byte images."""
        return images.to(torch.float32).div_(255).sub_(self.mean).div_(self.std)


def _pil(domain: Domain, key: int) -> Any:
    image = domain.image(key)
    if not isinstance(image, np.ndarray):
        return image
    from PIL import Image

    gray = image.shape[-1] == 1
    return Image.fromarray(image[..., 0] if gray else image)
