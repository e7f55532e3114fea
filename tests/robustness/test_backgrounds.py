"""The Background Challenge on small trees of its layout, with classifiers whose answers are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from swad.robustness import backgrounds


def test_the_class_map_has_the_published_counts():
    coarse = backgrounds.class_map()
    assert torch.bincount(coarse[coarse >= 0]).tolist() == [116, 52, 42, 36, 35, 27, 26, 20, 16]
    assert int((coarse < 0).sum()) == 630
    assert [int(coarse[k]) for k in (0, 7, 33, 151, 171, 880, 999)] == [8, 1, 3, 0, -1, 2, -1]


def test_outputs_of_1000_and_of_9_classes_become_coarse():
    outputs = torch.zeros(2, 1000)
    outputs[0, 207], outputs[1, 999] = 1, 1  # a retriever; toilet paper
    assert backgrounds.coarse_predictions(outputs).tolist() == [0, -1]
    assert backgrounds.coarse_predictions(torch.eye(9)).tolist() == list(range(9))
    with pytest.raises(ValueError, match="got 200 outputs"):
        backgrounds.coarse_predictions(torch.zeros(1, 200))


def test_variations_are_found_with_spaces_in_their_classes(tmp_path):
    for variation in ("original", "mixed_rand"):
        for name in backgrounds.FOLDERS[:8]:
            folder = tmp_path / "bg_challenge" / variation / "val" / name
            folder.mkdir(parents=True)
            Image.new("RGB", (4, 4)).save(folder / "a.JPEG")
    found = backgrounds.find_variations(tmp_path)
    assert {name: (len(images), images.missing) for name, images in found.items()} == {
        "original": (8, ("08_fish",)),
        "mixed_rand": (8, ("08_fish",)),
    }
    assert found["original"].labels == tuple(range(8))
    with pytest.raises(ValueError, match="no variation such as original/val"):
        backgrounds.find_variations(tmp_path / "bg_challenge" / "original")


def test_an_object_must_be_recognized_on_every_background():
    """The classifier answers 1 on bright images and 0 on dark ones; the object covers half of the image."""
    foregrounds = [torch.full((3, 2, 2), value) for value in (1.0, 0.0, 1.0, 0.2)]
    masks = [torch.tensor([[1, 1], [0, 0]])] * 4
    behind = torch.tensor([0.0, 0.1, 0.9]).view(3, 1, 1, 1).expand(3, 3, 2, 2)
    seen = []

    def predict(images):
        seen.append(len(images))
        return (images.mean((1, 2, 3)) > 0.48).long()

    # Means of the four objects on the three backgrounds: .5 .55 .95; 0 .05 .45; as the first; .1 .15 .55.
    accuracy = backgrounds.challenge_accuracy(predict, foregrounds, masks, [1, 0, 0, 0], behind, batch_size=1)
    assert accuracy == 50  # the first two; the third is wrong at once, the fourth on the last background
    assert seen == [1] * (3 + 3 + 1 + 3)
    as_bytes = (behind * 255).round().byte()
    assert backgrounds.challenge_accuracy(predict, foregrounds, masks, [1, 0, 0, 0], as_bytes) == 50
    always_dog = backgrounds.challenge_accuracy(lambda x: torch.zeros(len(x)), foregrounds, masks, [0, 0, 1, 1], behind)
    assert always_dog == 50


def test_the_gap_needs_both_variations():
    assert backgrounds.Result({"mixed_same": 86.2, "mixed_rand": 78.9}).gap == pytest.approx(7.3)
    assert backgrounds.Result({"mixed_same": 86.2}).gap is None


def test_masks_are_read_without_pickle(tmp_path):
    image = tmp_path / "original/val/02_wheeled vehicle/x.JPEG"
    folder = tmp_path / "fg_mask/val/02_wheeled vehicle"
    folder.mkdir(parents=True)
    np.save(folder / "x.npy", np.eye(3, dtype=bool))
    assert torch.equal(backgrounds.read_mask(tmp_path, image), torch.eye(3))
    np.save(folder / "x.npy", np.zeros((3, 3, 1)))
    with pytest.raises(ValueError, match=r"shape \[height, width\]"):
        backgrounds.read_mask(tmp_path, image)
    np.save(folder / "x.npy", np.array([object()]), allow_pickle=True)
    with pytest.raises(ValueError, match="is no mask"):
        backgrounds.read_mask(tmp_path, image)
    (folder / "x.npy").unlink()
    with pytest.raises(ValueError, match="the challenge needs the mask of every image"):
        backgrounds.read_mask(tmp_path, image)
