"""Domains and datasets check their arrays and names."""

import subprocess
import sys

import numpy as np
import pytest

from swad.testbed.data.domains import ArrayDomain, Dataset, FileDomain
from swad.util.images import DataError


def domain(name: str, n: int, value: int = 0, classes: int = 3) -> ArrayDomain:
    images = np.full((n, 4, 4, 3), value, np.uint8)
    return ArrayDomain(name, np.arange(n, dtype=np.int64) % classes, images)


def test_invalid_domains_and_datasets_are_refused(tmp_path):
    with pytest.raises(DataError, match="uint8 of shape"):
        ArrayDomain("a", np.zeros(2, np.int64), np.zeros((2, 4, 4), np.uint8))
    with pytest.raises(DataError, match="labels must be int64"):
        ArrayDomain("a", np.zeros(3, np.int64), np.zeros((2, 4, 4, 3), np.uint8))
    with pytest.raises(DataError, match="labels must be at least 0"):
        FileDomain("a", np.array([-1]), tmp_path, ("x.png",))
    with pytest.raises(DataError, match="label 2, but there are 2 classes"):
        Dataset("toy", (domain("a", 5),), ("x", "y"))
    with pytest.raises(DataError, match="names must differ"):
        Dataset("toy", (domain("a", 5), domain("a", 5)), ("x", "y", "z"))


@pytest.mark.slow
def test_domains_and_datasets_do_not_import_torch():
    code = (
        "import sys, swad.testbed.data.domains, swad.testbed.data.benchmarks as d; d.load('digits');"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_misspelled_domain_gets_a_suggestion():
    dataset = Dataset("two", (domain("photo", 3), domain("sketch", 3)), ("x", "y", "z"))
    with pytest.raises(DataError, match=r"no domain 'Photos'; its domains: photo, sketch; did you mean 'photo'\?$"):
        dataset.index("Photos")
