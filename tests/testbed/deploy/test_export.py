"""Exported graphs give the predictor's logits in runtimes that know nothing of swad."""

from __future__ import annotations

import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from helpers import ROOT
from helpers.documents import example
from swad.testbed.data.domains import ImageSpec
from swad.testbed.data.transforms import PredictorTransform
from swad.testbed.deploy import export
from swad.testbed.deploy.export import ExportError, comparison_pixels, export_graph
from swad.testbed.training.export import load_predictor, read_card
from swad.util.images import DataError

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
SUFFIXES = (".onnx", ".pt2")
WITHOUT_SWAD = """
import sys
assert not any(name.partition(".")[0] in ("swad", "timm") for name in sys.modules)
"""


def load(file):
    """Return a saved model and its card."""
    return load_predictor(file), read_card(file)


@pytest.fixture(scope="module")
def exported(timm_run, photographs, tmp_path_factory):
    """Both graphs of the network of timm, and its predictor."""
    folder = tmp_path_factory.mktemp("graphs")
    predictor, card = load(timm_run / "weights" / "ema.safetensors")
    pixels = comparison_pixels(predictor.transform, None, timm_run)
    for suffix in SUFFIXES:
        assert export_graph(predictor, card, pixels, folder / f"model{suffix}") < 1e-5
    return predictor, folder


def run_onnx(path, pixels):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {"pixels": pixels.numpy()})[0])


def run_pt2(path, pixels):
    return torch.export.load(path).module()(pixels).detach()


@pytest.mark.parametrize(("suffix", "run"), [(".onnx", run_onnx), (".pt2", run_pt2)])
def test_the_graph_equals_the_predictor_for_any_number_of_images(exported, photographs, suffix, run):
    predictor, folder = exported
    paths = sorted(photographs.glob("*/*/*.png"))
    for n in (1, 2, 7):
        pixels = torch.stack([predictor.transform.pixels(path) for path in paths[:n]])
        with torch.inference_mode():
            expected = predictor.model(torch.stack([predictor.transform(path) for path in paths[:n]]))
        torch.testing.assert_close(run(folder / f"model{suffix}", pixels), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_graph_and_its_card_need_no_swad(exported, photographs, suffix, tmp_path):
    predictor, folder = exported
    text = (folder / f"model{suffix}.md").read_text()
    assert "Images are resized to 64 × 64 (bilinear, without keeping proportions)" in text
    name = photographs / "b" / "dog" / "0.png"
    code = text.partition("```python\n")[2].partition("```")[0].replace("photo.jpg", str(name))
    code += example("ship-a-model.md", f'"model{suffix}"').replace("pixels = ...\n", "") + WITHOUT_SWAD
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    with torch.inference_mode():
        number = predictor.model(predictor.transform(name)[None]).argmax()
    assert done.stdout.strip() == predictor.class_names[number], done.stderr


def test_no_path_of_this_machine_is_in_a_file(exported, timm_run, photographs):
    _, folder = exported
    assert {path.name for path in folder.iterdir()} == {"model.onnx", "model.onnx.md", "model.pt2", "model.pt2.md"}
    for path in folder.iterdir():
        contents = [path.read_bytes()]
        if path.suffix == ".pt2":
            with zipfile.ZipFile(path) as archive:
                contents = [archive.read(name) for name in archive.namelist()]
        for place in (ROOT, timm_run, photographs, sys.prefix):
            assert all(str(place).encode() not in content for content in contents)


@pytest.mark.parametrize(
    "spec",
    [
        ImageSpec(size=28),
        ImageSpec(size=28, resized_to=(40, 36)),
        ImageSpec(size=28, center_crop=True),
        ImageSpec(size=28, channels=1, mean=(0.5,), std=(0.2,)),
        ImageSpec(size=28, low_res=True),
    ],
)
@pytest.mark.parametrize("size", [(28, 28), (61, 45), (44, 71)])
def test_the_preparation_of_the_card_gives_the_bytes_of_the_transform(spec, size, tmp_path, monkeypatch):
    if spec.low_res:
        size = (28, 28)
    pixels = np.random.RandomState(0).randint(0, 256, (*size[::-1], 3)).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.jpg", quality=95)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec("\n".join(["import PIL.Image, numpy", *export.preparation(spec)]), names)
    expected = PredictorTransform(spec).pixels(tmp_path / "photo.jpg")
    assert torch.from_numpy(names["pixels"]).equal(expected[None])


def test_an_export_is_compared_on_validation_images_of_every_source(timm_run, photographs):
    transform = load_predictor(timm_run / "weights" / "last.safetensors").transform
    found = {bytes(image.numpy()) for image in comparison_pixels(transform, None, timm_run)}
    paths = [path for path in photographs.glob("*/*/*") if bytes(transform.pixels(path).numpy()) in found]
    assert {path.parts[-3] for path in paths} == {"b", "c"}
    assert 2 <= len(found) <= export.N_IMAGES
    given = comparison_pixels(transform, [photographs / "a"], timm_run)
    assert given.shape == (export.N_IMAGES, 3, 64, 64)
    assert given[0].equal(transform.pixels(photographs / "a" / "cat" / "0.png"))
    file = timm_run / "weights" / "last.safetensors"
    with pytest.raises(ExportError, match=r"compared on real images, and the file .* has none: add --images$"):
        comparison_pixels(transform, None, file)
    with pytest.raises(DataError, match=r"is compared on images of .*, but .*; or add --images$"):
        comparison_pixels(transform, None, timm_run, timm_run / "nowhere")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_differs_or_fails_writes_nothing(tiny_run, tmp_path, monkeypatch, suffix):
    predictor, card = load(tiny_run / "weights" / "swad.safetensors")
    pixels = torch.randint(0, 256, (3, 3, 28, 28), dtype=torch.uint8)
    output = tmp_path / f"model{suffix}"

    class Off(export.PixelsToLogits):
        def forward(self, pixels):
            return super().forward(pixels) + 1e-2

    class Branching(export.PixelsToLogits):
        def forward(self, pixels):
            return super().forward(pixels) if pixels.sum() > 0 else pixels

    for graph, message in (
        (Off, r"within 0\.0001, got a difference of 0\.0\d+: nothing was written; choose another format"),
        (Branching, rf"^torch cannot export small trained with erm to model{suffix}: .*; use swad"),
    ):
        monkeypatch.setattr(export, "PixelsToLogits", graph)
        with pytest.raises(ExportError, match=message) as caught:
            export_graph(predictor, card, pixels, output)
        assert "\n" not in str(caught.value)
        assert not list(tmp_path.iterdir())


def test_predictions_that_depend_on_the_batch_are_refused(tiny_run, tmp_path):
    predictor, card = load(tiny_run / "weights" / "swad.safetensors")
    card = {**card, "algorithm": "arm", "config": {"training": {"hyperparameters": {}}}}
    with pytest.raises(ExportError, match="each image alone, but arm looks at 8 images of a domain together"):
        export_graph(predictor, card, torch.zeros(1, 3, 28, 28, dtype=torch.uint8), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_without_the_packages_of_onnx(tiny_run, tmp_path, monkeypatch):
    predictor, card = load(tiny_run / "weights" / "swad.safetensors")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r"exporting to ONNX needs onnxscript: pip install 'swad\[export\]'"):
        export_graph(predictor, card, torch.zeros(1, 3, 28, 28, dtype=torch.uint8), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())
