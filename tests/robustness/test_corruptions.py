"""Every corruption against a slow implementation of its definition: loops over pixels, scipy, Pillow, colorsys."""

from __future__ import annotations

import colorsys
import io
import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy import ndimage, stats
from sklearn.datasets import load_sample_image

from swad.robustness.corruptions import CORRUPTIONS, SEVERITIES, blur, corrupt, digital, noise, weather
from swad.robustness.corruptions._filters import gaussian_blur, motion_blur, zoom_center
from swad.robustness.corruptions._random import Noise


def make_noise(n: int = 2, seed: int = 3) -> Noise:
    return Noise(seed, torch.arange(n))


def pictures(n: int = 2, size: int = 40, channels: int = 3) -> torch.Tensor:
    """Smooth color pictures with an edge: bytes, as doubles from 0 to 1."""
    random = np.random.RandomState(0)
    smooth = ndimage.gaussian_filter(random.rand(n, channels, size, size), (0, 0, 3, 3))
    smooth = (smooth - smooth.min()) / (smooth.max() - smooth.min())
    smooth[:, :, :, size // 2 :] *= 0.6
    return torch.from_numpy(np.round(smooth * 255) / 255)


# ------------------------------------------------------------ random numbers


def splitmix64(state: int) -> int:
    mask = (1 << 64) - 1
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & mask
    return state ^ (state >> 31)


def test_random_numbers_are_splitmix64():
    import hashlib

    mask, step = (1 << 64) - 1, 0x9E3779B97F4A7C15
    key = int.from_bytes(hashlib.sha256(b"7/stream").digest()[:8], "little")
    expected = []
    for image in (0, 5):
        start = splitmix64((image * step + key) & mask)
        expected.append([(splitmix64((start + k * step) & mask) >> 11) * 2.0**-53 for k in range(1, 7)])
    drawn = Noise(7, torch.tensor([0, 5])).uniform("stream", 2, 3)
    assert drawn.flatten(1).tolist() == expected


def test_random_numbers_have_their_distribution():
    source = Noise(0, torch.arange(3))
    assert stats.kstest(source.uniform("a", 20_000).flatten().numpy(), "uniform").pvalue > 1e-3
    assert stats.kstest(source.normal("b", 20_000).flatten().numpy(), "norm").pvalue > 1e-3
    counts = torch.bincount(source.integers("c", 0, 5, 10_000).flatten())
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3
    first, second = source.uniform("a", 20_000)[:2].numpy()
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 0.03


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_an_image_is_corrupted_alike_in_any_batch(name):
    images = pictures(3, 32).float()
    together = corrupt(images, name, 3, seed=1, indices=torch.tensor([4, 9, 2]))
    alone = corrupt(images[1:2], name, 3, seed=1, indices=torch.tensor([9]))
    assert torch.equal(together[1], alone[0])
    assert together.min() >= 0
    assert together.max() <= 1


@pytest.mark.parametrize("name", sorted(set(CORRUPTIONS) - {"contrast", "brightness", "pixelate", "jpeg_compression"}))
def test_another_seed_gives_another_corruption(name):
    images = pictures(1, 80).float()
    if name in ("defocus_blur", "zoom_blur"):  # these draw nothing
        assert torch.equal(corrupt(images, name, 3, seed=0), corrupt(images, name, 3, seed=1))
    else:
        assert not torch.equal(corrupt(images, name, 3, seed=0), corrupt(images, name, 3, seed=1))


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("size", [32, 96])
def test_bytes_and_gray_images_work_at_every_severity(name, size):
    images = (pictures(2, size, 1) * 255).byte()
    for severity in SEVERITIES:
        corrupted = corrupt(images, name, severity)
        assert corrupted.shape == images.shape
        assert corrupted.dtype == torch.uint8
        as_floats = corrupt(images.float() / 255, name, severity)
        assert (as_floats * 255 - corrupted).abs().max() < 1e-3


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_channels_last_and_narrow_images_work_alike(name):
    images = pictures(2, 16)
    assert torch.equal(
        corrupt(images.to(memory_format=torch.channels_last), name, 3), corrupt(images.contiguous(), name, 3)
    )
    for narrow in (images[:, :, :1], images[:, :, :, :1]):
        assert corrupt(narrow, name, 5).isfinite().all()


# As text in the order of the published scripts, `make_imagenet_c.py` and `make_cifar_c.py`: severities 1 to 5.
PUBLISHED = {
    "gaussian_noise": (".08 .12 .18 .26 .38", ".04 .06 .08 .09 .10"),
    "shot_noise": ("60 25 12 5 3", "500 250 100 75 50"),
    "impulse_noise": (".03 .06 .09 .17 .27", ".01 .02 .03 .05 .07"),
    "defocus_blur": ("3,.1 4,.5 6,.5 8,.5 10,.5", ".3,.4 .4,.5 .5,.6 1,.2 1.5,.1"),
    "glass_blur": (".7,1,2 .9,2,1 1,2,3 1.1,3,2 1.5,4,2", ".05,1,1 .25,1,1 .4,1,1 .25,1,2 .4,1,2"),
    "motion_blur": ("10,3 15,5 15,8 15,12 20,15", "6,1 6,1.5 6,2 8,2 9,2.5"),
    "zoom_blur": ("1.11,.01 1.16,.01 1.21,.02 1.26,.02 1.31,.03", "1.06,.01 1.11,.01 1.16,.01 1.21,.01 1.26,.01"),
    "snow": (
        ".1,.3,3,.5,10,4,.8 .2,.3,2,.5,12,4,.7 .55,.3,4,.9,12,8,.7 .55,.3,4.5,.85,12,8,.65 .55,.3,2.5,.85,12,12,.55",
        ".1,.2,1,.6,8,3,.95 .1,.2,1,.5,10,4,.9 .15,.3,1.75,.55,10,4,.9 .25,.3,2.25,.6,12,6,.85 .3,.3,1.25,.65,14,12,.8",
    ),
    "frost": ("1,.4 .8,.6 .7,.7 .65,.7 .6,.75", "1,.2 1,.3 .9,.4 .85,.4 .75,.45"),
    "fog": ("1.5,2 2,2 2.5,1.7 2.5,1.5 3,1.4", ".2,3 .5,3 .75,2.5 1,2 1.5,1.75"),
    "brightness": (".1 .2 .3 .4 .5", ".05 .1 .15 .2 .3"),
    "contrast": (".4 .3 .2 .1 .05", ".75 .5 .4 .3 .15"),
    "elastic_transform": (
        "488,170.8,24.4 488,19.52,48.8 12.2,2.44,4.88 17.08,2.44,4.88 29.28,2.44,4.88",
        "0,0,2.56 1.6,6.4,2.24 2.56,1.92,1.92 3.2,1.28,1.6 3.2,.96,.96",
    ),
    "pixelate": (".6 .5 .4 .3 .25", ".95 .9 .85 .75 .65"),
    "jpeg_compression": ("25 18 15 10 7", "80 65 58 50 40"),
}


def test_severities_are_the_published_ones():
    assert list(PUBLISHED) == list(CORRUPTIONS)
    for name, texts in PUBLISHED.items():
        for rows, text in zip(CORRUPTIONS[name][1:], texts, strict=True):
            expected = [[float(number) for number in row.split(",")] for row in text.split()]
            for row, numbers in zip(rows, expected, strict=True):
                assert row == pytest.approx(numbers), name


@pytest.mark.parametrize(("size", "factor"), [(64, 0.4), (65, 0.2)])
def test_small_images_have_severities_of_their_own(size, factor):
    images = pictures(1, size).double()
    center = images.mean((2, 3), keepdim=True)
    expected = np.uint8(((images - center) * factor + center).numpy() * 255)
    np.testing.assert_array_equal(corrupt((images * 255).round().byte(), "contrast", 3).numpy(), expected)


@pytest.mark.parametrize("name", ["gaussian_noise", "fog", "brightness", "elastic_transform", "defocus_blur", "frost"])
def test_values_are_rounded_down_to_bytes(name):
    images, indices = pictures(2, 70), torch.arange(2)
    values = CORRUPTIONS[name].apply(images, Noise(5, indices), *CORRUPTIONS[name].large[2]).clamp(0, 1).numpy() * 255
    corrupted = corrupt((images * 255).round().byte(), name, 3, seed=5).numpy()
    whole = np.rint(values)  # rounding errors do not change a whole number
    expected = np.where(np.abs(values - whole) < 1e-9, whole, np.floor(values))
    np.testing.assert_array_equal(corrupted, expected)
    assert (corrupted < np.rint(values)).mean() > 0.2
    as_floats = corrupt(images.float(), name, 3, seed=5)
    np.testing.assert_array_equal((as_floats * 255).round().numpy(), expected)


@pytest.mark.parametrize(
    "name", ["defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "contrast", "elastic_transform", "pixelate"]
)
@pytest.mark.parametrize("severity", [1, 3])  # the weights of later defocus do not sum to 1
def test_flat_images_stay_as_they_are(name, severity):
    flat = torch.arange(256, dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 13, 14)
    assert torch.equal(corrupt(flat, name, severity, small=False), flat)


def test_a_higher_severity_changes_more():
    # At severities 3 and 4 elastic and snow change the kind of corruption, so 1 and 5 are compared.
    images = pictures(2, 96).float()
    for name in sorted(set(CORRUPTIONS) - {"elastic_transform"}):
        mild, strong = ((corrupt(images, name, severity) - images).abs().mean() for severity in (1, 5))
        assert strong > mild, name


@pytest.mark.parametrize(
    ("images", "name", "severity", "message"),
    [
        (torch.zeros(1, 3, 8, 8), "fogg", 1, "there is no corruption 'fogg': did you mean"),
        (torch.zeros(1, 3, 8, 8), "fog", 6, "severity must be a whole number from 0 to 5, got 6"),
        (torch.zeros(3, 8, 8), "fog", 1, "images must have the shape"),
        (torch.zeros(1, 3, 8, 8, dtype=torch.int64), "fog", 1, "images must be bytes, or floats"),
        (torch.full((1, 3, 8, 8), 255.0), "fog", 1, "divide values up to 255 by 255"),
        (torch.full((1, 3, 8, 8), torch.nan), "fog", 1, "must have values from 0 to 1"),
    ],
)
def test_bad_input_is_refused_in_one_line(images, name, severity, message):
    with pytest.raises(ValueError, match=message):
        corrupt(images, name, severity)


def test_a_severity_may_be_a_float():
    images = pictures(1, 16)
    assert torch.equal(corrupt(images, "contrast", 3.0), corrupt(images, "contrast", 3))


def test_every_image_needs_a_number():
    images = pictures(2, 16)
    with pytest.raises(ValueError, match=r"indices must number all 2 images, got the shape \(1,\)"):
        corrupt(images, "fog", 1, indices=torch.tensor([7]))
    with pytest.raises(TypeError, match="images and indices must be tensors, got Tensor and list"):
        corrupt(images, "fog", 1, indices=[7, 8])
    with pytest.raises(TypeError, match="got ndarray and Tensor: convert them"):
        corrupt(images.numpy(), "fog", 1)
    assert corrupt(images[:0], "fog", 1).shape == (0, 3, 16, 16)


# ------------------------------------------------------------ filters


@pytest.mark.parametrize("border", ["nearest", "reflect"])
@pytest.mark.parametrize(("sigma", "truncate"), [(0.05, 4), (0.7, 4), (2.5, 3), (30, 3)])
def test_gaussian_blur_is_scipys(sigma, truncate, border):
    images = pictures(1, 24)
    expected = ndimage.gaussian_filter(images.numpy(), (0, 0, sigma, sigma), truncate=truncate, mode=border)
    np.testing.assert_allclose(gaussian_blur(images, sigma, truncate, border).numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("factor", [1.0, 1.05, 1.3, 2.5, 4.5])
def test_zoom_is_scipys(factor):
    images = pictures(1, 40)
    height = images.shape[2]
    crop = math.ceil(height / factor)
    top = (height - crop) // 2
    center = images[0, 0, top : top + crop, top : top + crop].numpy()
    enlarged = ndimage.zoom(center, factor, order=1)
    trim = (len(enlarged) - height) // 2
    expected = enlarged[trim : trim + height, trim : trim + height]
    np.testing.assert_allclose(zoom_center(images, factor)[0, 0].numpy(), expected, atol=1e-6)


def slow_motion_blur(image: np.ndarray, radius: int, sigma: float, angle: float) -> np.ndarray:
    height, width = image.shape
    weights = [math.exp(-(k**2) / (2 * sigma**2)) for k in range(2 * radius + 1)]
    blurred = np.zeros_like(image)
    for y in range(height):
        for x in range(width):
            for k, weight in enumerate(weights):
                row = y + math.ceil(k * math.sin(math.radians(angle)) - 0.5)
                column = x + math.ceil(k * math.cos(math.radians(angle)) - 0.5)
                value = image[min(max(row, 0), height - 1), min(max(column, 0), width - 1)]
                blurred[y, x] += weight / sum(weights) * value
    return np.round(np.floor(blurred * 65535 + 0.5) / 257) / 255


@pytest.mark.parametrize("angle", [-40.0, 0.0, 33.0, -100.0])
def test_motion_blur_follows_a_line(angle):
    images = pictures(1, 24, 1)
    blurred = motion_blur(images, 4, 2.5, torch.tensor([angle], dtype=torch.float64))
    np.testing.assert_allclose(blurred[0, 0].numpy(), slow_motion_blur(images[0, 0].numpy(), 4, 2.5, angle), atol=1e-12)


# ------------------------------------------------------------ noise


def test_shot_noise_is_the_poisson_quantile():
    images, source = pictures(1, 12), make_noise(1)
    uniform = source.uniform("shot_noise", 3, 12, 12).numpy()
    for photons in (3, 60, 500):
        expected = stats.poisson.ppf(uniform, photons * images.numpy()) / photons  # ppf(0) is -1
        expected = np.maximum(expected, 0)
        np.testing.assert_array_equal(noise.shot_noise(images, source, photons).numpy(), expected)


@pytest.mark.parametrize("photons", [3, 60, 500])
def test_shot_noise_is_right_in_the_tails(photons):
    values = torch.arange(256)
    for probability in (0.0, 1e-9, 1 - 1e-9):
        counts = noise.poisson_quantile(torch.full((256,), probability, dtype=torch.float64), values, photons / 255)
        expected = np.maximum(stats.poisson.ppf(probability, values.numpy() * photons / 255), 0)
        np.testing.assert_array_equal(counts.numpy(), expected)
    last = noise.poisson_quantile(torch.full((256,), 1 - 2.0**-53, dtype=torch.float64), values, photons / 255)
    assert (last >= counts).all()
    assert last.max() <= photons + 12 * (photons + 1) ** 0.5 + 12  # the end of the table


def test_impulse_noise_replaces_its_share():
    images = torch.full((1, 3, 200, 200), 0.5)
    noisy = noise.impulse_noise(images, make_noise(1), 0.27)
    for value, share in ((0.0, 0.135), (1.0, 0.135), (0.5, 0.73)):
        assert (noisy == value).double().mean() == pytest.approx(share, abs=0.005)


def test_gaussian_noise_has_its_deviation():
    images = torch.full((2, 3, 100, 100), 0.5, dtype=torch.float64)
    added = (noise.gaussian_noise(images, make_noise(), 0.26) - images).numpy() / 0.26
    assert stats.kstest(added.ravel(), "norm").pvalue > 1e-3


# ------------------------------------------------------------ blur


@pytest.mark.parametrize(("radius", "alias"), [(3, 0.1), (6, 0.5), (10, 0.5), (0.5, 0.6), (1.5, 0.1)])
def test_defocus_is_a_softened_disk(radius, alias):
    images = pictures(1, 40)
    half, soft = (8, 1) if radius <= 8 else (radius, 2)
    disk = np.array(
        [[float(x * x + y * y <= radius**2) for x in range(-half, half + 1)] for y in range(-half, half + 1)]
    )
    edge = np.array([math.exp(-(x**2) / (2 * alias**2)) for x in range(-soft, soft + 1)])
    edge /= edge.sum()
    kernel = ndimage.convolve(disk / disk.sum(), np.outer(edge, edge), mode="mirror")
    expected = ndimage.correlate(images[0, 1].numpy(), kernel, mode="mirror")
    np.testing.assert_allclose(
        blur.defocus_blur(images, make_noise(1), radius, alias)[0, 1].numpy(), expected, atol=1e-12
    )


@pytest.mark.parametrize(("sigma", "shift", "iterations"), [(0.7, 1, 2), (1.0, 2, 3), (1.5, 4, 2)])
def test_glass_blur_copies_near_pixels_in_order(sigma, shift, iterations):
    images, source = pictures(1, 24), make_noise(1)
    values = ndimage.gaussian_filter(images[0].numpy(), (0, sigma, sigma), mode="nearest")
    values = np.uint8(values * 255) / 255
    size = values.shape[1]
    for iteration in range(iterations):
        offsets = source.integers(f"glass_blur/{iteration}", -shift, shift, size, size, 2)[0].numpy()
        for h in range(size - shift, shift, -1):
            for w in range(size - shift, shift, -1):
                dx, dy = offsets[h, w]
                values[:, h, w] = values[:, h + dy, w + dx]
    expected = ndimage.gaussian_filter(values, (0, sigma, sigma), mode="nearest")
    glass = blur.glass_blur(images, source, sigma, shift, iterations)
    np.testing.assert_allclose(glass[0].numpy(), expected, atol=1e-12)


def test_zoom_blur_is_the_mean_of_enlargements():
    images = pictures(1, 32)
    enlarged = [zoom_center(images, factor) for factor in (1.0, 1.02, 1.04)]
    expected = (images + sum(enlarged)) / 4
    assert torch.allclose(blur.zoom_blur(images, make_noise(1), 1.05, 0.02), expected)


# ------------------------------------------------------------ weather


def test_snow_whitens_and_adds_flakes_in_two_directions():
    images, source = pictures(1, 24), make_noise(1)
    layer = 0.55 + 0.3 * source.normal("snow", 1, 24, 24)
    layer = zoom_center(layer, 2.5)[0, 0].numpy()
    layer = np.uint8(np.clip(np.where(layer < 0.85, 0, layer), 0, 1) * 255) / 255
    layer = slow_motion_blur(layer, 4, 3.0, float(source.between("snow/angle", -135, -45)))
    picture = images[0].numpy()
    luminance = 0.299 * picture[0] + 0.587 * picture[1] + 0.114 * picture[2]
    expected = 0.7 * picture + 0.3 * np.maximum(picture, luminance * 1.5 + 0.5) + layer + np.rot90(layer, 2)
    snowy = weather.snow(images, source, 0.55, 0.3, 2.5, 0.85, 4, 3.0, 0.7)
    np.testing.assert_allclose(snowy[0].numpy(), expected, atol=1e-6)


def slow_plasma(source: Noise, side: int, decay: float) -> np.ndarray:
    cloud, spread, step = np.zeros((side, side)), 100.0, side
    while step >= 2:
        half, count = step // 2, side // step
        draws = {
            which: source.between(f"plasma/{step}/{which}", -spread, spread, count, count)[0].numpy()
            for which in ("square", "upper diamond", "left diamond")
        }
        for i in range(count):
            for j in range(count):
                y, x = i * step, j * step
                corners = [cloud[a % side, b % side] for a in (y, y + step) for b in (x, x + step)]
                cloud[y + half, x + half] = sum(corners) / 4 + spread * draws["square"][i, j]
        squares = cloud.copy()
        for i in range(count):
            for j in range(count):
                y, x = i * step, j * step
                near = [(y + half, x + half), (y - half, x + half), (y, x), (y, x + step)]
                total = sum(squares[a % side, b % side] for a, b in near)
                cloud[y, x + half] = total / 4 + spread * draws["upper diamond"][i, j]
                near = [(y + half, x + half), (y + half, x - half), (y, x), (y + step, x)]
                total = sum(squares[a % side, b % side] for a, b in near)
                cloud[y + half, x] = total / 4 + spread * draws["left diamond"][i, j]
        step, spread = half, spread / decay
    cloud -= cloud.min()
    return cloud / cloud.max()


def test_fog_is_diamond_square_noise():
    images, source = pictures(1, 24), make_noise(1)
    cloud = slow_plasma(source, 32, 1.7)
    np.testing.assert_allclose(weather.plasma(source, 24, 1.7)[0].numpy(), cloud, atol=1e-12)
    highest = images.max().item()
    expected = (images[0].numpy() + 2.5 * cloud[:24, :24]) * highest / (highest + 2.5)
    np.testing.assert_allclose(weather.fog(images, source, 2.5, 1.7)[0].numpy(), expected, atol=1e-12)


def test_frost_adds_its_texture():
    images, source = pictures(1, 32), make_noise(1)
    texture = weather.frost_texture(source, 32, 32)
    assert torch.allclose(weather.frost(images, source, 0.8, 0.6), 0.8 * images + 0.6 * texture)


@pytest.mark.parametrize("size", [32, 224])
def test_the_texture_of_frost_is_as_bright_and_rich_in_contrast_as_the_photographs(size):
    texture = weather.frost_texture(make_noise(4), size, size)
    torch.testing.assert_close(texture.mean((1, 2, 3)), torch.full((4,), 0.643).double(), atol=0.002, rtol=0)
    torch.testing.assert_close(texture.std((1, 2, 3)), torch.full((4,), 0.129).double(), atol=0.005, rtol=0)
    assert texture.min() > 0.3
    assert texture.max() == 1
    # Crystals are thin and bright: turned into its negative, the texture would have the same level and contrast.
    assert all(stats.skew(one.flatten().numpy()) > 0.5 for one in texture)


def test_a_single_pixel_gets_the_mean_of_the_texture():
    assert weather.frost_texture(make_noise(1), 1, 1).item() == pytest.approx(0.643)


@pytest.mark.parametrize(
    ("size", "levels", "shifts"),
    [
        (224, (13.0, 10.9, 10.3, 10.0, 9.6), (54, 67, 71, 72, 75)),
        (32, (18.6, 15.1, 14.4, 14.4, 14.1), None),
    ],
)
def test_frost_hides_as_much_as_the_official_frost(size, levels, shifts):
    """PSNR in dB and shift of the mean, as measured with the official script and its photographs."""
    clean = photographs(size)
    changes = [corrupt(clean, "frost", severity).double() - clean.double() for severity in SEVERITIES]
    psnr = [float((20 * math.log10(255) - 10 * change.square().mean((1, 2, 3)).log10()).mean()) for change in changes]
    assert psnr == pytest.approx(levels, abs=1)
    if shifts:
        assert [float(change.mean()) for change in changes] == pytest.approx(shifts, abs=7)


def photographs(size: int) -> torch.Tensor:
    """The two photographs that scikit-learn ships: the square at their center, as bytes."""
    squares = []
    for name in ("china.jpg", "flower.jpg"):
        image = Image.fromarray(load_sample_image(name))
        left = (image.width - image.height) // 2
        square = image.crop((left, 0, left + image.height, image.height))
        squares.append(np.asarray(square.resize((size, size), Image.Resampling.BILINEAR)))
    return torch.from_numpy(np.stack(squares)).permute(0, 3, 1, 2)


def test_brightness_changes_only_the_value():
    images = pictures(1, 10)
    images[0, :, 0, 0] = 0  # black
    brighter = weather.brightness(images, make_noise(1), 0.3)
    for y in range(10):
        for x in range(10):
            hue, saturation, value = colorsys.rgb_to_hsv(*images[0, :, y, x].tolist())
            expected = colorsys.hsv_to_rgb(hue, saturation, min(1, value + 0.3))
            np.testing.assert_allclose(brighter[0, :, y, x].numpy(), expected, atol=1e-9)


# ------------------------------------------------------------ digital


def test_contrast_moves_values_to_the_mean_of_their_channel():
    images = pictures(2, 8)
    faded = digital.contrast(images, make_noise(), 0.2).numpy()
    for image, result in zip(images.numpy(), faded, strict=True):
        for channel, values in zip(image, result, strict=True):
            np.testing.assert_allclose(values, channel.mean() + 0.2 * (channel - channel.mean()), atol=1e-12)


@pytest.mark.parametrize(("alpha", "sigma", "affine"), [(48, 1.5, 2), (3, 0.3, 1), (0, 0, 3), (60, 20, 4)])
def test_elastic_is_an_affine_map_and_a_smooth_displacement(alpha, sigma, affine):
    size = 30
    images, source = pictures(1, size), make_noise(1)
    moves = source.between("elastic_transform/affine", -affine, affine, 3, 2)[0].numpy()
    reach, center = size // 3, size // 2
    points = np.array(
        [[center + reach, center + reach], [center + reach, center - reach], [center - reach, center - reach]]
    )
    # The map from moved points to the original ones, found by least squares on (x, y, 1).
    inverse, *_ = np.linalg.lstsq(np.c_[points + moves, np.ones(3)], points.astype(float), rcond=None)
    displacement = source.between("elastic_transform", -1, 1, 2, size, size)[0].numpy()
    smooth = [
        alpha * (ndimage.gaussian_filter(field, sigma, mode="reflect", truncate=3) if sigma else field)
        for field in displacement
    ]
    rows, columns = np.mgrid[:size, :size]
    for channel in range(3):
        # Fixed point with 10 binary digits, of which 5 are kept.
        x, y = (
            (np.rint(1024 * a * columns) + np.rint(1024 * (b * rows + c)) + 16).astype(int) // 32 / 32
            for a, b, c in inverse.T
        )
        warped = ndimage.map_coordinates(images[0, channel].numpy(), [y, x], order=1, mode="mirror")
        expected = ndimage.map_coordinates(warped, [rows + smooth[1], columns + smooth[0]], order=1, mode="reflect")
        result = digital.elastic_transform(images, source, alpha, sigma, affine)[0, channel].numpy()
        np.testing.assert_allclose(result, expected, atol=1e-9)


@pytest.mark.parametrize(("size", "factor"), [(224, 0.6), (224, 0.25), (32, 0.95), (30, 0.65)])
def test_pixelate_is_pillows_box_filter(size, factor):
    image = (pictures(1, size)[0].permute(1, 2, 0) * 255).round().byte()
    small = Image.fromarray(image.numpy()).resize((int(size * factor),) * 2, Image.Resampling.BOX)
    expected = np.asarray(small.resize((size, size), Image.Resampling.BOX)).astype(float)
    np.testing.assert_array_equal(corrupt_with(digital.pixelate, image, factor), expected)


@given(st.integers(1, 40), st.integers(5, 40), st.sampled_from([1, 3]), st.integers(1, 95), st.booleans())
@settings(deadline=None, max_examples=40)
@example(224, 224, 3, 7, True)
@example(30, 30, 3, 25, True)  # blocks are filled differently below and at the right
def test_jpeg_is_pillows(height, width, channels, quality, smooth):
    # Narrower images are no photographs: libjpeg then does not smooth chroma.
    image = (pictures(1, 224, channels)[0, :, :height, :width].permute(1, 2, 0) * 255).round().byte()
    if not smooth:
        image = torch.randint(256, image.shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    buffer = io.BytesIO()
    Image.fromarray(image.squeeze(2).numpy()).save(buffer, "JPEG", quality=quality)
    expected = np.asarray(Image.open(buffer)).reshape(image.shape)
    np.testing.assert_array_equal(corrupt_with(digital.jpeg_compression, image, quality), expected)


def corrupt_with(function, image: torch.Tensor, *parameters: float) -> np.ndarray:
    images = image.permute(2, 0, 1)[None].double() / 255
    return (function(images, make_noise(1), *parameters)[0].permute(1, 2, 0) * 255).round().numpy()
