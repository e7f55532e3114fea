"""The embedded digits with 120 training images of each domain; all others are for validation.

SWAD_DATASETS=examples/custom_datasets swad train few_digits
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from swad.testbed.data.benchmark import Benchmark
from swad.testbed.data.benchmarks import digits
from swad.testbed.data.domains import ArrayDomain, Dataset

N_TRAIN = 120


class FewDomain(ArrayDomain):
    """A domain whose first images are for training."""

    @property
    def split_sizes(self) -> tuple[int, int, int]:
        """Number of training, validation and test images."""
        return N_TRAIN, len(self) - N_TRAIN, 0


def read(benchmark: Benchmark, root: Path | None, check_counts: bool, options: Mapping[str, Any]) -> Dataset:
    """Return the dataset."""
    digits_dataset = digits.read(digits.BENCHMARK, root, check_counts, options)
    domains = (FewDomain(domain.name, domain.labels, domain.images) for domain in digits_dataset.domains)
    return replace(digits_dataset, name=benchmark.name, domains=tuple(domains))


BENCHMARK = replace(digits.BENCHMARK, name="few_digits", read=read)
