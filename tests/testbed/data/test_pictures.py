from __future__ import annotations

import numpy as np
import pytest

from swad.testbed.data.benchmarks import load
from swad.testbed.data.pictures import find_picture

image = pytest.importorskip("PIL.Image")


def test_an_image_in_memory_is_found_in_its_dataset():
    board = load("digits").domains[0]
    found = find_picture("digits", None, "board", 7, str(board.labels[7]), "")
    np.testing.assert_array_equal(np.asarray(found), board.image(7))


def test_another_image_is_not_taken_for_it():
    label = str(load("digits").domains[0].labels[7])
    assert find_picture("digits", None, "board", 7, str((int(label) + 1) % 10), "") is None
    assert find_picture("digits", None, "board", 100_000, label, "") is None
    assert find_picture("digits", None, "attic", 7, label, "") is None
    assert find_picture("of a colleague", None, "board", 7, label, "") is None


def test_an_image_file_is_read_if_it_is_still_there(tmp_path):
    image.new("RGB", (4, 3), (1, 2, 3)).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"damaged")
    found = find_picture("folder", str(tmp_path), "images", 0, "x", str(tmp_path / "a.png"))
    assert found.size == (4, 3)
    image.new("RGB", (4000, 3000)).save(tmp_path / "d.jpg")
    assert find_picture("folder", None, "images", 0, "x", str(tmp_path / "d.jpg")).size == (500, 375)
    for name in ("b.png", "c.png"):
        assert find_picture("folder", str(tmp_path), "images", 0, "x", str(tmp_path / name)) is None


@pytest.mark.parametrize(("channels", "color"), [(1, [9, 9, 9]), (2, [9, 9, 0]), (3, [9, 9, 9])])
def test_images_of_few_channels_are_shown_in_color(channels, color, monkeypatch):
    from swad.testbed.data import pictures
    from swad.testbed.data.domains import ArrayDomain, Dataset, ImageSpec

    domain = ArrayDomain("a", np.zeros(1, np.int64), np.full((1, 2, 2, channels), 9, np.uint8))
    dataset = Dataset("own", (domain,), ("x",), ImageSpec(channels=channels))
    monkeypatch.setattr(pictures, "_load", lambda *_: dataset)
    assert np.asarray(find_picture("own", None, "a", 0, "x", "").convert("RGB"))[0, 0].tolist() == color
