from __future__ import annotations

import numpy as np
import pytest

from swad.data.domains import ArrayDomain
from swad.data.splits import DomainSplit
from swad.experiments.saved_run import stratified_subset


@pytest.mark.parametrize(
    ("n", "classes"),
    [
        (5, [3, 2, 0]),  # shares 3, 1.5 and 0.5: the rest goes to the first class that lost most
        (6, [4, 2, 0]),  # shares 3.6, 1.8 and 0.6: the second class lost most, then the first of equals
        (8, [5, 2, 1]),  # shares 4.8, 2.4 and 0.8
        (20, [6, 3, 1]),
    ],
)
def test_what_rounding_leaves_goes_to_the_classes_that_lost_most(n: int, classes: list[int]) -> None:
    labels = np.repeat(np.arange(3), (6, 3, 1))
    domain = ArrayDomain("photo", labels, np.zeros((10, 1, 1, 3), np.uint8))
    chosen = stratified_subset(DomainSplit(domain, "full", np.arange(10)), n)
    assert np.bincount(chosen.labels, minlength=3).tolist() == classes
