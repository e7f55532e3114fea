"""Sources of images: from the cache every image has its own label, domain, parameters and process; devices decode the
same crops as workers, and get only files that they can decode."""

from __future__ import annotations

import io
from itertools import islice

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.batches import batch_at, iterate, keys_at, train_loader
from swad.testbed.data import augment_parameters, device_store, gpu_augment
from swad.testbed.data.augmentation import Augmentation
from swad.testbed.data.cache import open_cache
from swad.testbed.data.device_store import Streaming
from swad.testbed.data.domains import ArrayDomain, Dataset, FileDomain, ImageSpec
from swad.testbed.data.images import STEPS_AHEAD, jpeg
from swad.testbed.data.loaders import EvalLoader, Loader
from swad.testbed.data.splits import DomainSplit, hold_out
from swad.testbed.data.transforms import Normalize, eval_transform
from swad.util.images import DataError

SPEC, SMALL = ImageSpec(size=16), ImageSpec(size=8)
SOURCES = hold_out(
    Dataset(
        "noise",
        tuple(
            ArrayDomain(
                name,
                np.arange(n) % 4,
                np.random.RandomState(i).randint(0, 256, (n, 20, 20, 3)).astype(np.uint8),
            )
            for i, (name, n) in enumerate((("a", 30), ("held", 9), ("b", 41), ("c", 25)))
        ),
        ("w", "x", "y", "z"),
        SPEC,
    ),
    "held",
)
WHOLE = Dataset("noise", tuple(part.domain for part in (*SOURCES.target.full, *SOURCES.sources.train)), tuple("wxyz"))


def cached(**options) -> Loader:
    return train_loader(SOURCES.sources.train, SPEC, 6, 3, cache=open_cache(WHOLE), **options)


def test_every_image_is_augmented_by_its_own_parameters():
    batches, plain = cached(), train_loader(SOURCES.sources.train, SPEC, 6, 3)
    for step in (1, 2, STEPS_AHEAD + 1):
        batch, keys = batch_at(batches, step), keys_at(plain, step)
        assert batch.labels.equal(batch_at(plain, step).labels)
        rows = augment_parameters.draw_steps(3, [step], np.full((1, 18, 2), 20))[0, 0]
        i = 0
        for split, split_keys in zip(SOURCES.sources.train, keys, strict=True):
            for key in split_keys:
                assert batch.labels[i] == split.domain.labels[key]
                alone = gpu_augment.augment(
                    torch.from_numpy(split.domain.images[key])[None],
                    torch.from_numpy(rows[i : i + 1]),
                    SPEC.size,
                    torch.tensor(SPEC.mean),
                    torch.tensor(SPEC.std),
                )[0]
                torch.testing.assert_close(batch.images[i], alone)
                i += 1


def test_identity_parameters_give_the_evaluation_transform(monkeypatch):
    monkeypatch.setattr(
        augment_parameters,
        "draw_steps",
        lambda seed, steps, sizes, views, augmentation: augment_parameters.identity(sizes)[:, None],
    )
    batches = cached()
    batch, keys = batch_at(batches, 5), keys_at(batches, 5)
    images = np.concatenate([p.domain.images[k] for p, k in zip(SOURCES.sources.train, keys, strict=True)])
    resized = torch.nn.functional.interpolate(
        torch.from_numpy(images).permute(0, 3, 1, 2).float(), (16, 16), mode="bilinear", antialias=True
    )
    torch.testing.assert_close(batch.images, Normalize(SPEC)(resized), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("height", "width", "mean", "most"), [(227, 227, 0.2, 1), (375, 500, 1.0, 8), (1500, 2000, 5.9, 34)]
)
def test_evaluation_differs_from_pillows_resize_as_documented(height, width, mean, most, tmp_path):
    """Large images are resized twice: to 256 in the cache, then to 224. Random textures of 12-pixel detail."""
    draw, folder = np.random.default_rng(1), tmp_path / "a" / "x"
    folder.mkdir(parents=True)
    for i in range(2):
        coarse = draw.integers(0, 255, (height // 12 + 2, width // 12 + 2, 3), np.uint8)
        Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).save(folder / f"{i}.bmp")
    domain = FileDomain("a", np.zeros(2, np.int64), tmp_path, ("a/x/0.bmp", "a/x/1.bmp"))
    cache = open_cache(Dataset("textures", (domain,), ("x",)), tmp_path / "cache", workers=0)
    got = EvalLoader(DomainSplit(domain, "full", np.arange(2)), ImageSpec(), cache=cache).bytes().int()
    wanted = torch.stack([eval_transform(ImageSpec())(domain.image(i)) for i in range(2)]).int()
    error = (got - wanted).abs()
    assert error.double().mean() == pytest.approx(mean, rel=0.4)
    assert int(error.max()) == pytest.approx(most, rel=0.25)


@pytest.mark.parametrize("views", [1, 2])
def test_batches_do_not_depend_on_resuming_processes_or_streaming(views, monkeypatch):
    whole = {batch.step: batch for batch in iterate(cached(views=views), 1, STEPS_AHEAD + 3)}
    ranks = [cached(views=views, rank=rank, world_size=2) for rank in range(2)]
    monkeypatch.setattr(device_store, "_available_bytes", lambda device: 0)
    streaming = cached(views=views)
    assert isinstance(streaming.images.store, Streaming)
    for start in (1, 7, STEPS_AHEAD, STEPS_AHEAD + 2):
        for batch in islice(iterate(streaming, start, start + 20), 2):  # the rest is read ahead and not used
            assert batch.images.equal(whole[batch.step].images)
            assert batch.labels.equal(whole[batch.step].labels)
        shares = [batch_at(one, start) for one in ranks]
        shape = (*whole[start].images.shape[:-4], 3, 3, *whole[start].images.shape[-3:])
        together = torch.cat([share.images.reshape(shape) for share in shares], -4)
        assert together.flatten(-5, -4).equal(whole[start].images)
    assert not whole[1].images.equal(whole[2].images)


def test_pooled_batches_are_those_of_files():
    batches, plain = cached(pooled=True), train_loader(SOURCES.sources.train, SPEC, 6, 3, pooled=True)
    batch, other = batch_at(batches, 2), batch_at(plain, 2)
    assert batch.labels.equal(other.labels)
    assert batch.domains.equal(other.domains)
    without = Augmentation(crop=1, flip=0, jitter=0, grayscale=0)
    batch = batch_at(cached(pooled=True, augmentation=without), 2)
    plain = train_loader(SOURCES.sources.train, SPEC, 6, 3, pooled=True, augmentation=without)
    torch.testing.assert_close(batch.images, batch_at(plain, 2).images, rtol=0, atol=0.02)


# --- files that the device decodes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("crop", [0.2, 1])
def test_a_device_decodes_the_same_crops(crop):
    """Smooth images of 40 x 60 pixels: the two decoders and resizers differ by rounding, other crops by far more."""
    y, x = np.mgrid[0:40, 0:60]
    images = np.stack([np.stack([4 * x + i, 6 * y, 2 * x + 3 * y], -1) for i in range(8)]).astype(np.uint8)
    split = DomainSplit(ArrayDomain("a", np.arange(8), images), "train", np.arange(8))
    crops = Augmentation(crop=crop, jitter=0, grayscale=0)
    pair = [
        train_loader([split], SMALL, 8, 3, epochs=True, augmentation=crops, micro_batch=4, decode_on_device=on_device)
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


def test_workers_name_a_bad_image_in_one_line(tmp_path):
    files = tuple(f"{i}.png" for i in range(12))
    for file in files:
        (tmp_path / file).write_bytes(b"not an image")
    domains = tuple(FileDomain(name, np.zeros(12, np.int64), tmp_path, files) for name in "de")
    sources = hold_out(Dataset("two", domains, ("x",), ImageSpec(8)), "e").sources
    batches = train_loader(sources.train, ImageSpec(8), 4, 0, workers=2)
    with pytest.raises(DataError) as caught:
        for _ in batches.inputs(1, 20):
            pass
    assert len(str(caught.value).splitlines()) == 1
    assert str(caught.value).startswith(f"cannot decode image {tmp_path}")
