"""The batched augmentation equals torchvision pixel by pixel."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms.v2 import functional

from helpers.batches import draw
from swad.testbed.data.augment_parameters import COLUMNS, FACTORS, ORDER, identity
from swad.testbed.data.gpu_augment import augment, jitter, luminance, resample, shift_hue
from swad.util.images import IMAGENET_MEAN, IMAGENET_STD, DataError

MEAN, STD = torch.tensor(IMAGENET_MEAN), torch.tensor(IMAGENET_STD)
LEVEL = 1 / 255
# Float against float, in levels of a byte: only the order of the sums differs.
EXACT = 0.02 * LEVEL
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def some_images(b: int, height: int, width: int, seed: int = 0) -> torch.Tensor:
    """Noise on gradients, with gray, black and white areas: every case of the hue occurs."""
    draws = np.random.RandomState(seed)
    slopes = np.linspace(0, 255, width)[None, None, :, None] * draws.rand(b, 1, 1, 3)
    images = np.clip(slopes + draws.normal(0, 60, (b, height, width, 3)), 0, 255).astype(np.uint8)
    images[:, : height // 4] = images[:, : height // 4, :, :1]
    return torch.from_numpy(images)


def row(box, image, flip=0, factors=(1, 1, 1, 0), order=(0, 1, 2, 3), grayscale=0) -> torch.Tensor:
    return torch.tensor([*box, *image, flip, *factors, *order, grayscale], dtype=torch.float32)


def floats(image: torch.Tensor) -> torch.Tensor:
    return functional.to_dtype(image.permute(2, 0, 1), torch.float32, scale=True)


def twin(image: torch.Tensor, parameters: torch.Tensor, size: int) -> torch.Tensor:
    """The straightforward version: one image, one torchvision function after another."""
    named = dict(zip(COLUMNS, parameters.tolist(), strict=True))
    box = [int(named[name]) for name in ("top", "left", "height", "width")]
    result = functional.resized_crop(floats(image), *box, [size, size], antialias=True)
    if named["flip"]:
        result = functional.horizontal_flip(result)
    for name in ("first", "second", "third", "fourth"):
        operation = ("brightness", "contrast", "saturation", "hue")[int(named[name])]
        result = getattr(functional, f"adjust_{operation}")(result, named[operation])
    if named["grayscale"]:
        result = functional.rgb_to_grayscale(result, num_output_channels=3)
    return functional.normalize(result, IMAGENET_MEAN, IMAGENET_STD)


@st.composite
def boxes(draws, height: int, width: int):
    high, wide = draws(st.integers(1, height)), draws(st.integers(1, width))
    return draws(st.integers(0, height - high)), draws(st.integers(0, width - wide)), high, wide


factors = st.tuples(*[st.floats(0.7, 1.3)] * 3, st.floats(-0.3, 0.3))


@settings(max_examples=60)
@given(data=st.data(), height=st.integers(1, 40), width=st.integers(1, 40), size=st.integers(1, 24))
def test_augment_equals_torchvision_pixel_by_pixel(data, height, width, size):
    rows = [
        row(
            data.draw(boxes(height, width)),
            (height, width),
            data.draw(st.booleans()),
            data.draw(factors),
            data.draw(st.permutations(range(4))),
            data.draw(st.booleans()),
        )
        for _ in range(3)
    ]
    images = some_images(3, height, width, seed=size)
    ours = augment(images, torch.stack(rows), size, MEAN, STD)
    for image, parameters, result in zip(images, rows, ours, strict=True):
        torch.testing.assert_close(result, twin(image, parameters, size), rtol=0, atol=EXACT / min(IMAGENET_STD))


@settings(max_examples=60)
@given(data=st.data(), height=st.integers(1, 60), width=st.integers(1, 60), size=st.integers(1, 30))
def test_crop_resize_and_flip_equal_torchvision(data, height, width, size):
    image = some_images(1, height, width)[0]
    box, flip = data.draw(boxes(height, width)), data.draw(st.booleans())
    ours = resample(image[None], row(box, (height, width), flip)[None], size)[0]
    theirs = functional.resized_crop(floats(image), *box, [size, size], antialias=True)
    torch.testing.assert_close(ours, functional.horizontal_flip(theirs) if flip else theirs, rtol=0, atol=EXACT)


@pytest.mark.parametrize("box", [(0, 0, 227, 200), (13, 5, 190, 180), (3, 70, 101, 97)])
def test_crop_and_resize_equal_pillow_up_to_its_rounding(box):
    image = some_images(1, 227, 200)[0]
    ours = 255 * resample(image[None], row(box, (227, 200))[None], 224)[0]
    theirs = functional.pil_to_tensor(functional.resized_crop(Image.fromarray(image.numpy()), *box, [224, 224])).float()
    # Pillow rounds to bytes after the columns and after the rows: half a level each, and what that carries over.
    assert (ours - theirs).abs().max() < 1.2
    assert (ours - theirs).abs().mean() < 0.4


@settings(max_examples=60)
@given(
    start=st.floats(0, 1),
    length=st.floats(0, 1),
    original=st.integers(1, 300),
    pixels=st.integers(1, 20),
    flip=st.booleans(),
)
def test_crops_are_scaled_if_images_are_stored_at_another_size(start, length, original, pixels, flip):
    # The slow twin in one direction: every piece of the interval, every pixel, in double precision.
    size, whole = 7, max(1, round(length * original))
    first = int(start * (original - whole))
    begin, end = (np.float64(n) * pixels / original for n in (first, first + whole))
    values = np.random.RandomState(pixels).randint(0, 256, pixels)
    scale, middle = (end - begin) / size, (begin + end) / 2
    expected = []
    for i in range(size):
        center = begin + scale * (i + 0.5)
        inside = [p for p in range(pixels) if abs(p + 0.5 - middle) <= max(end - begin, 1) / 2 + 1e-3]
        weights = [max(0, 1 - abs(p + 0.5 - center) / max(scale, 1)) for p in inside]
        expected.append(np.dot(weights, values[inside]) / sum(weights) / 255)
    image = torch.from_numpy(values.astype(np.uint8)).view(1, 1, pixels, 1).expand(1, 3, pixels, 3)
    parameters = row((0, first, 3, whole), (3, original), flip)[None]
    ours = resample(image, parameters, size)[0, 0, 0]
    torch.testing.assert_close(
        ours, torch.tensor(expected[::-1] if flip else expected).float(), rtol=0, atol=0.1 * LEVEL
    )


def test_a_crop_of_a_larger_original_is_the_same_crop_of_the_stored_image():
    held = some_images(2, 20, 30)
    large = torch.stack([row((4, 12, 24, 33), (40, 90)), row((10, 0, 30, 90), (40, 90), 1)])
    small = torch.stack([row((2, 4, 12, 11), (20, 30)), row((5, 0, 15, 30), (20, 30), 1)])
    torch.testing.assert_close(resample(held, large, 16), resample(held, small, 16), rtol=0, atol=EXACT)


@settings(max_examples=40)
@given(order=st.permutations(range(4)), amounts=factors, seed=st.integers(0, 5))
def test_jitter_equals_torchvision_in_any_order(order, amounts, seed):
    image = floats(some_images(1, 9, 12, seed)[0])
    theirs = image
    for i in order:
        theirs = (
            functional.adjust_brightness,
            functional.adjust_contrast,
            functional.adjust_saturation,
            functional.adjust_hue,
        )[i](theirs, amounts[i])
    parameters = row((0, 0, 9, 12), (9, 12), factors=amounts, order=order)[None]
    ours = jitter(image[None], parameters[:, FACTORS], parameters[:, ORDER])[0]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=EXACT)


def test_every_hue_shifts_as_in_torchvision():
    corners = torch.cartesian_prod(*[torch.tensor([0, 51, 128, 255])] * 3).T.reshape(3, 8, 8) / 255
    for turn in (-0.5, -0.3, -1 / 6, 0.0, 0.1, 1 / 3, 0.5):
        ours = shift_hue(corners[None], torch.full((1, 1, 1, 1), turn))[0]
        torch.testing.assert_close(ours, functional.adjust_hue(corners, turn), rtol=0, atol=EXACT)


def test_gray_equals_torchvision():
    image = floats(some_images(1, 9, 12)[0])
    torch.testing.assert_close(luminance(image[None])[0], functional.rgb_to_grayscale(image))


def test_the_evaluation_transform():
    images = some_images(3, 30, 44)
    parameters = torch.from_numpy(identity(np.array([[30, 44]] * 3)))
    expected = torch.stack([functional.resize(floats(image), [24, 24], antialias=True) for image in images])
    expected = functional.normalize(expected, IMAGENET_MEAN, IMAGENET_STD)
    result = augment(images, parameters, 24, MEAN, STD)
    torch.testing.assert_close(result, expected, rtol=0, atol=EXACT / min(IMAGENET_STD))


def test_half_operands_are_off_by_less_than_a_third_of_a_level():
    for size in (227, 256):
        images = some_images(8, size, size)
        images[0] = 255
        images[1] //= 64
        images[1] *= 63
        parameters = torch.from_numpy(draw(1, np.full((8, 2), size)))
        error = resample(images, parameters, 224, torch.float16) - resample(images, parameters, 224)
        assert 0 < error.abs().max() < 0.3 * LEVEL
        assert error.abs().mean() < 0.1 * LEVEL


def test_results_have_the_requested_memory_format():
    images = some_images(6, 20, 20)
    parameters = torch.from_numpy(draw(0, np.full((6, 2), 20)))
    plain = augment(images, parameters, 16, MEAN, STD)
    assert plain.shape == (6, 3, 16, 16)
    assert plain.is_contiguous()
    last = augment(images, parameters, 16, MEAN, STD, memory_format=torch.channels_last)
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(last, plain)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(augment(images, parameters, 16, MEAN, STD), plain)
    assert augment(images[:0], parameters[:0], 16, MEAN, STD).shape == (0, 3, 16, 16)


def test_images_do_not_depend_on_the_others():
    images = some_images(6, 20, 20)
    parameters = torch.from_numpy(draw(0, np.full((6, 2), 20)))
    whole = augment(images, parameters, 16, MEAN, STD)
    alone = torch.cat([augment(images[i : i + 1], parameters[i : i + 1], 16, MEAN, STD) for i in range(6)])
    assert torch.equal(whole, alone)


@pytest.mark.slow
def test_compiled_without_graph_breaks_it_gives_the_same_numbers():
    images = some_images(6, 20, 22)
    parameters = torch.from_numpy(draw(0, np.array([[20, 22]] * 6)))
    compiled = torch.compile(augment, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(
        compiled(images, parameters, 16, MEAN, STD), augment(images, parameters, 16, MEAN, STD), rtol=0, atol=1e-5
    )


@pytest.mark.gpu
@cuda
def test_on_a_gpu_it_never_synchronizes_and_can_be_captured():
    images, sizes = some_images(8, 227, 227), np.full((8, 2), 227)
    rows = [torch.from_numpy(draw(seed, sizes)) for seed in range(2)]
    mean, std = MEAN.cuda(), STD.cuda()
    held, parameters = images.cuda(), rows[0].cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        augment(held, parameters, 224, mean, std)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = augment(held, parameters, 224, mean, std)
    for each in rows:
        parameters.copy_(each)
        graph.replay()
        expected = augment(images, each, 224, MEAN, STD)
        torch.testing.assert_close(result.cpu(), expected, rtol=0, atol=1.5 * LEVEL / min(IMAGENET_STD))


def test_color_jitter_needs_three_channels():
    rows = torch.from_numpy(identity(np.full((3, 2), 20)))
    with pytest.raises(DataError, match="3 channels, got 1: use --input-pipeline torchvision"):
        augment(torch.zeros(3, 20, 20, 1).byte(), rows, 8, MEAN, STD)
