"""Saved models and how they are loaded."""

from __future__ import annotations

import json
import os
from random import Random

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import swad
from helpers.runs import interrupt_at, require_same, short
from swad.testbed.data import benchmarks
from swad.testbed.data.cache import open_cache
from swad.testbed.data.loaders import EvalLoader
from swad.testbed.data.splits import hold_out
from swad.testbed.data.transforms import to_pil
from swad.testbed.models import catalog
from swad.testbed.models.networks import NetworkError
from swad.testbed.results.records import read_records
from swad.testbed.training.dataset import load_dataset
from swad.testbed.training.export import load_predictor, markdown, read_card, save_weights
from swad.testbed.training.loop import RunInterrupted, train
from swad.testbed.training.resolve import resolve


def test_a_run_from_python_and_its_predictor(tmp_path):
    result = swad.train(short(tmp_path / "run"))
    model, transform, class_names = swad.testbed.load_predictor(tmp_path / "run" / result.weights["swad"])
    assert class_names == tuple("0123456789")
    (target,) = hold_out(benchmarks.load("digits"), ["paper"]).target.train
    images = [to_pil(target.domain.image(key)) for key in target.keys]
    labels = torch.tensor(target.labels)
    with torch.inference_mode():
        predicted = model(torch.stack([transform(image) for image in images])).argmax(1)
    assert (predicted == labels).float().mean().item() == pytest.approx(result.target_accuracy("swad"))
    with pytest.raises(ValueError, match="must be 28 × 28, got 30 × 28: resize the image"):
        transform(Image.new("RGB", (28, 30)))


def test_a_model_to_ship_is_trained_on_all_domains(tmp_path, capsys):
    config = short(tmp_path / "none-0", target="none", split="60/20/20")
    assert (config.name, config.target, config.targets) == ("none-0", None, ())
    with pytest.raises(RunInterrupted):
        train(config, callback=interrupt_at(10))
    result = train(config, progress=True)
    printed = capsys.readouterr().out
    shown = "  ".join(f"{name} {100 * result.source_accuracy(name):.1f}" for name in result.scores)
    assert f"none-0: finished (1 of 1), validation accuracy: {shown}" in printed
    train(short(tmp_path / "whole", target=None, split="60/20/20"))
    require_same(tmp_path / "none-0", tmp_path / "whole")
    with pytest.raises(ValueError, match="has no target: use source_accuracy"):
        result.target_accuracy("swad")
    domains = benchmarks.load("digits").domain_names
    records = read_records(tmp_path / "none-0")
    assert {(r.domain, r.split) for r in records if r.domain} == {(d, s) for d in domains for s in ("out", "test")}
    path = tmp_path / "none-0" / result.weights["swad"]
    assert read_card(path)["targets"] == []
    assert "(board, clutter, outline, paper; no target)" in path.with_suffix(".md").read_text()
    model, transform, _ = load_predictor(path)
    part = hold_out(benchmarks.load("digits"), None, three_way=True).sources.test[3]
    with torch.inference_mode():
        predicted = model(torch.stack([transform(to_pil(part.domain.image(key))) for key in part.keys])).argmax(1)
    accuracy = (predicted == torch.tensor(part.labels)).float().mean().item()
    assert accuracy == pytest.approx(result.scores["swad"]["paper"]["test"]["accuracy"])


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
    predictor = swad.testbed.load_predictor(tmp_path / "run" / result.weights["ema"])
    image = predictor.transform(Image.new("L", (300, 200)))
    assert image.shape == (3, 160, 160)  # the size that timm states for this network
    assert predictor.model(image.unsqueeze(0)).shape == (1, len(predictor.class_names))
    deep = Image.fromarray(np.full((30, 40), 0x8080, np.uint16))  # 16 bits are scaled, as in training
    assert predictor.transform(deep).equal(predictor.transform(Image.new("L", (40, 30), 0x80)))


def test_the_transform_repeats_the_resizing_of_cached_images(tmp_path, noise_folder):
    options = {"dataset": "folder", "data_dir": noise_folder, "target": "a", "network": "small", "image_size": 28}
    options |= {"input_pipeline": "gpu", "cache_size": 64, "cache": tmp_path / "cache", "steps": 1}
    config = resolve(short(tmp_path / "run", **options, evaluate_every=1, hyperparameters={"batch_size": 8}))
    path = tmp_path / "run" / train(config).weights["last"]
    transform = load_predictor(path).transform
    dataset = load_dataset(config)
    (target,) = hold_out(dataset, "a").target.full
    cache = open_cache(dataset, config.cache, config.cache_size)
    ((evaluated, _),) = EvalLoader(target, dataset.image_spec, cache=cache)
    images = torch.stack([transform(Image.open(target.domain.path(key))) for key in target.keys])
    one_level = 1 / 255 / min(dataset.image_spec.std)
    torch.testing.assert_close(images, evaluated, rtol=0, atol=1.01 * one_level)
    assert "Images are resized to 64 × 64 first" in path.with_suffix(".md").read_text()


def test_saved_weights_load_and_have_a_card(finished_run, monkeypatch):
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
    assert f"Averaged steps: {card['range']['spans']} ({card['range']['n_averaged']} updates; " in text
    assert "SWAD_NETWORKS" not in text
    monkeypatch.setattr(catalog, "is_own", lambda name: True)
    assert "# SWAD_NETWORKS must name the folder of small.py\nmodel, " in markdown("swad.safetensors", card)


def test_a_flipped_bit_in_weights_is_noticed(tmp_path, finished_run):
    path = tmp_path / "swad.safetensors"
    content = bytearray((finished_run / "weights" / "swad.safetensors").read_bytes())
    content[-1000] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(NetworkError, match="does not match its checksum, so it is damaged; use a complete"):
        load_predictor(path)


def test_a_directory_instead_of_a_weights_file(finished_run):
    for path in (finished_run, finished_run / "weights"):
        with pytest.raises(
            NetworkError, match=rf"{path} is a directory: name a file, .*{finished_run}/weights/swad\.s"
        ):
            load_predictor(path)
    with pytest.raises(NetworkError, match="is a directory: name a file in the weights directory of a run"):
        load_predictor(finished_run.parent)


def test_the_same_weights_give_the_same_file_of_the_usual_mode(tmp_path, finished_run):
    original = finished_run / "weights" / "swad.safetensors"
    tensors, card = load_file(original), read_card(original)
    before = os.umask(0o022)
    try:
        for i in range(4):
            save_weights(tmp_path / f"{i}" / "swad.safetensors", tensors, card)
    finally:
        os.umask(before)
    files = [tmp_path / f"{i}" / "swad.safetensors" for i in range(4)]
    assert {path.read_bytes() for path in files} == {original.read_bytes()}
    assert {path.stat().st_mode & 0o777 for path in files} == {0o644}


def test_a_crafted_card_is_one_line(tmp_path, finished_run):
    original = finished_run / "weights" / "swad.safetensors"
    tensors, card = load_file(original), read_card(original)
    random, path = Random(0), tmp_path / "swad.safetensors"
    names = ("network", "freeze_bn", "classes", "input", "algorithm", "config")
    cards = [{}, [], 5, "text", None, {**card, "network": "hf-hub:someone/model"}]
    cards += [{**card, "input": {**card["input"], "size": "x"}}, {**card, "classes": [1] * 3}]
    for _ in range(40):
        value = random.choice([None, 5, -1, 10**400, "x", [], {}, [[]], {"a": 1}])
        cards.append({**card, random.choice(names): value})
    for text in [*map(json.dumps, cards), "[" * 100_000, "{"]:
        save_file(tensors, path, metadata={"swad": text})
        try:
            load_predictor(path)
        except NetworkError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize("name", ["spectral_decoupling", "coral_2"])  # the latter resembles another one
def test_weights_of_an_own_algorithm_say_how_it_is_found(tmp_path, finished_run, name):
    original = finished_run / "weights" / "swad.safetensors"
    path = tmp_path / "swad.safetensors"
    card = {**read_card(original), "algorithm": name}
    save_file(load_file(original), path, metadata={"swad": json.dumps(card)})
    with pytest.raises(NetworkError, match=rf"no algorithm '{name}'.*name its folder in SWAD_ALGORITHMS$") as caught:
        load_predictor(path)
    assert str(caught.value).count("SWAD_ALGORITHMS") == 1
