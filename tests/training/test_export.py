"""Saved models and how they are loaded."""

from __future__ import annotations

import json

import pytest
import torch
from PIL import Image
from safetensors import safe_open

import swad
from helpers.runs import short
from swad.data import benchmarks
from swad.data.splits import hold_out
from swad.data.transforms import to_pil
from swad.training.export import load_predictor, read_card


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


def test_saved_weights_load_and_have_a_card(finished_run):
    path = finished_run / "weights" / "swad.safetensors"
    assert not load_predictor(path).model.training
    card = read_card(path)
    done = json.loads((finished_run / "done.json").read_text())
    assert card["scores"] == done["scores"]["swad"]
    assert card["range"] == done["ranges"]["swad"]
    with safe_open(path, framework="pt") as file:
        assert file.metadata()["format"] == "pt"
    text = path.with_suffix(".md").read_text()
    assert "load_predictor" in text
    assert f"Averaged steps: {card['range']['spans']}" in text
