"""Class folders, predictions on them, and ImageNet-R's mask."""

from __future__ import annotations

import pytest
import torch
from PIL import Image
from torch import nn
from torchvision.transforms import functional

from swad.robustness import imagenet_r
from swad.robustness.folders import imagenet_classes, logits, read_class_folders, top1_error


def save(path, color=(0, 0, 0)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), color).save(path)


class Channels(nn.Module):
    """A classifier whose outputs are the mean red, green and blue."""

    def forward(self, images):
        return images.mean((2, 3))


def test_labels_follow_the_benchmark_not_the_folders_that_exist(tmp_path):
    save(tmp_path / "a b/2.png")
    save(tmp_path / "a b/1.PNG")
    save(tmp_path / "c/1.jpeg")
    (tmp_path / "c/notes.txt").write_text("no image")
    (tmp_path / "b").mkdir()
    folders = read_class_folders(tmp_path, {"a b": 5, "b": 6, "c": 7})
    assert [path.name for path in folders.paths] == ["1.PNG", "2.png", "1.jpeg"]
    assert folders.labels == (5, 5, 7)
    assert folders.missing == ("b",)
    save(tmp_path / "d/1.png")
    with pytest.raises(ValueError, match="no class of this benchmark: d;"):
        read_class_folders(tmp_path, {"a b": 5, "b": 6, "c": 7})
    with pytest.raises(ValueError, match="holds no image"):
        read_class_folders(tmp_path / "b", {"n01440764": 0})
    with pytest.raises(ValueError, match="is not a folder"):
        read_class_folders(tmp_path / "missing", {"a": 0})


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_of_a_known_classifier(tmp_path, workers):
    for label, name in enumerate(("red", "green", "blue")):
        color = tuple(255 * (channel == label) for channel in range(3))
        for number in range(3):
            save(tmp_path / name / f"{number}.png", color)
    save(tmp_path / "green/wrong.png", (255, 0, 0))
    folders = read_class_folders(tmp_path, {"red": 0, "green": 1, "blue": 2})
    calls = []
    outputs = logits(
        Channels(),
        folders.paths,
        functional.to_tensor,
        batch_size=4,
        workers=workers,
        progress=lambda *arguments: calls.append(arguments),
    )
    assert top1_error(outputs, folders.labels) == pytest.approx(0.1)
    assert calls[-1] == ("images", 10, 10)


def test_a_damaged_image_is_named(tmp_path):
    (tmp_path / "broken.png").write_bytes(b"not an image")
    with pytest.raises(ValueError, match=r"cannot read .*broken\.png"):
        list(logits(Channels(), [tmp_path / "broken.png"], functional.to_tensor, workers=0))


def test_imagenet_r_judges_among_its_200_classes():
    assert len(imagenet_classes()) == 1000
    assert len(imagenet_r.indices()) == 200
    assert imagenet_r.indices()[:3] == (1, 2, 4)  # goldfish, great white shark, hammerhead
    outputs = torch.zeros(1, 1000)
    outputs[0, 0], outputs[0, 4] = 2, 1  # tench is not among the 200
    (kept,) = imagenet_r.masked(iter([outputs]))
    assert kept.shape == (1, 200)
    assert kept.argmax().item() == imagenet_r.classes()["n01494475"] == 2
    with pytest.raises(ValueError, match="got 10 outputs"):
        next(imagenet_r.masked(iter([torch.zeros(1, 10)])))
    assert imagenet_r.Result(36.157, 92.150).gap == pytest.approx(55.993)
    assert imagenet_r.Result(36.157).gap is None
