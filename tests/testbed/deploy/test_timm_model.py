"""A directory that plain timm loads, also from a stand-in of the hub."""

from __future__ import annotations

import json
import os

import pytest
import torch
from PIL import Image

from helpers import forked
from helpers.hub_server import hub
from swad.testbed.deploy import export, timm_model
from swad.testbed.deploy.timm_model import export_timm
from swad.testbed.training.export import load_predictor, read_card

timm = pytest.importorskip("timm")


def pixels_of(predictor, photographs):
    return export.comparison_pixels(predictor.transform, [photographs], photographs)


@pytest.fixture(scope="module")
def saved(timm_run, photographs, tmp_path_factory):
    file = timm_run / "weights" / "ema.safetensors"
    predictor, directory = load_predictor(file), tmp_path_factory.mktemp("export") / "model"
    assert export_timm(predictor, read_card(file), pixels_of(predictor, photographs), directory) <= 1e-6
    return load_predictor(file), directory


def test_timm_loads_the_model_with_its_transform_and_classes(saved, photographs):
    predictor, directory = saved
    model = timm.create_model(f"local-dir:{directory}", pretrained=True).eval()
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    assert tuple(model.pretrained_cfg["label_names"]) == predictor.class_names
    for path in photographs.glob("*/*/0.png"):
        with Image.open(path) as image:
            mine, theirs = predictor.transform(path), transform(image.convert("RGB"))
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)
        with torch.inference_mode():
            torch.testing.assert_close(model(theirs[None]), predictor.model(mine[None]), rtol=0, atol=1e-5)


def test_the_directory_holds_what_a_hub_shows_and_no_path(saved, photographs):
    _, directory = saved
    assert {path.name for path in directory.iterdir()} == {"README.md", "config.json", "model.safetensors"}
    assert {oct(path.stat().st_mode & 0o777) for path in directory.iterdir()} == {"0o644"}
    text = (directory / "README.md").read_text()
    assert "Images are resized to 64 × 64 (bilinear, without keeping proportions)" in text
    assert "library_name: timm" in text
    config = json.loads((directory / "config.json").read_text())
    assert "license" not in config["pretrained_cfg"]
    for path in directory.iterdir():
        assert str(photographs.parents[1]).encode() not in path.read_bytes()


def test_a_center_crop_is_timms(photographs, timm_run, tmp_path):
    from dataclasses import replace

    from swad.testbed.data.transforms import PredictorTransform

    predictor = load_predictor(timm_run / "weights" / "ema.safetensors")
    spec = replace(predictor.transform.image_spec, center_crop=True)
    predictor = predictor._replace(transform=PredictorTransform(spec))
    card = read_card(timm_run / "weights" / "ema.safetensors")
    export_timm(predictor, card, pixels_of(predictor, photographs), tmp_path / "m")
    model = timm.create_model(f"local-dir:{tmp_path / 'm'}", pretrained=True)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    with Image.open(photographs / "a" / "cat" / "1.png") as image:
        torch.testing.assert_close(transform(image), predictor.transform(image), rtol=0, atol=1e-6)


def test_an_image_size_that_a_vit_was_not_made_for(tmp_path, photographs, timm_run):
    from swad.testbed.data.domains import ImageSpec
    from swad.testbed.data.transforms import PredictorTransform
    from swad.testbed.models import networks
    from swad.testbed.training.export import Predictor

    card = {**read_card(timm_run / "weights" / "ema.safetensors"), "network": "test_vit"}
    model = networks.build("test_vit", 2, image_size=96).eval()
    predictor = Predictor(model, PredictorTransform(ImageSpec(size=96)), ("cat", "dog"))
    assert export_timm(predictor, card, pixels_of(predictor, photographs), tmp_path / "vit") <= 1e-5


def test_a_mismatch_or_another_network_leaves_nothing(timm_run, tiny_run, photographs, tmp_path, monkeypatch):
    file = timm_run / "weights" / "ema.safetensors"
    predictor, card = load_predictor(file), read_card(file)
    pixels = pixels_of(predictor, photographs)
    create = timm.create_model

    def other_weights(*arguments, **options):
        model = create(*arguments, **options)
        return model.requires_grad_(False).apply(
            lambda layer: getattr(layer, "bias", None) is None or layer.bias.add_(1)
        )

    monkeypatch.setattr(timm, "create_model", other_weights)
    with pytest.raises(export.ExportError, match=r"within 0\.0001, got a difference of .*: nothing was written"):
        export_timm(predictor, card, pixels, tmp_path / "m")
    small = tiny_run / "weights" / "swad.safetensors"
    with pytest.raises(export.ExportError, match=r"needs a network of timm, got small trained with erm, .* \.onnx or"):
        export_timm(load_predictor(small), read_card(small), pixels, tmp_path / "m")
    assert not list(tmp_path.iterdir())
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "mine.txt").touch()
    with pytest.raises(export.ExportError, match="exists already: remove it, or choose another directory"):
        export_timm(predictor, card, pixels, tmp_path / "m")


PUSH = "import sys; from swad.testbed.deploy import timm_model; print(timm_model.push_to_hub(*sys.argv[1:]))"


def push(address, *arguments):
    """Push in a process of its own, because the hub's client reads its address once."""
    environment = os.environ | {"HF_ENDPOINT": address, "HF_TOKEN": "hf_none", "HF_HUB_OFFLINE": "0"}
    return forked.run(["-c", PUSH, *arguments], env=environment)


@pytest.mark.slow
def test_the_hubs_client_pushes_the_directory(saved, tmp_path):
    predictor, directory = saved
    with hub(tmp_path) as address:
        done = push(address, directory, "me/animals")
        assert done.stdout.strip() == f"{address}/me/animals", done.stderr
    for path in directory.iterdir():
        assert (tmp_path / "me" / "animals" / path.name).read_bytes() == path.read_bytes()
    model = timm.create_model(f"local-dir:{tmp_path / 'me' / 'animals'}", pretrained=True).eval()
    image = torch.rand(1, 3, 64, 64)
    torch.testing.assert_close(model(image), predictor.model(image))


@pytest.mark.slow
def test_a_hub_that_refuses_or_does_not_answer_is_one_line(saved, tmp_path):
    _, directory = saved
    with hub(tmp_path, refuse_commits=True) as address:
        refused = push(address, directory, "me/animals")
    for done in (refused, push(address, directory, "me/animals"), push(address, directory, "a/b/c")):
        last = done.stderr.strip().splitlines()[-1]
        assert "ExportError: cannot push" in last
        assert f"then run `hf upload {done.args[-1]} {directory}`" in last
    assert not list((tmp_path / "me" / "animals").iterdir())
    assert timm_model.push_to_hub
