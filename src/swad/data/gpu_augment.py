"""The protocol's augmentation for a whole batch at once, on the device the images are on.

Deciding and doing are two things. What happens to an image is one row of :data:`COLUMNS`, drawn on the host from
``(seed, step, position, view)`` with torchvision's distributions (:func:`draw_steps`): 64 bytes an image, so that the
rows of a hundred steps travel in one copy. :func:`augment` then does it, without random numbers: nothing waits for the
host, no shape depends on data, and a CUDA graph or ``torch.compile`` can hold it.

Every operation is torchvision's on float tensors, for the same parameters, up to rounding. Pillow's, which the
protocol was published with, round to bytes after each operation; these do not.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from itertools import permutations
from types import ModuleType

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from swad.data.domains import DataError, IntArray

FloatArray = npt.NDArray[np.float32]
Weights = Callable[[Tensor, int, int, int, int, torch.dtype], Tensor]
"""Makes what the resampling multiplies with; see :func:`weights`."""

COLUMNS = (
    *("top", "left", "height", "width"),  # the crop, in pixels of the original image
    *("image_height", "image_width"),  # the original image
    "flip",
    *("brightness", "contrast", "saturation", "hue"),
    *("first", "second", "third", "fourth"),  # the order of those four, by number
    "grayscale",
)
FIELDS = len(COLUMNS)
TOP, LEFT, HEIGHT, WIDTH, IMAGE_HEIGHT, IMAGE_WIDTH, FLIP = range(7)
FACTORS, ORDER, GRAYSCALE = slice(7, 11), slice(11, 15), 15
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)

# The protocol's: RandomResizedCrop(scale=(0.7, 1)), flip, ColorJitter(0.3, 0.3, 0.3, 0.3), RandomGrayscale(0.1).
_AREA, _RATIO, _ATTEMPTS = (0.7, 1.0), (3 / 4, 4 / 3), 10
_JITTER, _FLIP_PROBABILITY, _GRAYSCALE_PROBABILITY = 0.3, 0.5, 0.1
_NO_JITTER = np.array([1.0, 1.0, 1.0, 0.0])
_ORDERS = np.array(list(permutations(range(4))))

# The numbers of one image: areas, ratios, then top, left, flip, four factors, order, grayscale.
_DRAWS = 2 * _ATTEMPTS + 9
# Keeps this stream apart from those of the batches.
_STREAM = 5

# How much red, green and blue weigh in torchvision's gray.
LUMINANCE = (0.2989, 0.587, 0.114)


# --- deciding -------------------------------------------------------------------------------------------------


def draw(rng: np.random.Generator | np.random.RandomState, sizes: IntArray) -> FloatArray:
    """Parameters for images of these heights and widths (``[n, 2]``): ``[n, FIELDS]``."""
    return _parameters(rng.random((len(sizes), _DRAWS)), sizes)


def draw_steps(seed: int, steps: Sequence[int], sizes: IntArray, views: int = 1) -> FloatArray:
    """Parameters of many steps: ``[steps, views, positions, FIELDS]`` for sizes ``[steps, positions, 2]``.

    Each row is a function of (seed, step, position, view) and of its image's size alone, whichever steps are asked
    for together and however many positions and views there are.

    >>> sizes = np.full((3, 2, 2), 227)
    >>> rows = draw_steps(0, range(1, 4), sizes)
    >>> bool((rows[2] == draw_steps(0, [3], sizes[2:])[0]).all())
    True
    """
    if seed < 0 or views < 1:
        raise DataError(f"the seed must be 0 or more and the views 1 or more, got {seed} and {views}")
    if sizes.ndim != 3 or sizes.shape[0] != len(steps) or sizes.shape[2] != 2:
        raise DataError(f"{len(steps)} steps need sizes of shape ({len(steps)}, positions, 2), got {sizes.shape}")
    uniform = np.empty((len(steps), views, sizes.shape[1], _DRAWS))
    for i, step in enumerate(steps):
        for view in range(views):
            words = np.random.SeedSequence((_STREAM, seed, step, view))
            # RandomState is the generator whose stream NumPy has promised to keep; PCG64 is quick to seed.
            uniform[i, view] = np.random.RandomState(np.random.PCG64(words)).random_sample(uniform.shape[2:])
    return _parameters(uniform, np.broadcast_to(sizes[:, None], (*uniform.shape[:3], 2)))


def identity(sizes: IntArray) -> FloatArray:
    """Parameters that change nothing: the whole image, only resized. The evaluation transform."""
    rows = np.zeros((*sizes.shape[:-1], FIELDS), np.float32)
    rows[..., HEIGHT : WIDTH + 1] = rows[..., IMAGE_HEIGHT : IMAGE_WIDTH + 1] = sizes
    rows[..., FACTORS] = _NO_JITTER
    rows[..., ORDER] = range(4)
    return rows


def _parameters(uniform: npt.NDArray[np.float64], sizes: IntArray) -> FloatArray:
    """Turn numbers uniform in [0, 1) into parameters, all images at once."""
    height, width = sizes[..., 0], sizes[..., 1]
    areas, ratios, rest = np.split(uniform, [_ATTEMPTS, 2 * _ATTEMPTS], axis=-1)
    areas = (height * width)[..., None] * _between(*_AREA, areas)
    ratios = np.exp(_between(np.log(_RATIO[0]), np.log(_RATIO[1]), ratios))
    widths, heights = np.rint(np.sqrt(areas * ratios)), np.rint(np.sqrt(areas / ratios))
    fits = (widths > 0) & (widths <= width[..., None]) & (heights > 0) & (heights <= height[..., None])
    first = fits.argmax(-1)[..., None]
    found = fits.any(-1)

    # Where no attempt fits, as much of the middle as the ratio allows.
    shape = width / height
    high = np.where(shape < _RATIO[0], np.rint(width / _RATIO[0]), height)
    wide = np.where(shape > _RATIO[1], np.rint(height * _RATIO[1]), width)
    high = np.where(found, np.take_along_axis(heights, first, -1)[..., 0], high)
    wide = np.where(found, np.take_along_axis(widths, first, -1)[..., 0], wide)

    rows = np.empty((*sizes.shape[:-1], FIELDS), np.float32)
    rows[..., TOP] = np.where(found, np.floor(rest[..., 0] * (height - high + 1)), (height - high) // 2)
    rows[..., LEFT] = np.where(found, np.floor(rest[..., 1] * (width - wide + 1)), (width - wide) // 2)
    rows[..., HEIGHT], rows[..., WIDTH] = high, wide
    rows[..., IMAGE_HEIGHT], rows[..., IMAGE_WIDTH] = height, width
    rows[..., FLIP] = rest[..., 2] < _FLIP_PROBABILITY
    rows[..., FACTORS] = _between(-_JITTER, _JITTER, rest[..., 3:7]) + _NO_JITTER
    rows[..., ORDER] = _ORDERS[np.floor(rest[..., 7] * len(_ORDERS)).astype(np.int64)]
    rows[..., GRAYSCALE] = rest[..., 8] < _GRAYSCALE_PROBABILITY
    return rows


def _between(low: float, high: float, uniform: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return low + (high - low) * uniform


# --- doing ----------------------------------------------------------------------------------------------------


def augment(
    images: Tensor,
    parameters: Tensor,
    size: int,
    mean: Tensor,
    std: Tensor,
    *,
    color: bool = True,
    dtype: torch.dtype = torch.float32,
    memory_format: torch.memory_format = torch.contiguous_format,
    operands: torch.dtype | None = None,
) -> Tensor:
    """Augment and normalize bytes ``[b, height, width, channels]`` to ``[b, channels, size, size]``.

    ``parameters`` are rows of :data:`COLUMNS`; ``mean`` and ``std`` have one number a channel. All are on the device
    of the images, so that nothing is copied. Without ``color`` images are only cropped, flipped and resized, which
    is all that :func:`identity` asks for.

    ``operands`` is what the resampling multiplies in: float32 on the CPU, float16 on a GPU, where bytes are exact,
    sums are kept in float32, and the result is off by less than 0.3 of one of 255 levels.

    On a GPU `swad.data._gpu_augment_kernel` does all but the products, in a few passes over memory.
    """
    if color and images.shape[-1] != 3:
        raise DataError(f"color jitter needs images of 3 channels, got {images.shape[-1]}; pass color=False")
    shape = (len(images), images.shape[-1], size, size)
    result = torch.empty(shape, dtype=dtype, device=images.device, memory_format=memory_format)

    def finish(result: Tensor, images: Tensor, rows: Tensor) -> None:
        image = resample(images, rows, size, operands)
        if color:
            image = jitter(image, rows[:, FACTORS], rows[:, ORDER])
            gray = _per_image(rows[:, GRAYSCALE])
            image = torch.addcmul(gray * luminance(image), image, 1 - gray)
        scale = 1 / std.view(-1, 1, 1)
        result.copy_(torch.addcmul(-mean.view(-1, 1, 1) * scale, image, scale))

    # Autocast would multiply in bfloat16, which cannot hold a level and the next.
    with torch.autocast(images.device.type, enabled=False):
        if color and (kernels := _kernels(images)):
            pixels = _products(images, parameters, size, operands, kernels.weights)
            kernels.finish(pixels, parameters, mean, std, result)
        elif images.device.type != "cpu" or torch.compiler.is_compiling():
            finish(result, images, parameters)
        else:  # as many at a time as a core's cache holds: twice as fast as all at once
            for i in range(0, len(images), 4):
                finish(result[i : i + 4], images[i : i + 4], parameters[i : i + 4])
    return result


def _kernels(images: Tensor) -> ModuleType | None:
    """What takes fewer passes than torch's own operations, where it runs; torch.compile makes its own."""
    if torch.compiler.is_compiling() or images.device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return None
    from swad.data import _gpu_augment_kernel

    return _gpu_augment_kernel


def resample(images: Tensor, parameters: Tensor, size: int, operands: torch.dtype | None = None) -> Tensor:
    """Crop, resize and flip bytes ``[b, height, width, channels]`` to floats in [0, 1], ``[b, channels, size, size]``.

    Resampling is linear in rows and in columns, so it is two matrix products an image: weights × image × weights.
    Crops count in pixels of the original image; if the image at hand has another size, they are scaled to it.
    """
    return _products(images, parameters, size, operands, weights).transpose(1, 2).to(torch.float32)


def resize_bytes(images: Tensor, sizes: IntArray, size: int) -> Tensor:
    """Resize bytes for evaluation and round them to bytes again: ``[b, channels, size, size]``.

    ``sizes`` are the original heights and widths of the images, ``[b, 2]``.
    """
    parameters = torch.from_numpy(identity(sizes)).to(images.device)
    levels = resample(images, parameters, size).mul_(255).round_().clamp_(0, 255)
    return levels.to(torch.uint8).contiguous()


def _products(images: Tensor, parameters: Tensor, size: int, operands: torch.dtype | None, weights: Weights) -> Tensor:
    """Weights × image × weights, in the type of the operands: ``[b, size, channels, size]``."""
    on_gpu = images.device.type == "cuda"
    operands = operands or (torch.float16 if on_gpu else torch.float32)
    b, height, width, channels = images.shape
    # GPUs multiply matrices well whose rows begin at multiples of 16 bytes.
    high, wide = (-(-n // 8) * 8 if on_gpu else n for n in (height, width))
    rows = weights(parameters, 0, height, high, size, operands)
    columns = weights(parameters, 1, width, wide, size, operands)
    # Channels between rows and columns: then both products read and write as the numbers lie.
    pixels = torch.zeros((b, high, channels, wide), dtype=operands, device=images.device)
    pixels[:, :height, :, :width] = images.transpose(2, 3)
    pixels = torch.bmm(rows, pixels.view(b, high, channels * wide))
    pixels = torch.bmm(pixels.view(b, size * channels, wide), columns.transpose(1, 2))
    return pixels.view(b, size, channels, size)


def weights(parameters: Tensor, axis: int, held: int, pixels: int, size: int, dtype: torch.dtype) -> Tensor:
    """How much each pixel weighs in each of ``size`` equal pieces of the crop's rows or columns: ``[b, size, pixels]``.

    Bilinear with antialiasing: a triangle around the middle of the piece, as wide as two pieces but never less than two
    pixels, over the pixels whose middle lies inside, divided by their sum. Rows are axis 0. Columns, axis 1, are
    flipped where an image is, and divide by 255. Of ``pixels``, the image has ``held``; the others weigh nothing.
    """
    zoom = held / parameters[:, IMAGE_HEIGHT + axis]
    start, length = parameters[:, TOP + axis] * zoom, parameters[:, HEIGHT + axis] * zoom
    scale = (length / size)[:, None]
    piece = torch.arange(size, device=start.device) + 0.5
    if axis == 1:
        piece = torch.where((parameters[:, FLIP] > 0.5)[:, None], size - piece, piece)
    reach = scale.clamp(min=1)
    middle = torch.arange(pixels, device=start.device) + 0.5
    # An interval narrower than a pixel has at least the pixel it lies in.
    inside = (middle - (start + length / 2)[:, None]).abs() <= (length / 2).clamp(min=0.5)[:, None] + 1e-3
    distance = ((start[:, None] + scale * piece) / reach)[:, :, None] - (middle / reach)[:, None]
    triangles = (1 - distance.abs()).clamp(min=0) * inside[:, None]
    shares = triangles / triangles.sum(-1, keepdim=True)
    return (shares / 255 if axis == 1 else shares).to(dtype)


def jitter(image: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    """Brightness, contrast, saturation and hue, each image's four factors in its own order.

    Three of them mix an image with something gray, and are one operation with other numbers. So every order is: up to
    three mixtures, the hue, the others; an image that needs fewer mixes with nothing.
    """
    at = torch.arange(4, device=image.device)
    hue_at = ((order == HUE) * at).sum(1, keepdim=True)
    slots = torch.cat([order[:, :3], order[:, 1:]], 1)
    used = torch.cat([at[:3] < hue_at, at[:3] >= hue_at], 1) & (slots != HUE)
    factor = factors.gather(1, slots.to(torch.int64))
    keep = torch.where(used, factor, 1.0)
    gray, level = (torch.where(slots == operation, 1 - keep, 0.0) for operation in (SATURATION, CONTRAST))
    mixtures = [tuple(_per_image(numbers[:, i]) for numbers in (keep, gray, level)) for i in range(6)]
    for mixture in mixtures[:3]:
        image = _mix(image, *mixture)
    image = shift_hue(image, _per_image(factors[:, HUE]))
    for mixture in mixtures[3:]:
        image = _mix(image, *mixture)
    return image


def _mix(image: Tensor, keep: Tensor, gray: Tensor, level: Tensor) -> Tensor:
    """``keep`` of the image, ``gray`` of its gray version, ``level`` of its mean gray; within [0, 1]."""
    shade = luminance(image)
    other = torch.addcmul(level * shade.mean((2, 3), keepdim=True), shade, gray)
    return torch.addcmul(other, image, keep).clamp(0, 1)


def shift_hue(image: Tensor, turn: Tensor) -> Tensor:
    """Turn every pixel's hue by a part of the circle, through HSV.

    With hue h in sixths of the circle, value v and chroma c, a channel is v - c · min(k, 4 - k, 1), at least v - c and
    at most v, for k = 5 + h, 3 + h, 1 + h modulo 6.
    """
    red, green, blue = image[:, :1], image[:, 1:2], image[:, 2:]
    value = torch.maximum(torch.maximum(red, green), blue)
    chroma = value - torch.minimum(torch.minimum(red, green), blue)
    hue = torch.where(value == green, blue - red + 2 * chroma, red - green + 4 * chroma)
    hue = torch.where(value == red, green - blue, hue) / torch.where(chroma > 0, chroma, 1.0)
    k = (hue + 6 * turn + torch.arange(5, 0, -2, device=image.device).view(3, 1, 1)) % 6
    return torch.addcmul(value, torch.minimum(k, 4 - k).clamp(0, 1), chroma, value=-1)


def luminance(image: Tensor) -> Tensor:
    """The gray version of an image, one channel."""
    red, green, blue = image[:, :1], image[:, 1:2], image[:, 2:]
    weigh_red, weigh_green, weigh_blue = LUMINANCE
    return (red * weigh_red).add_(green, alpha=weigh_green).add_(blue, alpha=weigh_blue)


def _per_image(numbers: Tensor) -> Tensor:
    return numbers.view(-1, 1, 1, 1)
