"""Evaluation of classifiers on trees with known answers, and decoding against torchvision."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode, v2

from helpers.imagenet_trees import (
    DOG,
    FOLDERS,
    GOLDFISH,
    INPUT,
    PAPER,
    TENCH,
    Answers,
    make_imagenet,
    make_imagenet_c,
    make_imagenet_r,
    write,
)
from swad.robustness import imagenet, imagenet_c, imagenet_r
from swad.robustness.evaluation import Classifier, decode, evaluate
from swad.util.images import InputConfig


@pytest.mark.parametrize("workers", [0, 2])
def test_parts_are_counted_one_by_one(tmp_path, workers):
    parts = [
        imagenet.part(make_imagenet(tmp_path / "imagenet")),
        imagenet_r.clean_part(tmp_path / "imagenet"),
        imagenet_r.part(make_imagenet_r(tmp_path / "r")),
        *imagenet_c.parts(make_imagenet_c(tmp_path / "c"))[:5],
    ]
    calls = []
    classifiers = {"all": Classifier(Answers(), INPUT), "r": Classifier(Answers(), INPUT)}
    requested = [(part, ["all", "r"] if part.name == "imagenet-r" else ["all"]) for part in parts]
    found = {
        part.name: counts
        for part, counts in evaluate(
            classifiers, requested, batch_size=2, workers=workers, progress=lambda *call: calls.append(call)
        )
    }
    assert found["imagenet"] == {"all": (4, 6)}
    assert found["imagenet-200"] == {"all": (2, 3)}
    assert found["imagenet-r"] == {"all": (3, 4), "r": (3, 4)}
    assert [found[f"imagenet-c/gaussian_noise/{severity}"]["all"] for severity in range(1, 6)] == [
        (5 - severity, 5) for severity in range(1, 6)
    ]
    total = 6 + 3 + 4 + 5 * 5
    assert calls[0] == ("images", 2, total)
    assert calls[-1] == ("images", total, total)


def test_a_classifier_of_some_classes_is_judged_on_their_images(tmp_path):
    write(tmp_path / FOLDERS[TENCH], TENCH)
    write(tmp_path / FOLDERS[GOLDFISH], GOLDFISH, DOG)
    write(tmp_path / FOLDERS[DOG], DOG, TENCH, TENCH)

    class OfTwo(Answers):
        """Its outputs are dog and goldfish, in this order."""

        def forward(self, images):
            return super().forward(images)[:, [DOG, GOLDFISH]]

    classifier = Classifier(OfTwo(), INPUT, classes=[DOG, GOLDFISH])
    ((_, counts),) = evaluate({"two": classifier}, [(imagenet.part(tmp_path), ["two"])], workers=0)
    # Both outputs are 0 for the images that look like tench: the first class of ImageNet wins, and that is goldfish.
    assert counts == {"two": (2, 5)}


def test_outputs_outside_the_200_are_masked():
    outputs = torch.zeros(1, 1000)
    outputs[0, TENCH], outputs[0, GOLDFISH] = 2, 1
    assert imagenet_r.labels().predict(outputs).tolist() == [0]  # goldfish is the first of the 200
    assert imagenet.labels().predict(outputs).tolist() == [TENCH]
    with pytest.raises(ValueError, match="got 10 outputs"):
        imagenet_r.labels().predict(torch.zeros(1, 10))
    assert PAPER not in imagenet_r.indices()


@pytest.mark.parametrize("crop", [0.875, 0.88, 0.95, 1.0])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_images_are_decoded_as_torchvision_does(crop, interpolation):
    draw = np.random.RandomState(0)
    for width, height in ((50, 37), (37, 51), (20, 20), (300, 33)):
        image = Image.fromarray(draw.randint(0, 256, (height, width, 3), np.uint8))
        input = InputConfig(size=28, crop=crop, interpolation=interpolation)
        twin = v2.Compose(
            [v2.Resize(int(28 / crop), InterpolationMode(interpolation)), v2.CenterCrop(28), v2.PILToTensor()]
        )
        assert torch.equal(decode(image, input, stored=False).permute(2, 0, 1), twin(image))


def test_stored_images_are_resized_only_to_another_size():
    image = Image.fromarray(np.random.RandomState(0).randint(0, 256, (28, 28, 3), np.uint8))
    kept = decode(image, InputConfig(size=28), stored=True)
    assert np.array_equal(kept.numpy(), np.asarray(image))
    larger = decode(image, InputConfig(size=40), stored=True)
    assert np.array_equal(larger.numpy(), np.asarray(image.resize((40, 40), Image.Resampling.BILINEAR)))


def test_a_classifier_normalizes_bytes_and_resizes_composed_images():
    seen = []

    class Record(Answers):
        def forward(self, images):
            seen.append(images)
            return super().forward(images * 0)

    input = InputConfig(size=8, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    images = torch.full((1, 3, 16, 16), 255, dtype=torch.uint8)
    classifier = Classifier(Record().train(), input, bf16=True)
    assert not classifier.model.training
    outputs = classifier(images)
    assert seen[0].shape == (1, 3, 8, 8)
    assert torch.allclose(seen[0].float(), torch.full((), 2.0))
    assert outputs.dtype == torch.float32
    # Bicubic filters overshoot at edges, where bytes would saturate.
    edges = torch.zeros(1, 3, 16, 16)
    edges[..., 5:11] = 1
    Classifier(Record(), input._replace(size=12, interpolation="bicubic"))(edges)
    assert (float(seen[1].min()), float(seen[1].max())) == (-2, 2)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_image_is_named_in_one_line(tmp_path, workers):
    part = imagenet.part(make_imagenet(tmp_path))
    part.images.path(1).write_bytes(b"not an image")
    with pytest.raises(ValueError, match=r"^cannot decode image [^\n]*00000001\.JPEG: [^\n]*$"):
        list(evaluate({"all": Classifier(Answers(), INPUT)}, [(part, ["all"])], workers=workers))


@pytest.mark.gpu
@pytest.mark.parametrize("bf16", [False, True])
def test_a_gpu_counts_as_a_cpu_does(tmp_path, bf16):
    parts = [imagenet.part(make_imagenet(tmp_path / "imagenet")), imagenet_r.part(make_imagenet_r(tmp_path / "r"))]
    classifier = Classifier(Answers(), INPUT, device="cuda", bf16=bf16)
    found = evaluate({"all": classifier}, [(part, ["all"]) for part in parts], batch_size=4, workers=1)
    assert [counts["all"] for _, counts in found] == [(4, 6), (3, 4)]
