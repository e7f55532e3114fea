"""Digits: the 1,797 scanned digits of scikit-learn rendered in four styles, each of which is a domain.

This embedded dataset needs no download, is rendered in a fraction of a second, and has the same bytes on every machine.
Each scan occurs in one style only; otherwise the same handwriting in a source and in the target would leak. The styles
render the shape differently, so a network trained on three of them does not simply transfer to the fourth:

- ``paper``: dark ink on light, tinted paper;
- ``board``: worn chalk on a dark board;
- ``outline``: only the edge of the stroke, dark on light or light on dark;
- ``clutter``: dark on light or light on dark over stripes, with part of another digit in a corner.

The images are few, randomly shifted and noisy, so a small network soon overfits: its validation loss falls and then
rises, as it does on the large benchmarks.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from swad.testbed.data.benchmark import Benchmark, Options
from swad.testbed.data.domains import ArrayDomain, ByteArray, Dataset, Defaults, Domain, ImageSpec, IntArray
from swad.util.images import DataError

SIZE = 28
# Integers throughout, because floating-point sums may differ in the last bit between machines.
Ints = IntArray
Rng = np.random.RandomState


def paper(ink: Ints, rng: Rng) -> Ints:
    """Dark ink on light paper."""
    return blend(light_color(len(ink), rng), dark_color(len(ink), rng), ink) + noise(len(ink), rng)


def board(ink: Ints, rng: Rng) -> Ints:
    """Chalk on a dark board, with a fifth of it worn off."""
    n = len(ink)
    chalk = rng.randint(140, 256, (n, 1, 1, 1)) + np.zeros((1, 1, 1, 3), np.int64)
    worn = ink * (rng.randint(0, 5, ink.shape) > 0)
    return blend(dark_color(n, rng), chalk, worn) + noise(n, rng)


def outline(ink: Ints, rng: Rng) -> Ints:
    """Only the edge of the stroke: the pixels around those with ink."""
    n = len(ink)
    thick = (ink > 120).astype(np.int64)
    background, line = two_tones(n, rng)
    return blend(background, line, 255 * (dilate(thick) - thick)) + noise(n, rng)


def clutter(ink: Ints, rng: Rng) -> Ints:
    """A stroke on stripes, with part of another digit in a corner."""
    n = len(ink)
    rows, columns = np.mgrid[:SIZE, :SIZE]
    slope, width = rng.randint(-1, 2, (n, 1, 1)), rng.randint(3, 7, (n, 1, 1))
    stripes = ((rows + slope * columns + SIZE) // width % 2)[..., None]
    tint = rng.randint(60, 196, (n, 1, 1, 3))
    background = tint + stripes * rng.randint(-40, 41, (n, 1, 1, 3))
    _, pen = two_tones(n, rng)
    corner = rng.choice([-1, 1], (n, 2)) * rng.randint(13, 17, (n, 2))
    other = shift(ink[rng.permutation(n)], corner)
    return blend(blend(background, pen, other), pen, ink) + noise(n, rng)


def light_color(n: int, rng: Rng) -> Ints:
    """Draw a light color for every image."""
    return rng.randint(150, 256, (n, 1, 1, 3))


def dark_color(n: int, rng: Rng) -> Ints:
    """Draw a dark color for every image."""
    return rng.randint(0, 101, (n, 1, 1, 3))


def two_tones(n: int, rng: Rng) -> tuple[Ints, Ints]:
    """Background and pen colors: randomly dark on light or light on dark for each image."""
    dark_on_light, first, second = rng.randint(0, 2, (n, 1, 1, 1)), light_color(n, rng), dark_color(n, rng)
    return np.where(dark_on_light, first, second), np.where(dark_on_light, second, first)


def noise(n: int, rng: Rng) -> Ints:
    """Gray noise: the same in all channels."""
    return rng.randint(-30, 31, (n, SIZE, SIZE, 1))


STYLES: dict[str, Callable[[Ints, Rng], Ints]] = {
    "board": board,
    "clutter": clutter,
    "outline": outline,
    "paper": paper,
}


def blend(background: Ints, color: Ints, ink: Ints) -> Ints:
    """Mix ``background`` and ``color`` in proportion to the ink, from 0 to 255."""
    alpha = ink[..., None]
    mixed: Ints = (background * (255 - alpha) + color * alpha) // 255
    return mixed


def dilate(mask: Ints) -> Ints:
    """Replace every pixel by the maximum of itself and its eight neighbors."""
    padded = np.pad(mask, ((0, 0), (1, 1), (1, 1)))
    largest: Ints = np.max([padded[:, y : y + SIZE, x : x + SIZE] for y in range(3) for x in range(3)], axis=0)
    return largest


def shift(ink: Ints, by: Ints) -> Ints:
    """Shift every image by its own number of rows and columns; pixels shifted out of the image are lost."""
    rows = np.arange(SIZE)[None, :, None] - by[:, 0, None, None]
    columns = np.arange(SIZE)[None, None, :] - by[:, 1, None, None]
    inside = (rows >= 0) & (rows < SIZE) & (columns >= 0) & (columns < SIZE)
    shifted = ink[np.arange(len(ink))[:, None, None], rows.clip(0, SIZE - 1), columns.clip(0, SIZE - 1)]
    visible: Ints = shifted * inside
    return visible


def enlarge(scans: Ints) -> Ints:
    """Enlarge 8 × 8 scans of 0-16 to 24 × 24 pixels of 0-255 by linear interpolation, with a border of 2 pixels."""
    weights = np.zeros((24, 8), np.int64)
    for row in range(24):
        nearest, neighbor = row // 3, row // 3 + row % 3 - 1
        weights[row, nearest] += 2
        weights[row, min(max(neighbor, 0), 7)] += 1
    enlarged = weights @ scans @ weights.T  # the weights of each direction sum to 3
    return np.pad(enlarged * 255 // (16 * 9), ((0, 0), (2, 2), (2, 2)))


def load_scans() -> tuple[Ints, Ints]:
    """Read scikit-learn's digits, 8 × 8 pixels of 0-16, and their labels, without importing scikit-learn.

    The import takes a second, as it loads pandas and scipy, and every process that trains on digits would pay for it.
    """
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise DataError("the digits come with scikit-learn: pip install scikit-learn")
    table = np.loadtxt(Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",").astype(np.int64)
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1]


@cache  # a process may train many runs
def render() -> tuple[Domain, ...]:
    """Deal the scans to the styles and render them."""
    scans, digits = load_scans()
    ink = enlarge(scans)
    # The scans are ordered by writer; shuffling gives every style a share of every handwriting.
    order = np.random.RandomState(0).permutation(len(ink))
    domains: list[Domain] = []
    for i, (name, style) in enumerate(STYLES.items()):
        share = order[i :: len(STYLES)]
        rng = np.random.RandomState(i)
        shifted = shift(ink[share], rng.randint(-3, 4, (len(share), 2)))
        rendered: ByteArray = style(shifted, rng).clip(0, 255).astype(np.uint8)
        domains.append(ArrayDomain(name, digits[share], rendered))
    return tuple(domains)


def read(benchmark: Benchmark, root: Path | None, check_counts: bool, options: Options) -> Dataset:
    """Return the dataset."""
    classes = tuple(str(digit) for digit in range(10))
    return Dataset(benchmark.name, render(), classes, benchmark.image_spec, benchmark.defaults)


BENCHMARK = Benchmark(
    name="digits",
    folder="",
    domains=tuple(STYLES),
    counts={"board": 450, "clutter": 449, "outline": 449, "paper": 449},
    n_classes=10,
    classes=tuple(str(digit) for digit in range(10)),
    image_spec=ImageSpec(size=SIZE, low_res=True, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25)),
    # Chosen by us, except r = 1.3: the validation loss starts to rise after about 100 steps and ends 50 % higher.
    defaults=Defaults(steps=600, evaluate_every=20, tolerance_ratio=0.3, batch_size=32, lr=3e-3),
    license="CC BY 4.0 (UCI), distributed with scikit-learn (BSD-3-Clause)",
    citation="Alpaydin, Kaynak: Optical Recognition of Handwritten Digits. UCI Machine Learning Repository, 1998.",
    homepage="https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits",
    read=read,
    layout="embedded",
)
