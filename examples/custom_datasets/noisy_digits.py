"""The embedded digits with 30 % of all labels drawn at random: a network that learns them by heart gets worse.

SWAD_DATASETS=examples/custom_datasets swad train noisy_digits
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from swad.testbed.data.benchmark import Benchmark
from swad.testbed.data.benchmarks import digits
from swad.testbed.data.domains import Dataset

NOISE = 0.3


def read(benchmark: Benchmark, root: Path | None, check_counts: bool, options: Mapping[str, Any]) -> Dataset:
    """Return the dataset."""
    rng, domains = np.random.RandomState(0), []
    dataset = digits.read(digits.BENCHMARK, root, check_counts, options)
    for domain in dataset.domains:
        replaced = rng.rand(len(domain)) < NOISE
        labels = np.where(replaced, rng.randint(0, 10, len(domain)), domain.labels)
        domains.append(replace(domain, labels=labels))
    return replace(dataset, name=benchmark.name, domains=tuple(domains))


BENCHMARK = replace(digits.BENCHMARK, name="noisy_digits", read=read)
