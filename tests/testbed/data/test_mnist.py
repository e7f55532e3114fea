"""RotatedMNIST and ColoredMNIST from idx files."""

import numpy as np
import pytest
from PIL import Image

from helpers.small_trees import make_idx
from swad.testbed.data import benchmarks, mnist
from swad.testbed.data.verify import check
from swad.util.images import DataError


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["", "MNIST", "MNIST/raw", "raw"])
@pytest.mark.parametrize("zipped", [True, False])
def test_idx_files_are_found(tmp_path, folder, zipped):
    make_idx(tmp_path / folder, zipped=zipped)
    dataset = benchmarks.load("RotatedMNIST", tmp_path, check_counts=False)
    assert [len(d) for d in dataset.domains] == [10] * 6


def test_rotation_and_dealing(tmp_path):
    make_idx(tmp_path)
    rotated = benchmarks.load("rotated_mnist", tmp_path, check_counts=False)
    images, labels = mnist.read_mnist(benchmarks.get("rotated_mnist"), tmp_path, check_counts=False)
    assert (rotated.domains[0].image(1)[..., 0] == images[6]).all()
    expected = Image.fromarray(images[2]).rotate(30, Image.Resampling.BICUBIC)
    assert (rotated.domains[2].image(0)[..., 0] == np.asarray(expected)).all()
    assert rotated.domains[2].labels.tolist() == labels[2::6].tolist()


def test_colors(tmp_path):
    make_idx(tmp_path, 6000, 3000)
    colored = benchmarks.load("colored_mnist", tmp_path, check_counts=False)
    _, digits = mnist.read_mnist(benchmarks.get("colored_mnist"), tmp_path, check_counts=False)
    assert colored.classes == ("5-9", "0-4")
    for i, (domain, flip) in enumerate(zip(colored.domains, (0.1, 0.2, 0.9), strict=True)):
        red = domain.images[..., 1].any(axis=(1, 2))
        assert (red ^ domain.images[..., 0].any(axis=(1, 2))).all()  # one channel each
        assert np.mean(red != domain.labels) == pytest.approx(flip, abs=0.03)
        assert np.mean((digits[i::3] < 5) != domain.labels) == pytest.approx(0.25, abs=0.03)


def test_wrong_counts_and_broken_files(tmp_path):
    make_idx(tmp_path)
    with pytest.raises(DataError, match="60 digits, expected 70000"):
        benchmarks.load("RotatedMNIST", tmp_path)
    result = check(tmp_path)
    assert (result.name, result.images, result.decoded) == ("ColoredMNIST", 60, 60)
    assert result.problems[0] == "domain +90% has 20 images, expected 23334"
    file = tmp_path / "t10k-labels-idx1-ubyte.gz"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"cannot read .*t10k-labels"):
        check(tmp_path)
