"""The 50,000 validation images of ImageNet-1k, in class folders named by WordNet ID."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import torch

from swad.robustness.evaluation import N_CLASSES, Labels, Part
from swad.robustness.folders import ClassFolders, imagenet_classes, read_class_folders

N_IMAGES = 50_000
NAME = "imagenet"


@cache
def labels() -> Labels:
    """Return the labels: the 1,000 classes themselves."""
    return Labels(torch.arange(N_CLASSES))


def find_images(root: str | os.PathLike[str]) -> ClassFolders:
    """Return the validation images in the class folders of `root/val`, or of `root` itself."""
    root = Path(root)
    return read_class_folders(root / "val" if (root / "val").is_dir() else root, imagenet_classes())


def part(root: str | os.PathLike[str]) -> Part:
    """Return the validation images as one part."""
    return Part(NAME, find_images(root), labels(), N_IMAGES)
