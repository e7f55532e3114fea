"""The example that serves a model over HTTP, asked by a client."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import urllib.error
import urllib.request

import numpy as np
import pytest
import torch
from PIL import Image

import swad
from helpers import ROOT

pytest.importorskip("sklearn")


def post(address, body):
    try:
        with urllib.request.urlopen(urllib.request.Request(address, body), timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.mark.slow
def test_the_server_answers_what_the_predictor_predicts(tiny_run):
    file = tiny_run / "weights" / "swad.safetensors"
    model, transform, class_names = swad.testbed.load_predictor(file)
    pixels = np.random.RandomState(0).randint(0, 256, (28, 28, 3)).astype(np.uint8)
    encoded = io.BytesIO()
    Image.fromarray(pixels).save(encoded, "PNG")
    program = ROOT / "examples" / "serving" / "serve_model.py"
    with subprocess.Popen([sys.executable, program, file, "0"], stdout=subprocess.PIPE, text=True) as server:
        try:
            address = server.stdout.readline().strip()
            code, answer = post(address, encoded.getvalue())
            refused = [post(address, body) for body in (b"no image", b"", encoded.getvalue()[:100])]
            large = io.BytesIO()
            Image.fromarray(pixels.repeat(2, 0)).save(large, "PNG")
            refused.append(post(address, large.getvalue()))
            assert post(address, encoded.getvalue())[0] == 200  # it still serves
        finally:
            server.terminate()
    with torch.inference_mode():
        expected = model(transform(pixels)[None]).softmax(1)[0]
    assert code == 200
    assert tuple(answer) == class_names
    torch.testing.assert_close(torch.tensor(list(answer.values())), expected)
    assert {code for code, _ in refused} == {400}
    messages = [answer["error"] for _, answer in refused]
    assert messages[0].startswith("cannot decode image of the request: ")
    assert messages[1].startswith("the body must be an image file of 1 to 50,000,000 bytes, got 0")
    assert messages[3].startswith("low-resolution images keep their size")
