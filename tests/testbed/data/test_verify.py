"""A check names everything that is wrong with a dataset."""

import dataclasses
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from helpers.small_trees import class_names, make, make_tree, save_image
from swad.testbed.data import benchmarks
from swad.testbed.data.verify import check, recognize
from swad.util.images import DataError


def small(name: str, per_class: int = 3):
    """A benchmark that expects the counts of the small tree."""
    benchmark = benchmarks.get(name)
    n = per_class * (benchmark.n_classes or 0)
    return dataclasses.replace(benchmark, counts=dict.fromkeys(benchmark.domains, n))


def test_a_correct_dataset_has_no_problems(tmp_path):
    make(benchmarks.get("PACS"), tmp_path)
    seen = []
    result = check(tmp_path, small("PACS"), progress=lambda *call: seen.append(call))
    assert result.ok
    assert (result.images, result.decoded, result.classes) == (84, 84, 7)
    assert seen[-1] == ("decoding images", 84, 84)
    assert not result.problems
    assert not result.notes


def test_bad_images_and_wrong_counts_are_named(tmp_path):
    root = make(benchmarks.get("PACS"), tmp_path) / "PACS"
    (root / "photo" / "dog" / "001.png").write_bytes(b"nothing")
    whole = (root / "sketch" / "house" / "002.png").read_bytes()
    (root / "sketch" / "house" / "002.png").write_bytes(whole[: len(whole) // 2])
    (root / "cartoon" / "dog" / "000.png").unlink()
    (root / "cartoon" / "dog" / "readme.txt").write_text("x")
    result = check(root, small("PACS"))
    assert not result.ok
    assert [str(bad.path.relative_to(root)) for bad in result.bad] == ["photo/dog/001.png", "sketch/house/002.png"]
    for bad in result.bad:
        assert bad.reason == f"cannot decode image {bad.path}: it is in no known image format; replace or remove it"
    assert result.problems == ("domain cartoon has 20 images, expected 21",)
    assert "cartoon/dog/readme.txt" in result.notes[0]
    assert (result.images, result.decoded) == (83, 81)


def test_an_image_that_lacks_rows_or_is_too_large_is_named(tmp_path):
    root = make_tree(tmp_path, ["a", "b"], ["cat"])
    whole = (root / "a" / "cat" / "000.png").read_bytes()
    (root / "a" / "cat" / "000.png").write_bytes(with_size(whole, 32, 3000))
    (root / "b" / "cat" / "000.png").write_bytes(with_size(whole, 13_000, 13_000))
    lacks_rows, too_large = check(root).bad
    assert "a/cat/000.png: image file is truncated" in lacks_rows.reason
    assert too_large.reason.startswith("an image must have at most 120 megapixels, but ")
    assert too_large.path.name in too_large.reason


def with_size(png: bytes, width: int, height: int) -> bytes:
    """Return a PNG file that declares another size than it has."""
    header = b"IHDR" + struct.pack(">II", width, height) + png[24:29]
    return png[:12] + header + struct.pack(">I", zlib.crc32(header)) + png[33:]


def test_images_that_training_would_refuse_are_named(tmp_path):
    root = make_tree(tmp_path, ["a", "b"], ["cat"])
    Image.fromarray(np.ones((4, 4), np.float32)).save(root / "a" / "cat" / "x.tif")
    (bad,) = check(root).bad
    assert bad.path.name == "x.tif"
    assert "pixels of mode F have no defined range; save it with 8 or 16 bits" in bad.reason


def test_an_image_that_is_gone_and_an_empty_domain_are_said_once(tmp_path):
    root = make_tree(tmp_path, ["a", "b"], ["cat", "dog"])
    (root / "a" / "cat" / "x.jpg").symlink_to(tmp_path / "nowhere.jpg")
    (root / "c" / "fox").mkdir(parents=True)
    result = check(root)
    assert [bad.reason for bad in result.bad] == [
        f"cannot decode image {root}/a/cat/x.jpg: No such file or directory; replace or remove it"
    ]
    assert result.problems == (
        "folder c contains no <class>/<image>; remove it or add images",
        "class fox has no images in any domain; remove its folders or add images",
    )
    assert not result.notes


def test_unknown_folders_and_missing_classes_are_noted(tmp_path):
    root = make(benchmarks.get("VLCS"), tmp_path) / "VLCS"
    make_tree(root, ["extra"], ["bird"])
    for image in (root / "SUN09" / "dog").iterdir():
        image.unlink()
    result = check(root)
    assert result.name == "VLCS"
    assert "ignored folder extra, which is not one of the domains" in result.notes
    assert benchmarks.load("VLCS", root, check_counts=False).notes == result.notes
    assert "class dog has no images in SUN09; the labels of other classes do not change" in result.notes


def test_terra_incognita_has_two_correct_totals(tmp_path):
    make(benchmarks.get("TerraIncognita"), tmp_path)
    assert check(tmp_path, small("TerraIncognita")).ok
    later = dataclasses.replace(benchmarks.get("TerraIncognita"), other_totals=(120,))
    result = check(tmp_path, later)
    assert result.ok
    assert "a later version" in result.notes[0]
    assert len(check(tmp_path).problems) == 4


@pytest.mark.slow
def test_domain_net_with_its_duplicates_is_noted(tmp_path):
    root = make(benchmarks.get("DomainNet"), tmp_path)
    save_image(root / "domain_net" / "clipart" / "class_000" / "twice.png", 1)
    expected = small("DomainNet", per_class=1)
    result = check(root, expected, decode=False)
    assert result.problems == ("domain clipart has 346 images, expected 345",)
    assert "list of duplicates" in result.notes[0]
    (root / "domain_net_duplicates.txt").write_text("clipart/class_000/twice.png\n")
    assert check(root, expected, decode=False).ok


def test_datasets_are_recognized(tmp_path):
    for name in ("PACS", "VLCS", "OfficeHome", "TerraIncognita", "DomainNet"):
        benchmark = benchmarks.get(name)
        tree = tmp_path / name / "renamed"
        for domain in benchmark.domains:
            (tree / domain).mkdir(parents=True)
        assert recognize(tree) is benchmark
        assert recognize(tree.rename(tmp_path / name / benchmark.folder)) is benchmark
        assert recognize(tmp_path / name) is benchmark
    own = make_tree(tmp_path / "own", ["a", "b"], ["x", "y"])
    assert recognize(own).name == "folder"
    assert check(own).ok
    for benchmark in (benchmarks.get("PACS"), benchmarks.get("VLCS")):
        (tmp_path / "both" / benchmark.folder).mkdir(parents=True)
    with pytest.raises(DataError, match="contains PACS, VLCS; check one"):
        check(tmp_path / "both")


def test_folders_that_cannot_be_checked(tmp_path):
    with pytest.raises(DataError, match="not a folder"):
        check(tmp_path / "none")
    with pytest.raises(DataError, match="is made by code or part of an installed package"):
        check(tmp_path, "digits")
    empty = check(tmp_path)
    assert not empty.ok
    assert "contains no domains" in empty.problems[0]
    with pytest.raises(DataError, match="contains no domains"):
        benchmarks.load("folder", tmp_path)
    assert class_names(benchmarks.get("folder"))
