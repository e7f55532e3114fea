"""The transforms equal DomainBed's."""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as v1

from swad.data.domains import DataError, ImageSpec
from swad.data.transforms import Normalize, eval_transform, to_pil, train_transform


def test_transforms_equal_torchvisions_first_version():
    # DomainBed uses the older torchvision transforms; they draw from the same stream.
    image = Image.fromarray(np.random.RandomState(0).randint(0, 256, (20, 24, 3)).astype(np.uint8))
    normalize = v1.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    twin = v1.Compose(
        [
            v1.RandomResizedCrop(224, scale=(0.7, 1.0)),
            v1.RandomHorizontalFlip(),
            v1.ColorJitter(0.3, 0.3, 0.3, 0.3),
            v1.RandomGrayscale(0.1),
            v1.ToTensor(),
            normalize,
        ]
    )
    image_spec = ImageSpec()
    for seed in range(12):
        torch.manual_seed(seed)
        ours = Normalize(image_spec)(train_transform(image_spec)(image)[None])[0]
        torch.manual_seed(seed)
        torch.testing.assert_close(ours, twin(image))
    ours = Normalize(image_spec)(eval_transform(image_spec)(image)[None])[0]
    twin = v1.Compose([v1.Resize((224, 224)), v1.ToTensor(), normalize])
    torch.testing.assert_close(ours, twin(image))


def test_low_resolution_images_are_not_changed():
    image_spec = ImageSpec(size=6, low_res=True)
    for channels in (1, 3):
        image = np.random.RandomState(0).randint(0, 256, (6, 7, channels)).astype(np.uint8)
        for transform in (train_transform(image_spec), eval_transform(image_spec)):
            pixels = transform(to_pil(image))
            assert pixels.equal(torch.from_numpy(image).permute(2, 0, 1))
            assert pixels.equal(v1.PILToTensor()(to_pil(image)))
            assert pixels.is_contiguous()


def test_normalization_needs_one_mean_per_channel():
    with pytest.raises(DataError, match="must have 1 values, one per channel, got 3 and 3"):
        Normalize(ImageSpec(channels=1))
