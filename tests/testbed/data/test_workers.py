"""Worker processes that read images."""

import numpy as np
import pytest

from helpers.batches import train_loader
from swad.testbed.data.domains import Dataset, FileDomain, ImageSpec
from swad.testbed.data.splits import hold_out
from swad.util.images import DataError


def test_workers_name_a_bad_image_in_one_line(tmp_path):
    files = tuple(f"{i}.png" for i in range(12))
    for file in files:
        (tmp_path / file).write_bytes(b"not an image")
    domains = tuple(FileDomain(name, np.zeros(12, np.int64), tmp_path, files) for name in "de")
    sources = hold_out(Dataset("two", domains, ("x",), ImageSpec(8)), "e").sources
    batches = train_loader(sources.train, ImageSpec(8), 4, 0, workers=2)
    with pytest.raises(DataError) as caught:
        for _ in batches.inputs(1, 20):
            pass
    assert len(str(caught.value).splitlines()) == 1
    assert str(caught.value).startswith(f"cannot decode image {tmp_path}")
