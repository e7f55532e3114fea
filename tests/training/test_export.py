"""Saved models and how they are loaded."""

from __future__ import annotations

import pytest
import torch
from PIL import Image

import swad
from helpers.runs import short
from swad.data import benchmarks
from swad.data.splits import hold_out
from swad.data.transforms import to_pil


def test_a_run_from_python_and_its_predictor(tmp_path):
    result = swad.train(short(tmp_path / "run"))
    model, transform, class_names = swad.load_predictor(tmp_path / "run" / result.weights["swad"])
    assert class_names == tuple("0123456789")
    (target,) = hold_out(benchmarks.load("digits"), ["paper"]).target.train
    images = [to_pil(target.domain.image(key)) for key in target.keys]
    labels = torch.tensor(target.labels)
    with torch.inference_mode():
        predicted = model(torch.stack([transform(image) for image in images])).argmax(1)
    assert (predicted == labels).float().mean().item() == pytest.approx(result.target_accuracy("swad"))


def test_the_transform_resizes_photographs(tmp_path):
    own_dataset = tmp_path / "own"
    for folder in ("east/cat", "east/dog", "west/cat", "west/dog"):
        (own_dataset / folder).mkdir(parents=True)
        for number in range(5):
            Image.new("RGB", (40, 30), (number, 0, 0)).save(own_dataset / folder / f"{number}.png")
    options = {
        "network": "test_resnet",
        "weights": "random",
        "hyperparameters": {"batch_size": 2},
        "averages": ("ema",),
    }
    options |= {"dataset": "folder", "data_dir": own_dataset, "target": "east", "steps": 1, "evaluate_every": 1}
    result = swad.train(short(tmp_path / "run", **options, workers=0))
    predictor = swad.load_predictor(tmp_path / "run" / result.weights["ema"])
    image = predictor.transform(Image.new("L", (300, 200)))
    assert image.shape == (3, 224, 224)
    assert predictor.model(image.unsqueeze(0)).shape == (1, len(predictor.class_names))
