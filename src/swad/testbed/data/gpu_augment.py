"""DomainBed's training augmentation for a whole batch at once, on the device of the images.

The parameters of each image are drawn beforehand, by `swad.testbed.data.augment_parameters`. `augment` applies them
without random numbers: it never synchronizes with the host and no shape depends on data, so a CUDA graph can capture it
and ``torch.compile`` can compile it.

For the same parameters every operation equals torchvision's on float tensors, up to rounding. Pillow's operations,
which the published protocol uses, round to bytes after each operation; these do not.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor

from swad.testbed.data.augment_parameters import (
    CONTRAST,
    FACTORS,
    FLIP,
    GRAYSCALE,
    HEIGHT,
    HUE,
    IMAGE_HEIGHT,
    ORDER,
    SATURATION,
    TOP,
    identity,
)
from swad.testbed.data.domains import IntArray
from swad.util.images import LUMINANCE, DataError

Weights = Callable[[Tensor, int, int, int, int, torch.dtype], Tensor]
"""Computes the resampling weights of one axis; see `weights`."""


def augment(
    images: Tensor,
    parameters: Tensor,
    size: int,
    mean: Tensor,
    std: Tensor,
    *,
    memory_format: torch.memory_format = torch.contiguous_format,
    operands: torch.dtype | None = None,
) -> Tensor:
    """Augment and normalize bytes ``[b, height, width, channels]`` to ``[b, channels, size, size]``.

    On a GPU, Triton kernels do everything but the matrix products, in a few passes over memory.

    Args:
        images: Bytes.
        parameters: Rows of `COLUMNS`, on the device of the images.
        size: Height and width of the result.
        mean: Mean of each channel, on the device of the images.
        std: Standard deviation of each channel, on the device of the images.
        memory_format: Memory format of the result.
        operands: Type of the factors of the matrix products. Default: float32 on the CPU, float16 on a GPU. float16
            represents bytes exactly and sums are float32; the result is off by less than 0.3 of the 255 levels.
    """
    if images.shape[-1] != 3:
        raise DataError(
            f"the gpu input pipeline augments images of 3 channels, got {images.shape[-1]}: use --input-pipeline "
            "torchvision"
        )
    result = torch.empty((len(images), 3, size, size), device=images.device, memory_format=memory_format)

    def finish(result: Tensor, images: Tensor, rows: Tensor) -> None:
        image = jitter(resample(images, rows, size, operands), rows[:, FACTORS], rows[:, ORDER])
        gray = _per_image(rows[:, GRAYSCALE])
        image = torch.addcmul(gray * luminance(image), image, 1 - gray)
        scale = 1 / std.view(-1, 1, 1)
        result.copy_(torch.addcmul(-mean.view(-1, 1, 1) * scale, image, scale))

    # Autocast would multiply in bfloat16, which cannot represent all 256 levels.
    with torch.autocast(images.device.type, enabled=False):
        if kernels := _kernels(images):
            pixels = _products(images, parameters, size, operands, kernels.weights)
            kernels.finish(pixels, parameters, mean, std, result)
        elif images.device.type != "cpu" or torch.compiler.is_compiling():
            finish(result, images, parameters)
        else:  # as many as fit into a core's cache: twice as fast as all at once
            for i in range(0, len(images), 4):
                finish(result[i : i + 4], images[i : i + 4], parameters[i : i + 4])
    return result


def _kernels(images: Tensor) -> ModuleType | None:
    """Return the Triton kernels, if they can run here; torch.compile generates its own."""
    if torch.compiler.is_compiling() or images.device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return None
    from swad.testbed.data import _gpu_augment_kernel

    return _gpu_augment_kernel


def resample(images: Tensor, parameters: Tensor, size: int, operands: torch.dtype | None = None) -> Tensor:
    """Crop, resize and flip bytes ``[b, height, width, channels]`` to floats in [0, 1], ``[b, channels, size, size]``.

    Resampling is linear in rows and in columns, so it is two matrix products per image: weights × image × weights.
    Crops are in pixels of the original image; they are scaled if the image has another size here.
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
    """Compute weights × image × weights in the type of the operands: ``[b, size, channels, size]``."""
    on_gpu = images.device.type == "cuda"
    operands = operands or (torch.float16 if on_gpu else torch.float32)
    b, height, width, channels = images.shape
    # GPUs multiply matrices fast if their rows start at multiples of 16 bytes.
    high, wide = (-(-n // 8) * 8 if on_gpu else n for n in (height, width))
    rows = weights(parameters, 0, height, high, size, operands)
    columns = weights(parameters, 1, width, wide, size, operands)
    # With channels between rows and columns, neither product needs a transposed copy.
    pixels = torch.zeros((b, high, channels, wide), dtype=operands, device=images.device)
    pixels[:, :height, :, :width] = images.transpose(2, 3)
    pixels = torch.bmm(rows, pixels.view(b, high, channels * wide))
    pixels = torch.bmm(pixels.view(b, size * channels, wide), columns.transpose(1, 2))
    return pixels.view(b, size, channels, size)


def weights(parameters: Tensor, axis: int, length: int, pixels: int, size: int, dtype: torch.dtype) -> Tensor:
    """Return the weight of each input pixel in each of ``size`` output pixels along an axis: ``[b, size, pixels]``.

    Bilinear with antialiasing: a triangle around the center of the output pixel, as wide as two output pixels and at
    least two input pixels, over the input pixels whose center is in the crop, normalized to sum to 1.

    Args:
        parameters: Rows of `COLUMNS`.
        axis: 0 for rows; 1 for columns, whose weights also include the flip and the division by 255.
        length: Number of input pixels along the axis.
        pixels: That number padded for alignment; the padding has weight 0.
        size: Number of output pixels.
        dtype: Type of the weights.
    """
    zoom = length / parameters[:, IMAGE_HEIGHT + axis]
    crop_start, crop_length = parameters[:, TOP + axis] * zoom, parameters[:, HEIGHT + axis] * zoom
    scale = (crop_length / size)[:, None]
    output = torch.arange(size, device=parameters.device) + 0.5
    if axis == 1:
        output = torch.where((parameters[:, FLIP] > 0.5)[:, None], size - output, output)
    radius = scale.clamp(min=1)
    center = torch.arange(pixels, device=parameters.device) + 0.5
    # A crop narrower than a pixel still contains the pixel that it is in.
    crop_center = (crop_start + crop_length / 2)[:, None]
    inside = (center - crop_center).abs() <= (crop_length / 2).clamp(min=0.5)[:, None] + 1e-3
    distance = ((crop_start[:, None] + scale * output) / radius)[:, :, None] - (center / radius)[:, None]
    triangles = (1 - distance.abs()).clamp(min=0) * inside[:, None]
    normalized = triangles / triangles.sum(-1, keepdim=True)
    return (normalized / 255 if axis == 1 else normalized).to(dtype)


def jitter(image: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    """Apply brightness, contrast, saturation and hue, with each image's own factors in its own order.

    Brightness, contrast and saturation blend an image with a gray one: one operation with different numbers. Every
    order is then: up to three blends, the hue, the remaining blends. Unused blends leave the image unchanged.
    """
    at = torch.arange(4, device=image.device)
    hue_at = ((order == HUE) * at).sum(1, keepdim=True)
    slots = torch.cat([order[:, :3], order[:, 1:]], 1)
    used = torch.cat([at[:3] < hue_at, at[:3] >= hue_at], 1) & (slots != HUE)
    factor = factors.gather(1, slots.to(torch.int64))
    keep = torch.where(used, factor, 1.0)
    gray, level = (torch.where(slots == operation, 1 - keep, 0.0) for operation in (SATURATION, CONTRAST))
    blends = [tuple(_per_image(numbers[:, i]) for numbers in (keep, gray, level)) for i in range(6)]
    for blend in blends[:3]:
        image = _blend(image, *blend)
    image = shift_hue(image, _per_image(factors[:, HUE]))
    for blend in blends[3:]:
        image = _blend(image, *blend)
    return image


def _blend(image: Tensor, keep: Tensor, gray: Tensor, level: Tensor) -> Tensor:
    """Add ``keep`` of the image, ``gray`` of its gray version and ``level`` of its mean gray; clamp to [0, 1]."""
    gray_image = luminance(image)
    other = torch.addcmul(level * gray_image.mean((2, 3), keepdim=True), gray_image, gray)
    return torch.addcmul(other, image, keep).clamp(0, 1)


def shift_hue(image: Tensor, shift: Tensor) -> Tensor:
    """Rotate the hue of every pixel by a fraction of the color circle, in HSV.

    With hue h in sixths of the circle, value v and chroma c, a channel is v - c · min(k, 4 - k, 1), clamped to
    [v - c, v], for k = 5 + h, 3 + h, 1 + h modulo 6.
    """
    red, green, blue = image[:, :1], image[:, 1:2], image[:, 2:]
    value = torch.maximum(torch.maximum(red, green), blue)
    chroma = value - torch.minimum(torch.minimum(red, green), blue)
    hue = torch.where(value == green, blue - red + 2 * chroma, red - green + 4 * chroma)
    hue = torch.where(value == red, green - blue, hue) / torch.where(chroma > 0, chroma, 1.0)
    k = (hue + 6 * shift + torch.arange(5, 0, -2, device=image.device).view(3, 1, 1)) % 6
    return torch.addcmul(value, torch.minimum(k, 4 - k).clamp(0, 1), chroma, value=-1)


def luminance(image: Tensor) -> Tensor:
    """Return the gray version of an image, with one channel."""
    red, green, blue = image[:, :1], image[:, 1:2], image[:, 2:]
    red_weight, green_weight, blue_weight = LUMINANCE
    return (red * red_weight).add_(green, alpha=green_weight).add_(blue, alpha=blue_weight)


def _per_image(numbers: Tensor) -> Tensor:
    return numbers.view(-1, 1, 1, 1)
