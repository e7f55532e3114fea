"""The augmentation kernels equal the plain code. Without a GPU, Triton's interpreter runs them."""

import subprocess
import sys
from itertools import permutations
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.batches import draw
from helpers.triton_interpreter import DEVICE, INTERPRETED, runs_kernels
from swad.testbed.data import augment_parameters, gpu_augment
from swad.util.images import IMAGENET_MEAN, IMAGENET_STD

pytest.importorskip("triton", reason="needs triton")
cuda = pytest.mark.skipif(INTERPRETED or not torch.cuda.is_available(), reason="needs a GPU")
ORDERS = list(permutations(range(4)))
SIZE = 33  # 1,089 pixels: a whole chunk of an image and part of a second one
# For normalized pixels; only the order of sums and fused multiplications differ.
CLOSE = {"rtol": 0, "atol": 1e-4}


def normalization() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(IMAGENET_MEAN, device=DEVICE), torch.tensor(IMAGENET_STD, device=DEVICE)


def some_pixels(b: int, size: int, seed: int = 0) -> torch.Tensor:
    """Results of the matrix products, ``[b, size, 3, size]``: noise, grays, pure colors, values just above one."""
    draws = np.random.RandomState(seed)
    pixels = draws.rand(b, size, 3, size)
    pixels[:, 0] = pixels[:, 0, :1]
    pixels[:, 1] = draws.randint(0, 2, (b, 3, size))
    pixels[:, 2] *= 0.01
    pixels[:, 3] = 1 - 0.01 * pixels[:, 3]
    pixels[:, 4] = 1.002
    pixels[0] = 0.4
    return torch.from_numpy(pixels).to(DEVICE, torch.float16)


def some_images(b: int, height: int, width: int, seed: int = 0) -> torch.Tensor:
    images = np.random.RandomState(seed).randint(0, 256, (b, height, width, 3))
    images[:, :4] = images[:, :4, :, :1]
    images[:, 4:8] = 255 * (images[:, 4:8] > 127)
    return torch.from_numpy(images.astype(np.uint8)).to(DEVICE)


def some_rows(b: int, height: int, width: int, seed: int = 0) -> torch.Tensor:
    """Drawn parameters, with all orders in turn and every third image gray."""
    rows = draw(seed, np.array([[height, width]] * b))
    rows[:, augment_parameters.ORDER] = [ORDERS[(seed + i) % len(ORDERS)] for i in range(b)]
    rows[:, augment_parameters.GRAYSCALE] = np.arange(b) % 3 == 2
    return torch.from_numpy(rows).to(DEVICE)


def finished(pixels: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The plain version of `finish`."""
    image = pixels.transpose(1, 2).float()
    image = gpu_augment.jitter(image, rows[:, augment_parameters.FACTORS], rows[:, augment_parameters.ORDER])
    image = torch.where(
        rows[:, augment_parameters.GRAYSCALE].view(-1, 1, 1, 1) > 0, gpu_augment.luminance(image), image
    )
    mean, std = normalization()
    return (image - mean.view(3, 1, 1)) / std.view(3, 1, 1)


def assert_same_images(one: torch.Tensor, other: torch.Tensor) -> None:
    """Some weights and products round to the next float16: on average a small fraction of a level."""
    level = 1 / 255 / min(IMAGENET_STD)
    error = (one - other).abs()
    assert error.max() < 2 * level
    assert error.mean() < 0.05 * level


@runs_kernels
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_colors_equal_the_plain_code_in_every_order(layout, dtype):
    from swad.testbed.data import _gpu_augment_kernel

    # Layout and type concern the last line of the kernel, so the slow interpreter takes every order once.
    n = 3 if INTERPRETED and (layout, dtype) != (torch.contiguous_format, torch.float32) else 24
    pixels, rows = some_pixels(n, SIZE), some_rows(n, SIZE, SIZE)
    assert len(rows[:, augment_parameters.ORDER].unique(dim=0)) == n
    result = torch.full((n, 3, SIZE, SIZE), torch.nan, device=DEVICE, dtype=dtype).contiguous(memory_format=layout)
    _gpu_augment_kernel.finish(pixels, rows, *normalization(), result)
    expected = finished(pixels, rows)
    # A GPU rounds to the nearest bfloat16, the interpreter towards zero.
    rounding = 0.0 if dtype == torch.float32 else 2**-7 if INTERPRETED else 2**-8
    torch.testing.assert_close(result.float(), expected, rtol=rounding, atol=1e-4)


@runs_kernels
@settings(max_examples=25)
@given(
    order=st.permutations(range(4)),
    factors=st.tuples(*[st.floats(0, 2, width=32)] * 3, st.floats(-0.5, 0.5, width=32)),
    grayscale=st.booleans(),
    size=st.integers(5, 12),
    seed=st.integers(0, 9),
)
def test_colors_equal_the_plain_code_for_all_factors_torchvision_allows(order, factors, grayscale, size, seed):
    from swad.testbed.data import _gpu_augment_kernel

    rows = torch.zeros(2, augment_parameters.FIELDS)
    rows[:, augment_parameters.FACTORS] = torch.tensor(factors)
    rows[:, augment_parameters.ORDER] = torch.tensor(order, dtype=torch.float32)
    rows[:, augment_parameters.GRAYSCALE] = float(grayscale)
    pixels, rows = some_pixels(2, size, seed), rows.to(DEVICE)
    result = torch.full((2, 3, size, size), torch.nan, device=DEVICE)
    _gpu_augment_kernel.finish(pixels, rows, *normalization(), result)
    torch.testing.assert_close(result, finished(pixels, rows), **CLOSE)


@runs_kernels
def test_every_hue_shifts_as_in_the_plain_code():
    from swad.testbed.data import _gpu_augment_kernel

    levels = torch.cartesian_prod(*[torch.tensor([0, 51, 128, 255])] * 3).view(8, 8, 3).transpose(1, 2) / 255
    shifts = [-0.5, -0.3, -1 / 6, 0.0, 0.1, 0.3, 1 / 3, 0.5]
    rows = torch.from_numpy(augment_parameters.identity(np.full((len(shifts), 2), 8)))
    rows[:, augment_parameters.FACTORS.stop - 1] = torch.tensor(shifts)
    pixels, rows = levels.expand(len(shifts), 8, 3, 8).to(DEVICE, torch.float16), rows.to(DEVICE)
    result = torch.full((len(shifts), 3, 8, 8), torch.nan, device=DEVICE)
    _gpu_augment_kernel.finish(pixels, rows, *normalization(), result)
    torch.testing.assert_close(result, finished(pixels, rows), **CLOSE)
    assert (result[:, 1:] - result[3:4, 1:]).abs().amax((1, 2, 3)).gt(0.1).sum() == len(shifts) - 1


@runs_kernels
@settings(max_examples=25)
@given(data=st.data(), original=st.integers(1, 60), pixels=st.integers(1, 40), size=st.integers(1, 40))
def test_weights_equal_the_plain_code(data, original, pixels, size):
    from swad.testbed.data import _gpu_augment_kernel

    length = data.draw(st.integers(1, original))
    rows = augment_parameters.identity(np.full((2, 2), original))
    rows[:, [augment_parameters.HEIGHT, augment_parameters.WIDTH]] = length
    rows[:, [augment_parameters.TOP, augment_parameters.LEFT]] = data.draw(st.integers(0, original - length))
    rows[1, augment_parameters.FLIP] = 1
    padded = pixels + data.draw(st.integers(0, 7))
    for axis in (0, 1):
        for dtype, atol in ((torch.float32, 5e-5), (torch.float16, 1e-3)):
            arguments = (torch.from_numpy(rows).to(DEVICE), axis, pixels, padded, size, dtype)
            ours, plain = _gpu_augment_kernel.weights(*arguments), gpu_augment.weights(*arguments)
            assert ours.dtype == plain.dtype
            torch.testing.assert_close(ours, plain, rtol=0, atol=atol / (255 if axis else 1))


@runs_kernels
def test_every_image_of_a_batch_has_its_own_weights():
    from swad.testbed.data import _gpu_augment_kernel

    # Several programs per image: 4,096 weights are 16 of 150 output pixels.
    rows = some_rows(4, 300, 260)
    for axis, length, padded in ((0, 227, 232), (1, 200, 200)):
        arguments = (rows, axis, length, padded, 150, torch.float32)
        torch.testing.assert_close(
            _gpu_augment_kernel.weights(*arguments),
            gpu_augment.weights(*arguments),
            rtol=0,
            atol=1e-4 / (255 if axis else 1),
        )


@runs_kernels
@pytest.mark.parametrize(("height", "width", "size"), [(24, 24, 24), (30, 21, SIZE)])
def test_augment_equals_the_plain_code(height, width, size, monkeypatch):
    from swad.testbed.data import _gpu_augment_kernel

    spies = [mock.Mock(side_effect=kernel) for kernel in (_gpu_augment_kernel.weights, _gpu_augment_kernel.finish)]
    monkeypatch.setattr(_gpu_augment_kernel, "weights", spies[0])
    monkeypatch.setattr(_gpu_augment_kernel, "finish", spies[1])
    for seed in range(0, 24, 5):  # five images each: all 24 orders
        images, rows = some_images(5, height, width, seed), some_rows(5, height, width, seed)
        arguments = (images, rows, size, *normalization())
        results = []
        for kernels in (_gpu_augment_kernel, None):
            monkeypatch.setattr(gpu_augment, "_kernels", lambda _, kernels=kernels: kernels)
            results.append(gpu_augment.augment(*arguments, operands=torch.float16, memory_format=torch.channels_last))
        assert results[0].is_contiguous(memory_format=torch.channels_last)
        assert_same_images(*results)
    assert [spy.call_count for spy in spies] == [10, 5]


@runs_kernels
def test_images_do_not_depend_on_the_others_and_a_batch_may_be_empty(monkeypatch):
    from swad.testbed.data import _gpu_augment_kernel

    monkeypatch.setattr(gpu_augment, "_kernels", lambda _: _gpu_augment_kernel)
    images, rows = some_images(3, 20, 26), some_rows(3, 20, 26)
    whole = gpu_augment.augment(images, rows, 16, *normalization())
    for i in range(3):
        alone = gpu_augment.augment(images[i : i + 1], rows[i : i + 1], 16, *normalization())
        assert_same_images(whole[i : i + 1], alone)
    assert gpu_augment.augment(images[:0], rows[:0], 16, *normalization()).shape == (0, 3, 16, 16)


@pytest.mark.slow
def test_without_triton_or_a_gpu_the_plain_code_runs():
    assert gpu_augment._kernels(torch.zeros(1, 4, 4, 3)) is None
    code = """
import sys
sys.modules["triton"] = None
import numpy as np, torch
from swad.testbed.data import augment_parameters, gpu_augment
rows = torch.from_numpy(augment_parameters.identity(np.full((1, 2), 4)))
gpu_augment.augment(torch.zeros(1, 4, 4, 3, dtype=torch.uint8), rows, 4, torch.zeros(3), torch.ones(3))
class Images:
    device = torch.device("cuda")
assert gpu_augment._kernels(Images()) is None
assert "swad.testbed.data._gpu_augment_kernel" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.gpu
@cuda
def test_a_captured_graph_replays_with_other_parameters(monkeypatch):
    images, mean_std = some_images(24, 227, 227), normalization()
    parameters = some_rows(24, 227, 227)
    arguments = (images, parameters, 224, *mean_std)

    def augmented() -> torch.Tensor:
        return gpu_augment.augment(*arguments, memory_format=torch.channels_last)

    torch.cuda.set_sync_debug_mode("error")
    try:
        augmented()  # compiles the kernels, which a capture must not
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = augmented()
    for seed in (1, 2):
        parameters.copy_(some_rows(24, 227, 227, seed))
        graph.replay()
        replayed = result.clone()
        assert torch.equal(replayed, augmented())
        with monkeypatch.context() as patch:
            patch.setattr(gpu_augment, "_kernels", lambda _: None)
            assert_same_images(replayed, augmented())
