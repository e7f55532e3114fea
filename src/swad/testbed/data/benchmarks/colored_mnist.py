"""ColoredMNIST: the color predicts the label well in two domains and the opposite label in the third.

The label is 1 for digits below 5, then flipped with probability 0.25. The color is the label, flipped with
probability 0.1, 0.2 or 0.9 depending on the domain; it decides which of the two channels contains the digit
(Arjovsky et al. 2019). No digit occurs in two domains.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from swad.testbed.data import mnist
from swad.testbed.data.benchmark import Benchmark, Options
from swad.testbed.data.domains import ArrayDomain, Dataset, Defaults, Domain, ImageSpec

FLIPS = {"+90%": 0.1, "+80%": 0.2, "-90%": 0.9}


def read(benchmark: Benchmark, root: Path | None, check_counts: bool, options: Options) -> Dataset:
    """Draw labels and colors, with a random stream per domain."""
    images, digits = mnist.read_mnist(benchmark, root, check_counts)
    domains: list[Domain] = []
    shares = mnist.deal(len(images), len(FLIPS))
    for i, (share, (name, flip)) in enumerate(zip(shares, FLIPS.items(), strict=True)):
        gray = images[share]
        rng = np.random.RandomState(i)
        labels = (digits[share] < 5) ^ (rng.random_sample(len(gray)) < 0.25)
        colors = labels ^ (rng.random_sample(len(gray)) < flip)
        colored = np.zeros((*gray.shape, 2), np.uint8)
        colored[np.arange(len(gray)), :, :, colors.astype(np.int64)] = gray
        domains.append(ArrayDomain(name, labels.astype(np.int64), colored))
    return Dataset(benchmark.name, tuple(domains), ("5-9", "0-4"), benchmark.image_spec, benchmark.defaults)


BENCHMARK = Benchmark(
    name="ColoredMNIST",
    folder="MNIST",
    domains=tuple(FLIPS),
    counts={"+90%": 23334, "+80%": 23333, "-90%": 23333},
    n_classes=2,
    image_spec=ImageSpec(size=28, channels=2, low_res=True, mean=(0.0, 0.0), std=(1.0, 1.0)),
    defaults=Defaults(batch_size=64, lr=1e-3),
    license=mnist.LICENSE,
    citation=f"Arjovsky, Bottou, Gulrajani, Lopez-Paz: Invariant Risk Minimization. 2019. Digits: {mnist.MNIST}",
    homepage="https://github.com/facebookresearch/DomainBed",
    sources=mnist.SOURCES,
    read=read,
    layout="idx",
)
