"""Epochs without replacement, as pure functions of the seed and the step, in parts."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.batches import batch_at, iterate
from swad.testbed.data.augmentation import Augmentation
from swad.testbed.data.device_decode import jpeg
from swad.testbed.data.domains import ArrayDomain, FileDomain, ImageSpec
from swad.testbed.data.epoch_loader import EpochLoader
from swad.testbed.data.splits import DomainSplit
from swad.testbed.data.transforms import eval_transform, train_transform
from swad.testbed.training.recipe import AUGMENTATION
from swad.util.images import DataError

SPEC = ImageSpec(size=8)


def splits() -> tuple[DomainSplit, ...]:
    """Two domains of which every second image is for training: 23 in all, whose label is their number."""
    draw = np.random.RandomState(0)
    domains = [
        ArrayDomain(name, np.arange(n) + first, draw.randint(0, 256, (n, 12, 10, 3)).astype(np.uint8))
        for name, n, first in (("a", 20, 0), ("b", 26, 20))
    ]
    return tuple(DomainSplit(domain, "train", np.arange(0, len(domain), 2)) for domain in domains)


def loader(**options) -> EpochLoader:
    return EpochLoader(splits(), SPEC, **{"batch_size": 6, "seed": 3, "workers": 0, **options})


def test_an_epoch_takes_every_image_at_most_once():
    batches = loader()
    assert batches.steps_per_epoch == 3
    epochs = [np.concatenate([batches.rows(3 * epoch + step) for step in (1, 2, 3)]) for epoch in range(2)]
    training = {*range(0, 20, 2), *range(20, 46, 2)}
    for rows in epochs:
        assert len(set(rows)) == 18
        assert set(rows) <= training
    assert epochs[0].tolist() != epochs[1].tolist()
    assert loader(seed=4).rows(1).tolist() != batches.rows(1).tolist()
    # The left-out images differ between epochs.
    assert set.union(*({*rows} for rows in (loader().rows(step) for step in range(1, 40)))) == training


def test_labels_and_pixels_belong_together():
    spec = ImageSpec(size=12, low_res=True)
    batch = batch_at(EpochLoader(splits(), spec, 6, 3, workers=0), 2)
    domains = [split.domain for split in splits()]
    images = {int(d.labels[i]): d.images[i] for d in domains for i in range(len(d))}
    mean, std = np.array(spec.mean), np.array(spec.std)
    for image, label in zip(batch.images, batch.labels.tolist(), strict=True):
        expected = (images[label] / 255 - mean) / std
        np.testing.assert_allclose(image.permute(1, 2, 0).numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"micro_batch": 2}, {"micro_batch": 3, "workers": 1}], ids=str)
def test_a_batch_depends_on_the_seed_and_the_step_alone(options):
    for step, batch in enumerate(iterate(loader(**options), 2, 5), start=2):
        expected = batch_at(loader(), step)
        assert batch.step == step
        assert batch.labels.equal(expected.labels)
        assert batch.images.equal(expected.images)


def test_parts_and_processes_share_a_batch():
    whole = batch_at(loader(), 4)
    ranks = [loader(rank=rank, world_size=2, micro_batch=2) for rank in range(2)]
    assert [rank.n_parts for rank in ranks] == [3, 3]  # 3 images do not divide into parts of 2
    parts = [batch_at(rank, 4) for rank in ranks]
    assert torch.cat([part.images for part in parts]).equal(whole.images)
    assert torch.cat([part.labels for part in parts]).equal(whole.labels)


@pytest.mark.parametrize("crop", [0.2, 1])
def test_a_device_decodes_the_same_crops(crop):
    """Smooth images of 40 x 60 pixels: the two decoders and resizers differ by rounding, other crops by far more."""
    y, x = np.mgrid[0:40, 0:60]
    images = np.stack([np.stack([4 * x + i, 6 * y, 2 * x + 3 * y], -1) for i in range(8)]).astype(np.uint8)
    split = DomainSplit(ArrayDomain("a", np.arange(8), images), "train", np.arange(8))
    crops = Augmentation(crop=crop, jitter=0, grayscale=0)
    pair = [
        EpochLoader([split], SPEC, 8, 3, augmentation=crops, micro_batch=4, workers=0, decode_on_device=on_device)
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


def test_an_image_is_cropped_anew_in_every_step():
    images = np.random.RandomState(0).randint(0, 256, (1, 40, 60, 3), np.uint8)
    split = DomainSplit(ArrayDomain("a", np.zeros(1, np.int64), images), "train", np.arange(1))
    batches = EpochLoader([split], SPEC, 1, 3, augmentation=Augmentation(jitter=0, grayscale=0), workers=0)
    assert not batch_at(batches, 1).images.equal(batch_at(batches, 2).images)


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


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(DataError, match="parts of up to 3 images, but 7 divide only into parts of 1: choose"):
        loader(batch_size=7, micro_batch=3)
    with pytest.raises(DataError, match="must not exceed the 23 training images, got 24: lower batch_size"):
        loader(batch_size=24)


def test_imagenet_transforms_keep_proportions():
    """A wide image loses its sides in evaluation, and crops of training may be small."""
    wide = Image.fromarray(np.repeat(np.arange(40, dtype=np.uint8)[None, :, None], 20, 0).repeat(3, 2) * 6)
    center = eval_transform(ImageSpec(size=14, center_crop=True))(wide)
    assert center.shape == (3, 14, 14)
    # 40 x 20 pixels become 32 x 16, of which columns 9 to 22 remain: 11.25 to 28.75 of the original.
    assert center[0, 7, 0].item() == pytest.approx(11.375 * 6, abs=3)
    assert center[0, 7, -1].item() == pytest.approx(27.6 * 6, abs=3)
    crop = train_transform(ImageSpec(size=14), Augmentation(**AUGMENTATION))
    torch.manual_seed(0)
    widths = [abs(int(image[0, 7, -1]) - int(image[0, 7, 0])) for image in (crop(wide) for _ in range(30))]
    assert min(widths) < 40 < max(widths)
