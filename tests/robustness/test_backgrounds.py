"""The Background Challenge on small trees of its layout, with classifiers whose answers are known."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.imagenet_trees import make_backgrounds, write
from swad.robustness import backgrounds


def test_the_class_map_has_the_published_counts():
    coarse = backgrounds.class_map()
    assert torch.bincount(coarse[coarse >= 0]).tolist() == [116, 52, 42, 36, 35, 27, 26, 20, 16]
    assert int((coarse < 0).sum()) == 630
    assert [int(coarse[k]) for k in (0, 7, 33, 151, 171, 880, 999)] == [8, 1, 3, 0, -1, 2, -1]


def test_outputs_of_1000_and_of_9_classes_become_coarse():
    outputs = torch.zeros(2, 1000)
    outputs[0, 207], outputs[1, 999] = 1, 1  # a retriever; toilet paper
    assert backgrounds.labels().predict(outputs).tolist() == [0, -1]
    assert backgrounds.labels().predict(torch.eye(9)).tolist() == list(range(9))
    with pytest.raises(ValueError, match="got 200 outputs"):
        backgrounds.labels().predict(torch.zeros(1, 200))


def test_variations_are_found_with_spaces_in_their_classes(tmp_path):
    make_backgrounds(tmp_path)
    shutil.rmtree(tmp_path / "bg_challenge/mixed_same")
    shutil.rmtree(tmp_path / "bg_challenge/mixed_rand/val/08_fish")
    found = {part.name: part.images for part in backgrounds.parts(tmp_path)}
    assert {name: (len(images), images.missing) for name, images in found.items()} == {
        "backgrounds/original": (18, ()),
        "backgrounds/mixed_rand": (16, ("08_fish",)),
        "backgrounds/only_bg_t": (18, ()),
    }
    assert found["backgrounds/original"].labels.tolist() == [label for label in range(9) for _ in range(2)]
    with pytest.raises(ValueError, match="no variation such as original/val"):
        backgrounds.parts(tmp_path / "bg_challenge/original")
    assert backgrounds.missing_folders(tmp_path / "bg_challenge") == []
    shutil.rmtree(tmp_path / "bg_challenge/fg_mask")
    with pytest.raises(ValueError, match="needs the folder fg_mask/val"):
        backgrounds.load_challenge(tmp_path, torch.device("cpu"))


def random_challenge(n_objects, n_backgrounds, seed):
    draw = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (n_objects + n_backgrounds, 3, 4, 4), dtype=torch.uint8, generator=draw)
    masks = torch.rand(n_objects, 4, 4, generator=draw) < 0.7
    labels = torch.randint(0, 2, (n_objects,), generator=draw)
    return backgrounds.Challenge(images[:n_objects], masks, labels, images[n_objects:])


def bright(images):
    """A classifier that answers 1 for bright images."""
    return (images.mean((1, 2, 3)) > 0.49).long()


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 40), st.integers(0, 99))
def test_an_object_must_be_recognized_on_every_background(n_objects, n_backgrounds, batch_size, seed):
    challenge = random_challenge(n_objects, n_backgrounds, seed)
    expected = []
    for number in range(n_objects):
        mask, answers = challenge.masks[number].float(), []
        for behind in challenge.backgrounds:
            image = behind / 255 * (1 - mask) + challenge.foregrounds[number] / 255 * mask
            answers.append(int(bright(image[None])))
        if all(answer == challenge.labels[number] for answer in answers):
            expected.append(number)
    states, counts = [], []
    found = backgrounds.recognized_objects(
        bright, challenge, batch_size=batch_size, on_round=states.append, progress=lambda *call: counts.append(call[1])
    )
    assert list(found) == expected
    for state, done in zip(states, counts, strict=True):  # killed after any round: only the rest is computed
        again = [0]
        resumed = backgrounds.recognized_objects(
            bright,
            challenge,
            state=state,
            batch_size=batch_size,
            progress=lambda *call: again.append(call[1]),  # noqa: B023
        )
        assert resumed == found
        assert again[-1] == counts[-1] - done


def test_a_wrong_answer_ends_an_object_and_batches_stay_full():
    seen, reported = [], []
    challenge = random_challenge(8, 20, seed=0)
    wrong = torch.tensor([0, 1, 1, 1, 1, 1, 1, 1])
    challenge = backgrounds.Challenge(challenge.foregrounds, challenge.masks, wrong, challenge.backgrounds)

    def zero(images):
        seen.append(len(images))
        return torch.zeros(len(images))

    progress = lambda *call: reported.append(call)  # noqa: E731
    found = backgrounds.recognized_objects(zero, challenge, batch_size=4, progress=progress)
    assert found == (0,)
    # All eight on the first background; then the only one that is left, on four backgrounds at a time.
    assert seen == [4, 4, 4, 4, 4, 4, 3]
    assert reported[0] == ("challenge", 8, 8 + 19)
    assert reported[-1] == ("challenge", 27, 27)


def test_images_and_masks_must_have_one_size(tmp_path):
    original = make_backgrounds(tmp_path) / "bg_challenge/original/val/02_wheeled vehicle"
    write(original, 407, size=9)
    with pytest.raises(ValueError, match=r"wheeled vehicle/00000000.JPEG has 9 x 9 pixels, masks have 8 x 8"):
        backgrounds.load_challenge(tmp_path, torch.device("cpu"), workers=0)
    np.save(tmp_path / "bg_challenge/fg_mask/val/00_dog/00000001.npy", np.zeros((9, 8)))
    with pytest.raises(ValueError, match=r"masks of the challenge must have one size, got \[\(8, 8\), \(9, 8\)\]"):
        backgrounds.load_challenge(tmp_path, torch.device("cpu"), workers=0)


def test_masks_are_read_without_pickle(tmp_path):
    image = tmp_path / "original/val/02_wheeled vehicle/x.JPEG"
    folder = tmp_path / "fg_mask/val/02_wheeled vehicle"
    folder.mkdir(parents=True)
    np.save(folder / "x.npy", np.eye(3, dtype=bool))
    assert torch.equal(backgrounds.read_mask(tmp_path, image), torch.eye(3).bool())
    np.save(folder / "x.npy", np.full((3, 3), 255))
    with pytest.raises(ValueError, match="0 and 1 only"):
        backgrounds.read_mask(tmp_path, image)
    np.save(folder / "x.npy", np.zeros((3, 3, 1)))
    with pytest.raises(ValueError, match=r"shape \[height, width\]"):
        backgrounds.read_mask(tmp_path, image)
    np.save(folder / "x.npy", np.array([object()]), allow_pickle=True)
    with pytest.raises(ValueError, match="is not a mask"):
        backgrounds.read_mask(tmp_path, image)
    (folder / "x.npy").unlink()
    with pytest.raises(ValueError, match="the challenge needs the mask of every image"):
        backgrounds.read_mask(tmp_path, image)
