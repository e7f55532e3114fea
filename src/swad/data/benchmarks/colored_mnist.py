"""ColoredMNIST: a colour that predicts the label well in training and the wrong way round in the third domain.

The label is 1 for digits below 5, then flipped with probability 0.25. The colour is the label, flipped with
probability 0.1, 0.2 or 0.9 by domain; it decides which of two channels keeps the digit (Arjovsky et al. 2019).
No digit occurs in two domains.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from swad.data.benchmark import Benchmark, Options
from swad.data.benchmarks import _mnist
from swad.data.domains import ArrayDomain, Dataset, Defaults, Domain, Pixels

FLIPS = {"+90%": 0.1, "+80%": 0.2, "-90%": 0.9}


def read(benchmark: Benchmark, root: Path | None, strict: bool, options: Options) -> Dataset:
    """Draw labels and colours, in a stream of their own for every domain."""
    images, digits = _mnist.mnist(benchmark, root, strict)
    domains: list[Domain] = []
    for i, (hand, (name, flip)) in enumerate(zip(_mnist.deal(len(images), len(FLIPS)), FLIPS.items(), strict=True)):
        grey = images[hand]
        draw = np.random.RandomState(i)
        labels = (digits[hand] < 5) ^ (draw.random_sample(len(grey)) < 0.25)
        colours = labels ^ (draw.random_sample(len(grey)) < flip)
        painted = np.zeros((*grey.shape, 2), np.uint8)
        painted[np.arange(len(grey)), :, :, colours.astype(np.int64)] = grey
        domains.append(ArrayDomain(name, labels.astype(np.int64), painted))
    return Dataset(benchmark.name, tuple(domains), ("5-9", "0-4"), benchmark.pixels, benchmark.defaults)


BENCHMARK = Benchmark(
    name="ColoredMNIST",
    folder="MNIST",
    domains=tuple(FLIPS),
    counts={"+90%": 23334, "+80%": 23333, "-90%": 23333},
    n_classes=2,
    pixels=Pixels(size=28, channels=2, small=True, mean=(0.0, 0.0), std=(1.0, 1.0)),
    defaults=Defaults(batch_size=64, lr=1e-3),
    licence=_mnist.LICENCE,
    citation=f"Arjovsky, Bottou, Gulrajani, Lopez-Paz: Invariant Risk Minimization. 2019. Digits: {_mnist.MNIST}",
    homepage="https://github.com/facebookresearch/DomainBed",
    downloads=_mnist.DOWNLOADS,
    read=read,
    kind="idx",
)
