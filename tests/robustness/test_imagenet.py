"""Class folders and the classes of ImageNet and ImageNet-R."""

from __future__ import annotations

import pytest
from PIL import Image

from swad.robustness import imagenet_r
from swad.robustness.imagenet import imagenet_classes, read_class_folders


def save(path, color=(0, 0, 0)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), color).save(path)


def test_labels_follow_the_benchmark_not_the_folders_that_exist(tmp_path):
    save(tmp_path / "a b/2.png")
    save(tmp_path / "a b/1.PNG")
    save(tmp_path / "c/1.jpeg")
    (tmp_path / "c/notes.txt").write_text("no image")
    (tmp_path / "b").mkdir()
    (tmp_path / ".ipynb_checkpoints").mkdir()
    folders = read_class_folders(tmp_path, {"a b": 5, "b": 6, "c": 7})
    assert [path.name for path in folders.paths] == ["1.PNG", "2.png", "1.jpeg"]
    assert folders.labels.tolist() == [5, 5, 7]
    assert folders.missing == ("b",)
    save(tmp_path / "d/1.png")
    with pytest.raises(ValueError, match="not classes of this benchmark: d;"):
        read_class_folders(tmp_path, {"a b": 5, "b": 6, "c": 7})
    with pytest.raises(ValueError, match="holds no image"):
        read_class_folders(tmp_path / "b", {"n01440764": 0})
    with pytest.raises(ValueError, match="images without class folders: sort them into folders such as n01440764"):
        read_class_folders(tmp_path / "c", {"n01440764": 0})
    with pytest.raises(ValueError, match="is not a folder"):
        read_class_folders(tmp_path / "missing", {"a": 0})


def test_images_have_a_digest_and_can_be_restricted(tmp_path):
    for root in ("here", "there"):
        save(tmp_path / root / "a b/1.png")
        save(tmp_path / root / "c/1.png")
    here, there = (read_class_folders(tmp_path / root, {"a b": 0, "c": 1}) for root in ("here", "there"))
    assert here.digest == there.digest
    chosen = here.only({"c": 7, "d": 8})
    assert ([path.parent.name for path in chosen.paths], chosen.labels.tolist(), chosen.missing) == (["c"], [7], ("d",))
    assert chosen.digest != here.digest


def test_imagenet_has_1000_classes_and_imagenet_r_200():
    assert len(imagenet_classes()) == 1000
    assert len(imagenet_r.indices()) == 200
    assert imagenet_r.indices()[:3] == (1, 2, 4)  # goldfish, great white shark, hammerhead
    assert imagenet_r.classes()["n01494475"] == 2
