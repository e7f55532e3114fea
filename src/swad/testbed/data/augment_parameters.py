"""Drawing the parameters of the augmentation: what `swad.testbed.data.gpu_augment` does to each image.

The parameters of an image are one row of `COLUMNS`, drawn on the host from ``(seed, step, position, view)`` with
torchvision's distributions. A row has 64 bytes, so the rows of a hundred steps are copied to the device at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import numpy as np
import numpy.typing as npt

from swad.testbed.data.augmentation import Augmentation
from swad.testbed.data.domains import IntArray

FloatArray = npt.NDArray[np.float32]

COLUMNS = (
    *("top", "left", "height", "width"),  # the crop, in pixels of the original image
    *("image_height", "image_width"),  # the original image
    "flip",
    *("brightness", "contrast", "saturation", "hue"),
    *("first", "second", "third", "fourth"),  # the order of these four operations, by number
    "grayscale",
)
FIELDS = len(COLUMNS)
TOP, LEFT, HEIGHT, WIDTH, IMAGE_HEIGHT, IMAGE_WIDTH, FLIP = range(7)
FACTORS, ORDER, GRAYSCALE = slice(7, 11), slice(11, 15), 15
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)

_RATIO, _ATTEMPTS = (3 / 4, 4 / 3), 10
_DEFAULT = Augmentation()
_NO_JITTER = np.array([1.0, 1.0, 1.0, 0.0])
_ORDERS = np.array(list(permutations(range(4))))

# Random numbers per image: areas, ratios, then top, left, flip, four factors, order, grayscale.
_DRAWS = 2 * _ATTEMPTS + 9
# Keeps this random stream apart from those of `swad.testbed.data.loaders`.
_STREAM = 5


def draw_steps(
    seed: int, steps: Sequence[int], sizes: IntArray, views: int = 1, augmentation: Augmentation = _DEFAULT
) -> FloatArray:
    """Draw the parameters of many steps: ``[steps, views, positions, FIELDS]`` for sizes ``[steps, positions, 2]``.

    Each row depends only on (seed, step, position, view) and on the size of its image, not on the other steps,
    positions and views that are drawn with it.

    >>> sizes = np.full((3, 2, 2), 227)
    >>> rows = draw_steps(0, range(1, 4), sizes)
    >>> bool((rows[2] == draw_steps(0, [3], sizes[2:])[0]).all())
    True
    """
    uniform = np.empty((len(steps), views, sizes.shape[1], _DRAWS))
    for i, step in enumerate(steps):
        for view in range(views):
            words = np.random.SeedSequence((_STREAM, seed, step, view))
            # RandomState, because NumPy guarantees that its stream never changes; PCG64 is fast to seed.
            uniform[i, view] = np.random.RandomState(np.random.PCG64(words)).random_sample(uniform.shape[2:])
    return _parameters(uniform, np.broadcast_to(sizes[:, None], (*uniform.shape[:3], 2)), augmentation)


def identity(sizes: IntArray) -> FloatArray:
    """Return the parameters of the evaluation transform: resize the whole image and change nothing else."""
    rows = np.zeros((*sizes.shape[:-1], FIELDS), np.float32)
    rows[..., HEIGHT : WIDTH + 1] = rows[..., IMAGE_HEIGHT : IMAGE_WIDTH + 1] = sizes
    rows[..., FACTORS] = _NO_JITTER
    rows[..., ORDER] = range(4)
    return rows


def _parameters(uniform: npt.NDArray[np.float64], sizes: IntArray, augmentation: Augmentation) -> FloatArray:
    """Turn uniform numbers from [0, 1) into parameters, for all images at once."""
    height, width = sizes[..., 0], sizes[..., 1]
    areas, ratios, rest = np.split(uniform, [_ATTEMPTS, 2 * _ATTEMPTS], axis=-1)
    areas = (height * width)[..., None] * _between(augmentation.crop, 1.0, areas)
    ratios = np.exp(_between(np.log(_RATIO[0]), np.log(_RATIO[1]), ratios))
    widths, heights = np.rint(np.sqrt(areas * ratios)), np.rint(np.sqrt(areas / ratios))
    fits = (widths > 0) & (widths <= width[..., None]) & (heights > 0) & (heights <= height[..., None])
    first = fits.argmax(-1)[..., None]
    crops = augmentation.crop < 1
    any_fits = fits.any(-1) & crops

    # If no attempt fits: the largest center crop that the ratio allows, as torchvision does.
    shape = width / height
    high = np.where(crops & (shape < _RATIO[0]), np.rint(width / _RATIO[0]), height)
    wide = np.where(crops & (shape > _RATIO[1]), np.rint(height * _RATIO[1]), width)
    high = np.where(any_fits, np.take_along_axis(heights, first, -1)[..., 0], high)
    wide = np.where(any_fits, np.take_along_axis(widths, first, -1)[..., 0], wide)

    rows = np.empty((*sizes.shape[:-1], FIELDS), np.float32)
    rows[..., TOP] = np.where(any_fits, np.floor(rest[..., 0] * (height - high + 1)), (height - high) // 2)
    rows[..., LEFT] = np.where(any_fits, np.floor(rest[..., 1] * (width - wide + 1)), (width - wide) // 2)
    rows[..., HEIGHT], rows[..., WIDTH] = high, wide
    rows[..., IMAGE_HEIGHT], rows[..., IMAGE_WIDTH] = height, width
    rows[..., FLIP] = rest[..., 2] < augmentation.flip
    rows[..., FACTORS] = _between(-augmentation.jitter, augmentation.jitter, rest[..., 3:7]) + _NO_JITTER
    rows[..., ORDER] = _ORDERS[np.floor(rest[..., 7] * len(_ORDERS)).astype(np.int64)]
    rows[..., GRAYSCALE] = rest[..., 8] < augmentation.grayscale
    return rows


def _between(low: float, high: float, uniform: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return low + (high - low) * uniform
