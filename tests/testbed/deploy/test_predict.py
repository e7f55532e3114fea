"""Predictions of files equal those of the predictor, image by image."""

from __future__ import annotations

import shutil

import pytest
import torch
from PIL import ExifTags, Image

from swad.testbed.deploy import predict as module
from swad.testbed.deploy.images import ImageFile, find_images
from swad.testbed.deploy.predict import predict
from swad.testbed.training.export import load_predictor
from swad.util.images import DataError

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def predictor(timm_run):
    return load_predictor(timm_run / "weights" / "ema.safetensors")


def test_predictions_are_those_of_the_predictor_one_by_one(predictor, photographs, monkeypatch):
    monkeypatch.setattr(module, "BATCH_SIZE", 5)
    images = find_images([photographs], predictor.class_names)
    seen, warned = [], []
    rows = list(predict(predictor, images, CPU, warned.append, progress=lambda *progress: seen.append(progress)))
    assert not warned
    assert [(row.path, row.domain, row.label) for row in rows] == [(str(i.path), i.domain, i.label) for i in images]
    for row in rows:
        with torch.inference_mode():
            probabilities = predictor.model(predictor.transform(row.path)[None]).softmax(1)[0]
        assert row.predicted == predictor.class_names[probabilities.argmax()]
        assert row.probability == pytest.approx(probabilities.max().item(), abs=1e-5)
    assert seen[-1] == ("predicting", 36, 36)
    assert [done for _, done, _ in seen] == [5, 10, 15, 20, 25, 30, 35, 36]


def test_damaged_images_are_named_and_skipped(predictor, photographs, tmp_path):
    good, bad, missing = tmp_path / "good.png", tmp_path / "bad.png", tmp_path / "missing.png"
    shutil.copy(photographs / "a" / "cat" / "0.png", good)
    bad.write_bytes(good.read_bytes()[:200])
    skipped = []
    images = [ImageFile(path) for path in (bad, good, missing)]
    (row,) = predict(predictor, images, CPU, skipped.append)
    assert row.path == str(good)
    assert [str(path) in reason for path, reason in zip((bad, missing), skipped, strict=True)] == [True, True]
    assert all(reason.startswith("skipped an image: ") for reason in skipped)
    with pytest.raises(DataError, match="none of 2 images could be predicted: see why each was skipped"):
        list(predict(predictor, images[::2], CPU, skipped.append))


def test_an_image_of_another_size_is_named(tiny_run, tmp_path):
    low_res = load_predictor(tiny_run / "weights" / "swad.safetensors")
    Image.new("RGB", (30, 28)).save(tmp_path / "large.png")
    skipped = []
    with pytest.raises(DataError, match="none of 1 image could"):
        list(predict(low_res, [ImageFile(tmp_path / "large.png")], CPU, skipped.append))
    assert skipped[0].startswith(f"skipped an image: {tmp_path / 'large.png'}: low-resolution images keep their size")


def test_orientations_are_counted(predictor, photographs, tmp_path):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    with Image.open(photographs / "a" / "cat" / "0.png") as image:
        image.save(tmp_path / "turned.png", exif=exif)
        image.save(tmp_path / "upright.png")
    warned = []
    rows = predict(predictor, find_images([tmp_path], ()), CPU, warned.append)
    assert len({row.probability for row in rows}) == 1
    assert warned == ["1 image with an EXIF orientation, which is ignored as in training"]


def test_groups_are_of_one_domain_and_mix_its_classes(predictor, photographs, monkeypatch):
    images = find_images([photographs], predictor.class_names)
    groups = []
    monkeypatch.setattr(
        predictor.model, "forward", lambda batch: groups.append(len(batch)) or torch.zeros(len(batch), 2)
    )
    rows = list(predict(predictor, images, CPU, print, group_size=8))
    assert groups == [8, 4] * 3
    assert sorted((row.path, row.label) for row in rows) == sorted((str(image.path), image.label) for image in images)
    starts = [sum(groups[:k]) for k in range(len(groups))]
    for start, size in zip(starts, groups, strict=True):
        assert len({row.domain for row in rows[start : start + size]}) == 1
        assert len({row.label for row in rows[start : start + size]}) == 2
