"""Predictions of files equal those of the predictor, image by image."""

from __future__ import annotations

import shutil

import pytest
import torch
from PIL import ExifTags, Image

from swad.testbed.deploy.images import ImageFile, find_images
from swad.testbed.deploy.predict import Predictions
from swad.testbed.training.export import load_predictor
from swad.util.images import DataError

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def predictor(timm_run):
    return load_predictor(timm_run / "weights" / "ema.safetensors")


def test_predictions_are_those_of_the_predictor_one_by_one(predictor, photographs):
    images = find_images([photographs], predictor.class_names)
    seen = []
    predictions = Predictions(predictor, images, CPU, batch_size=5, progress=lambda *progress: seen.append(progress))
    rows = list(predictions)
    assert [(row.path, row.domain, row.label) for row in rows] == [(str(i.path), i.domain, i.label) for i in images]
    for row in rows:
        with torch.inference_mode():
            probabilities = predictor.model(predictor.transform(row.path)[None]).softmax(1)[0]
        assert row.predicted == predictor.class_names[probabilities.argmax()]
        assert row.probability == pytest.approx(probabilities.max().item(), abs=1e-5)
    assert seen[-1] == ("predicting", 36, 36)
    assert [done for _, done, _ in seen] == [5, 10, 15, 20, 25, 30, 35, 36]
    for domain, counts in predictions.by_domain.items():
        of_domain = [row for row in rows if row.domain == domain]
        assert (counts.images, counts.labeled) == (12, 12)
        assert counts.correct == sum(row.label == row.predicted for row in of_domain)
        assert counts.probability == pytest.approx(sum(row.probability for row in of_domain))


def test_damaged_images_are_named_and_skipped(predictor, photographs, tmp_path):
    good, bad, missing = tmp_path / "good.png", tmp_path / "bad.png", tmp_path / "missing.png"
    shutil.copy(photographs / "a" / "cat" / "0.png", good)
    bad.write_bytes(good.read_bytes()[:200])
    skipped = []
    images = [ImageFile(path) for path in (bad, good, missing)]
    (row,) = Predictions(predictor, images, CPU, batch_size=2, skip=skipped.append)
    assert row.path == str(good)
    assert [str(path) in reason for path, reason in zip((bad, missing), skipped, strict=True)] == [True, True]
    with pytest.raises(DataError, match="none of 2 images could be predicted: see why each was skipped"):
        list(Predictions(predictor, images[::2], CPU, skip=skipped.append))


def test_an_image_of_another_size_is_named(tiny_run, tmp_path):
    low_res = load_predictor(tiny_run / "weights" / "swad.safetensors")
    Image.new("RGB", (30, 28)).save(tmp_path / "large.png")
    skipped = []
    with pytest.raises(DataError, match="none of 1 image could"):
        list(Predictions(low_res, [ImageFile(tmp_path / "large.png")], CPU, skip=skipped.append))
    assert skipped[0].startswith(f"{tmp_path / 'large.png'}: low-resolution images keep their size")


def test_orientations_are_counted(predictor, photographs, tmp_path):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    with Image.open(photographs / "a" / "cat" / "0.png") as image:
        image.save(tmp_path / "turned.png", exif=exif)
        image.save(tmp_path / "upright.png")
    predictions = Predictions(predictor, find_images([tmp_path], ()), CPU)
    assert len({row.probability for row in predictions}) == 1
    assert predictions.turned == 1


def test_groups_are_of_one_domain_and_mix_its_classes(predictor, photographs):
    images = find_images([photographs], predictor.class_names)
    batches = list(Predictions(predictor, images, CPU, group_size=6)._batches())
    assert [len({image.domain for image in batch}) for batch in batches] == [1] * 6
    assert [len({image.label for image in batch}) for batch in batches] == [2] * 6
    assert sorted(image for batch in batches for image in batch) == sorted(images)
