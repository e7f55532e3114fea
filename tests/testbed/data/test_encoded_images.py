"""Files that the device decodes: the same crops as workers make, and only files that it can decode."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from helpers.batches import batch_at, train_loader
from swad.testbed.data.augmentation import Augmentation
from swad.testbed.data.domains import ArrayDomain, FileDomain, ImageSpec
from swad.testbed.data.encoded_images import jpeg
from swad.testbed.data.splits import DomainSplit
from swad.util.images import DataError

SPEC = ImageSpec(size=8)


@pytest.mark.parametrize("crop", [0.2, 1])
def test_a_device_decodes_the_same_crops(crop):
    """Smooth images of 40 x 60 pixels: the two decoders and resizers differ by rounding, other crops by far more."""
    y, x = np.mgrid[0:40, 0:60]
    images = np.stack([np.stack([4 * x + i, 6 * y, 2 * x + 3 * y], -1) for i in range(8)]).astype(np.uint8)
    split = DomainSplit(ArrayDomain("a", np.arange(8), images), "train", np.arange(8))
    crops = Augmentation(crop=crop, jitter=0, grayscale=0)
    pair = [
        train_loader([split], SPEC, 8, 3, epochs=True, augmentation=crops, micro_batch=4, decode_on_device=on_device)
        for on_device in (False, True)
    ]
    for step in (1, 2):
        host, device = (batch_at(loader, step) for loader in pair)
        assert device.labels.equal(host.labels)
        assert device.images.shape == host.images.shape
        levels = (device.images - host.images).abs() * 255 * 0.225
        assert levels.mean() < 2
        if crop < 1:
            assert (host.images[0] - host.images[1]).abs().mean() * 255 * 0.225 > 10


def test_devices_get_files_that_they_can_decode(tmp_path):
    pixels = np.random.RandomState(0).randint(0, 256, (9, 8, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "rgb.jpg")
    Image.fromarray(pixels).convert("CMYK").save(tmp_path / "cmyk.jpg")
    Image.fromarray(pixels).save(tmp_path / "png.jpg", "PNG")
    turned = Image.Exif()
    turned[0x0112] = 6  # a quarter turn, which only TorchCodec applies
    Image.fromarray(pixels).save(tmp_path / "exif.jpg", exif=turned)
    names = ("rgb.jpg", "cmyk.jpg", "png.jpg", "exif.jpg")
    domain = FileDomain("a", np.zeros(4, np.int64), tmp_path, names)
    assert jpeg(domain, 0) == (tmp_path / "rgb.jpg").read_bytes()
    (tmp_path / "damaged.jpg").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"cannot decode image .*damaged\.jpg: it is in no known image format"):
        jpeg(FileDomain("b", np.zeros(1, np.int64), tmp_path, ("damaged.jpg",)), 0)
    for number in (1, 2, 3):
        with Image.open(io.BytesIO(jpeg(domain, number))) as image:
            assert (image.format, image.mode, image.size, dict(image.getexif())) == ("JPEG", "RGB", (8, 9), {})
