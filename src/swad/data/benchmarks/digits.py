"""Digits: 1,797 real scans that come with scikit-learn, drawn in four styles; each style is a domain.

The embedded dataset: no download, drawn in a fraction of a second, the same bytes everywhere. Every scan occurs in
one style only, since the same handwriting in a source and in the target would leak. Styles differ in what carries
the shape, so that a network which learnt three has something to fail on:

- ``paper``: dark ink on light, tinted paper;
- ``board``: worn chalk on a dark board;
- ``outline``: only the edge of the stroke, dark on light or light on dark;
- ``clutter``: either, on stripes, with a piece of another digit in a corner.

Few images, moved about at random and grainy: a small network soon knows them by heart, so that the validation loss
turns and rises, as it does on the large benchmarks.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from swad.data.benchmark import Benchmark, Options
from swad.data.domains import ArrayDomain, ByteArray, Dataset, Defaults, Domain, ImageSpec, IntArray

SIZE = 28
# Integers throughout: floating-point sums may differ in the last bit between machines, these cannot.
Ints = IntArray
Draw = np.random.RandomState


def paper(ink: Ints, draw: Draw) -> Ints:
    """Dark ink on light paper."""
    return blend(light(len(ink), draw), dark(len(ink), draw), ink) + grain(len(ink), draw)


def board(ink: Ints, draw: Draw) -> Ints:
    """Chalk on a dark board, a fifth of it worn off."""
    n = len(ink)
    chalk = draw.randint(140, 256, (n, 1, 1, 1)) + np.zeros((1, 1, 1, 3), np.int64)
    worn = ink * (draw.randint(0, 5, ink.shape) > 0)
    return blend(dark(n, draw), chalk, worn) + grain(n, draw)


def outline(ink: Ints, draw: Draw) -> Ints:
    """The edge of the stroke alone: the pixels around those with ink."""
    n = len(ink)
    thick = (ink > 120).astype(np.int64)
    ground, line = either(n, draw)
    return blend(ground, line, 255 * (spread(thick) - thick)) + grain(n, draw)


def clutter(ink: Ints, draw: Draw) -> Ints:
    """A stroke on stripes, with a piece of another digit in a corner."""
    n = len(ink)
    rows, columns = np.mgrid[:SIZE, :SIZE]
    slope, width = draw.randint(-1, 2, (n, 1, 1)), draw.randint(3, 7, (n, 1, 1))
    stripes = ((rows + slope * columns + SIZE) // width % 2)[..., None]
    tint = draw.randint(60, 196, (n, 1, 1, 3))
    ground = tint + stripes * draw.randint(-40, 41, (n, 1, 1, 3))
    _, pen = either(n, draw)
    corner = draw.choice([-1, 1], (n, 2)) * draw.randint(13, 17, (n, 2))
    other = shift(ink[draw.permutation(n)], corner)
    return blend(blend(ground, pen, other), pen, ink) + grain(n, draw)


def light(n: int, draw: Draw) -> Ints:
    """A light color for every image."""
    return draw.randint(150, 256, (n, 1, 1, 3))


def dark(n: int, draw: Draw) -> Ints:
    """A dark color for every image."""
    return draw.randint(0, 101, (n, 1, 1, 3))


def either(n: int, draw: Draw) -> tuple[Ints, Ints]:
    """Ground and pen: light and dark for one half of the images, dark and light for the other."""
    day, first, second = draw.randint(0, 2, (n, 1, 1, 1)), light(n, draw), dark(n, draw)
    return np.where(day, first, second), np.where(day, second, first)


def grain(n: int, draw: Draw) -> Ints:
    """Noise, the same in all channels."""
    return draw.randint(-30, 31, (n, SIZE, SIZE, 1))


STYLES: dict[str, Callable[[Ints, Draw], Ints]] = {
    "board": board,
    "clutter": clutter,
    "outline": outline,
    "paper": paper,
}


def blend(ground: Ints, color: Ints, ink: Ints) -> Ints:
    """``ground`` where there is no ink, ``color`` where there is all of it (255)."""
    cover = ink[..., None]
    mixed: Ints = (ground * (255 - cover) + color * cover) // 255
    return mixed


def spread(mask: Ints) -> Ints:
    """Every pixel takes the largest of itself and its eight neighbors."""
    padded = np.pad(mask, ((0, 0), (1, 1), (1, 1)))
    largest: Ints = np.max([padded[:, y : y + SIZE, x : x + SIZE] for y in range(3) for x in range(3)], axis=0)
    return largest


def shift(ink: Ints, by: Ints) -> Ints:
    """Move every image by its own number of rows and columns; what leaves the frame is lost."""
    rows = np.arange(SIZE)[None, :, None] - by[:, 0, None, None]
    columns = np.arange(SIZE)[None, None, :] - by[:, 1, None, None]
    inside = (rows >= 0) & (rows < SIZE) & (columns >= 0) & (columns < SIZE)
    moved = ink[np.arange(len(ink))[:, None, None], rows.clip(0, SIZE - 1), columns.clip(0, SIZE - 1)]
    kept: Ints = moved * inside
    return kept


def enlarge(scans: Ints) -> Ints:
    """8 × 8 scans of 0-16 to 24 × 24 of 0-255 by linear interpolation, framed by 2 empty pixels."""
    weights = np.zeros((24, 8), np.int64)
    for row in range(24):
        near, aside = row // 3, row // 3 + row % 3 - 1
        weights[row, near] += 2
        weights[row, min(max(aside, 0), 7)] += 1
    grown = weights @ scans @ weights.T  # both directions weigh 3
    return np.pad(grown * 255 // (16 * 9), ((0, 0), (2, 2), (2, 2)))


def read(benchmark: Benchmark, root: Path | None, check_counts: bool, options: Options) -> Dataset:
    """Deal the scans to the styles and draw them."""
    from sklearn.datasets import load_digits

    scans, digits = load_digits(return_X_y=True)
    ink = enlarge(scans.reshape(-1, 8, 8).astype(np.int64))
    # Scans come writer by writer; shuffled, every style has a share of every hand.
    order = np.random.RandomState(0).permutation(len(ink))
    domains: list[Domain] = []
    for i, (name, style) in enumerate(STYLES.items()):
        mine = order[i :: len(STYLES)]
        draw = np.random.RandomState(i)
        moved = shift(ink[mine], draw.randint(-3, 4, (len(mine), 2)))
        drawn: ByteArray = style(moved, draw).clip(0, 255).astype(np.uint8)
        domains.append(ArrayDomain(name, digits[mine].astype(np.int64), drawn))
    classes = tuple(str(digit) for digit in range(10))
    return Dataset(benchmark.name, tuple(domains), classes, benchmark.image_spec, benchmark.defaults)


BENCHMARK = Benchmark(
    name="digits",
    folder="",
    domains=tuple(STYLES),
    counts={"board": 450, "clutter": 449, "outline": 449, "paper": 449},
    n_classes=10,
    classes=tuple(str(digit) for digit in range(10)),
    image_spec=ImageSpec(size=SIZE, low_res=True, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25)),
    # Ours: the loss turns after some 100 steps and ends at half as much again and more; r = 1.3 is the paper's.
    defaults=Defaults(steps=600, evaluate_every=20, tolerance_ratio=0.3, batch_size=32, lr=3e-3),
    license="CC BY 4.0 (UCI), distributed with scikit-learn (BSD-3-Clause)",
    citation="Alpaydin, Kaynak: Optical Recognition of Handwritten Digits. UCI Machine Learning Repository, 1998.",
    homepage="https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits",
    read=read,
    kind="embedded",
)
