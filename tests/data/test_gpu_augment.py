"""The batched augmentation equals torchvision: operations pixel by pixel, parameters by their distributions."""

import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy import stats
from torchvision.transforms import ColorJitter, RandomResizedCrop
from torchvision.transforms.v2 import functional

from swad.data.domains import IMAGENET_MEAN, IMAGENET_STD, DataError
from swad.data.gpu_augment import (
    COLUMNS,
    FACTORS,
    FIELDS,
    GRAYSCALE,
    ORDER,
    augment,
    draw,
    draw_steps,
    identity,
    jitter,
    luminance,
    resample,
    shift_hue,
)

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


# --- doing ----------------------------------------------------------------------------------------------------


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
    for color in (True, False):
        result = augment(images, parameters, 24, MEAN, STD, color=color)
        torch.testing.assert_close(result, expected, rtol=0, atol=EXACT / min(IMAGENET_STD))


def test_half_operands_are_off_by_less_than_a_third_of_a_level():
    for size in (227, 256):
        images = some_images(8, size, size)
        images[0] = 255
        images[1] //= 64
        images[1] *= 63
        parameters = torch.from_numpy(draw(np.random.RandomState(1), np.full((8, 2), size)))
        error = resample(images, parameters, 224, torch.float16) - resample(images, parameters, 224)
        assert 0 < error.abs().max() < 0.3 * LEVEL
        assert error.abs().mean() < 0.1 * LEVEL


def test_results_have_the_requested_type_and_memory_format():
    images = some_images(6, 20, 20)
    parameters = torch.from_numpy(draw(np.random.RandomState(0), np.full((6, 2), 20)))
    plain = augment(images, parameters, 16, MEAN, STD)
    assert plain.shape == (6, 3, 16, 16)
    assert plain.is_contiguous()
    last = augment(images, parameters, 16, MEAN, STD, memory_format=torch.channels_last)
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(last, plain)
    assert torch.equal(augment(images, parameters, 16, MEAN, STD, dtype=torch.bfloat16), plain.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(augment(images, parameters, 16, MEAN, STD), plain)
    assert augment(images[:0], parameters[:0], 16, MEAN, STD).shape == (0, 3, 16, 16)


def test_images_do_not_depend_on_the_others():
    images = some_images(6, 20, 20)
    parameters = torch.from_numpy(draw(np.random.RandomState(0), np.full((6, 2), 20)))
    whole = augment(images, parameters, 16, MEAN, STD)
    alone = torch.cat([augment(images[i : i + 1], parameters[i : i + 1], 16, MEAN, STD) for i in range(6)])
    assert torch.equal(whole, alone)


def test_compiled_without_graph_breaks_it_gives_the_same_numbers():
    images = some_images(6, 20, 22)
    parameters = torch.from_numpy(draw(np.random.RandomState(0), np.array([[20, 22]] * 6)))
    compiled = torch.compile(augment, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(
        compiled(images, parameters, 16, MEAN, STD), augment(images, parameters, 16, MEAN, STD), rtol=0, atol=1e-5
    )


@pytest.mark.gpu
@cuda
def test_on_a_gpu_it_never_synchronizes_and_can_be_captured():
    images, sizes = some_images(8, 227, 227), np.full((8, 2), 227)
    rows = [torch.from_numpy(draw(np.random.RandomState(seed), sizes)) for seed in range(2)]
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


# --- deciding -------------------------------------------------------------------------------------------------


def crops_of_torchvision(height: int, width: int, n: int) -> np.ndarray:
    image = torch.empty(3, height, width)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return np.array([RandomResizedCrop.get_params(image, [0.7, 1.0], [3 / 4, 4 / 3]) for _ in range(n)])


@pytest.mark.parametrize(("height", "width"), [(227, 227), (60, 90), (300, 131)])
def test_crops_are_distributed_as_in_torchvision(height, width):
    theirs = crops_of_torchvision(height, width, 4000)
    ours = draw(np.random.RandomState(0), np.array([[height, width]] * 4000))[:, :4]

    def traits(crops):
        top, left, high, wide = crops.T.astype(float)
        return {
            "area": high * wide,
            "aspect": wide / high,
            "top": top,
            "left": left,
            "bottom": height - high - top,
            "right": width - wide - left,
        }

    for name, mine in traits(ours).items():
        assert stats.ks_2samp(mine, traits(theirs)[name]).pvalue > 0.001, name


@pytest.mark.parametrize(("height", "width"), [(10, 1000), (1000, 10), (1, 1), (2, 3), (7, 400)])
def test_the_center_is_cropped_if_no_crop_fits_as_in_torchvision(height, width):
    theirs = {tuple(crop) for crop in crops_of_torchvision(height, width, 300).tolist()}
    ours = {tuple(crop) for crop in draw(np.random.RandomState(0), np.array([[height, width]] * 300))[:, :4].tolist()}
    assert ours == theirs


def test_factors_are_distributed_as_in_torchvision():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        ranges = [(0.7, 1.3)] * 3 + [(-0.3, 0.3)]
        theirs = [ColorJitter.get_params(*ranges) for _ in range(4000)]
    rows = draw(np.random.RandomState(0), np.full((4000, 2), 227))
    for i, name in enumerate(("brightness", "contrast", "saturation", "hue")):
        ours = rows[:, COLUMNS.index(name)]
        assert stats.ks_2samp(ours, [one[1 + i] for one in theirs]).pvalue > 0.001, name
    assert np.abs(np.corrcoef(rows[:, FACTORS].T) - np.eye(4)).max() < 0.06


def test_orders_flips_and_grayscale_have_the_right_frequencies():
    rows = draw(np.random.RandomState(0), np.full((20000, 2), 227))
    orders, counts = np.unique(rows[:, ORDER], axis=0, return_counts=True)
    assert len(orders) == 24
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders.tolist())
    assert stats.chisquare(counts).pvalue > 0.001
    for column, probability in ((COLUMNS.index("flip"), 0.5), (GRAYSCALE, 0.1)):
        assert set(np.unique(rows[:, column])) == {0, 1}
        assert stats.binomtest(int(rows[:, column].sum()), 20000, probability).pvalue > 0.001


def test_parameters_depend_only_on_seed_step_position_and_view():
    sizes = np.random.RandomState(0).randint(20, 300, (6, 5, 2))
    whole = draw_steps(3, range(10, 16), sizes, views=2)
    assert whole.shape == (6, 2, 5, FIELDS)
    assert whole.dtype == np.float32
    assert (whole[2:4] == draw_steps(3, range(12, 14), sizes[2:4], views=2)).all()
    assert (whole[[4, 1]] == draw_steps(3, [14, 11], sizes[[4, 1]], views=2)).all()
    assert (whole[:, :1] == draw_steps(3, range(10, 16), sizes)).all()
    assert (whole[:, :, :3] == draw_steps(3, range(10, 16), sizes[:, :3], views=2)).all()
    same = draw_steps(3, range(10, 16), np.full((6, 5, 2), 227), views=2)[..., 7:11].reshape(-1, 4)
    assert len(np.unique(same, axis=0)) == 60
    assert (draw_steps(4, range(10, 16), sizes)[..., FACTORS] != whole[:, :1, :, FACTORS]).all()


def test_drawn_parameters_never_change():
    assert draw_steps(0, [1], np.full((1, 1, 2), 227))[0, 0, 0].tolist() == pytest.approx(GOLDEN_ROW)


GOLDEN_ROW = [
    *(38, 4, 189, 223, 227, 227, 0),
    *(1.1480929851531982, 1.279726505279541, 0.801645040512085, -0.1712958961725235),
    *(0, 2, 3, 1, 0),
]


def test_a_hundred_steps_are_drawn_quickly():
    sizes, seconds = np.full((100, 96, 2), 227), []
    for _ in range(3):
        started = time.perf_counter()
        draw_steps(0, range(1, 101), sizes)
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 0.1


def test_errors_are_one_line():
    sizes = np.full((2, 3, 2), 20)
    rows = torch.from_numpy(identity(sizes[0]))
    cases = [
        (lambda: draw_steps(-1, [1, 2], sizes), "seed must be at least 0"),
        (lambda: draw_steps(0, [1, 2], sizes, views=0), "views at least 1"),
        (lambda: draw_steps(0, [1], sizes), r"1 steps need sizes of shape \(1, positions, 2\), got \(2, 3, 2\)"),
        (lambda: augment(torch.zeros(3, 20, 20, 1).byte(), rows, 8, MEAN, STD), "3 channels, got 1"),
    ]
    for make, words in cases:
        with pytest.raises(DataError, match=words) as caught:
            make()
        assert "\n" not in str(caught.value)
