from __future__ import annotations

import re
import shutil

import pytest

pytest.importorskip("sklearn")
onnxruntime = pytest.importorskip("onnxruntime")


def test_a_run_becomes_a_graph(here, tiny_run, tmp_path):
    output = tmp_path / "out" / "model.onnx"
    lines = here("export", tiny_run, "-o", output).stdout.splitlines()
    losses = [
        float(re.search(r": loss ([\d.]+), accuracy [\d.]+ % on validation images", line)[1]) for line in lines[:4]
    ]
    assert losses == sorted(losses)
    name = lines[0].partition(":")[0]
    assert lines[4] == f"chosen by that loss: {name}; --weights takes another"
    assert lines[5].startswith(f"equals {name}.safetensors on 8 images (largest difference of the logits: ")
    assert lines[6] == f"wrote {output} and {output}.md"
    (given,) = onnxruntime.InferenceSession(output).get_inputs()
    assert (given.name, given.type, given.shape) == ("pixels", "tensor(uint8)", ["batch", 3, 28, 28])
    assert {path.name for path in output.parent.iterdir()} == {"model.onnx", "model.onnx.md"}


def test_a_weights_file_is_compared_on_named_images(here, tiny_run, tmp_path):
    from PIL import Image

    file, output = tmp_path / "swad.safetensors", tmp_path / "model.pt2"
    shutil.copy(tiny_run / "weights" / "swad.safetensors", file)
    error = here("export", file, "-o", output, code=1).stderr
    assert error.splitlines()[-1].endswith("has none: add --images")
    Image.new("RGB", (28, 28), (9, 99, 199)).save(tmp_path / "one.png")
    done = here("export", file, "-o", output, "--images", tmp_path / "one.png")
    assert done.stdout.startswith("equals swad.safetensors on 1 image (")
    assert output.is_file()


def test_mistakes_are_one_line_and_write_nothing(here, tiny_run, tmp_path):
    for arguments, message in (
        (("-o", tmp_path / "m.txt"), "--to, or the suffix of --output, must be one of onnx, pt2, timm"),
        (("-o", tmp_path / "m.pt2", "--to", "onnx"), "needs a file that ends in .onnx, got "),
        (("-o", tmp_path / "m.onnx", "--push", "me/model"), "--push uploads a directory for timm: add --to timm"),
        (("-o", tmp_path / "m", "--to", "timm"), "needs a network of timm, got small"),
        (("-o", tmp_path / "m.onnx", "--weights", "emma"), "has no weights 'emma'"),
        (("-o", tmp_path / "m.onnx", "--images", tmp_path / "none"), "there is no "),
    ):
        errors = here("export", tiny_run, *arguments, code=1).stderr.splitlines()
        assert errors[-1].startswith("error: ")
        assert message in errors[-1]
    assert not list(tmp_path.iterdir())
