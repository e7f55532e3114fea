"""Small trees with the layouts of ImageNet and its robustness benchmarks, and classifiers whose answers are known."""

from __future__ import annotations

import io
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from swad.robustness import backgrounds
from swad.robustness.corruptions import CORRUPTIONS, SEVERITIES
from swad.robustness.imagenet_c import EXTRA
from swad.util.images import InputConfig

TENCH, GOLDFISH, DOG, PAPER = 0, 1, 207, 999
"""Classes of ImageNet: a fish that ImageNet-R lacks, one that it has, a retriever, and one of no coarse class."""
FOLDERS = {TENCH: "n01440764", GOLDFISH: "n01443537", DOG: "n02099601", PAPER: "n15075141"}

INPUT = InputConfig(size=8, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), crop=1.0)

ARCHIVES = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
    "extra": EXTRA,
}
"""The corruptions in each archive of ImageNet-C."""


class Answers(nn.Module):
    """Answers each image with the class that its color encodes."""

    def forward(self, images: Tensor) -> Tensor:
        red, green = (images.mean((2, 3))[:, :2] * 255 / 8).round().long().T
        return nn.functional.one_hot(32 * red + green, 1000).float()


@lru_cache
def _encoded(answer: int, size: int) -> bytes:
    pixels = np.empty((size, size, 3), np.uint8)
    pixels[:] = (answer // 32 * 8, answer % 32 * 8, 0)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")  # without loss; the name says JPEG, as in the benchmarks
    return out.getvalue()


def write(folder: Path, *answers: int, size: int = 8) -> None:
    """Write an image for each answer that `Answers` shall give."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, answer in enumerate(answers):
        (folder / f"{number:08}.JPEG").write_bytes(_encoded(answer, size))


def make_imagenet(root: Path) -> Path:
    """Six images in three classes; 4 of 6 are right, and 2 of the 3 of ImageNet-R's classes."""
    write(root / "val" / FOLDERS[TENCH], TENCH, TENCH, GOLDFISH)
    write(root / "val" / FOLDERS[GOLDFISH], GOLDFISH, DOG)
    write(root / "val" / FOLDERS[DOG], DOG)
    return root


def make_imagenet_c(root: Path, nested: bool = True, without: tuple[str, ...] = ()) -> Path:
    """Five images of tench in every corruption: as many are wrong as the severity says; none in `extra`."""
    for archive, names in ARCHIVES.items():
        for name in names:
            for severity in SEVERITIES if name not in without else ():
                wrong = 0 if archive == "extra" else severity
                folder = root / archive / name if nested else root / name
                write(folder / str(severity) / FOLDERS[TENCH], *[TENCH] * (5 - wrong), *[DOG] * wrong)
    assert {name for names in ARCHIVES.values() for name in names} == {*CORRUPTIONS, *EXTRA}
    return root


def make_imagenet_r(root: Path) -> Path:
    """Four images of two classes; 3 are right among the 200, since tench is none of them."""
    write(root / FOLDERS[GOLDFISH], GOLDFISH, DOG)
    write(root / FOLDERS[DOG], DOG, DOG)
    return root


def make_backgrounds(root: Path, objects: int = 2) -> Path:
    """Objects of each of the nine classes on dark backgrounds; an object covers the upper half of its image."""
    first = {label: int((backgrounds.class_map() == label).nonzero()[0]) for label in range(9)}
    base = root / "bg_challenge"
    for label, name in enumerate(backgrounds.FOLDERS):
        for variation in ("original", "mixed_same", "mixed_rand", "only_bg_t"):
            # mixed_rand: the second object of each class looks like toilet paper.
            answers = [first[label]] * objects
            if variation == "mixed_rand":
                answers[-1] = PAPER
            write(base / variation / "val" / name, *answers)
        masks = base / "fg_mask" / "val" / name
        masks.mkdir(parents=True)
        mask = np.zeros((8, 8), np.float64)
        mask[:4] = 1
        for number in range(objects):
            np.save(masks / f"{number:08}.npy", mask)
    return root


def constant_network(path: Path, answer: int, n_classes: int = 1000) -> str:
    """Save weights of a small timm network that always gives one answer, and return the model for the command line."""
    import timm
    from safetensors.torch import save_file

    model = timm.create_model("test_resnet", num_classes=n_classes)
    state = model.state_dict()
    state["fc.weight"].zero_()
    state["fc.bias"].copy_(nn.functional.one_hot(torch.tensor(answer), n_classes))
    save_file(state, path)
    return f"test_resnet={path}"
