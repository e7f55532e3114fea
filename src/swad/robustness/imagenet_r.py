"""ImageNet-R: renditions (art, cartoons, toys, ...) of 200 classes of ImageNet.

Hendrycks et al., "The Many Faces of Robustness", ICCV 2021. A classifier of 1,000 classes is judged among the 200: the
other outputs are masked before the largest is taken. Beside the accuracy stands that on the same 200 classes of
ImageNet itself, also masked, and the gap between the two.
"""

from __future__ import annotations

import os
from functools import cache

import torch

from swad.robustness import imagenet
from swad.robustness.imagenet import N_CLASSES, Labels, Part, imagenet_classes, read_class_folders, timm_list

N_IMAGES = 30_000
"""Images in the published set."""
N_CLEAN = 10_000
"""Validation images of ImageNet of the 200 classes."""
NAME, CLEAN = "imagenet-r", "imagenet-200"


@cache
def classes() -> dict[str, int]:
    """Return the position of every class folder among the 200."""
    return {name: position for position, name in enumerate(sorted(timm_list("imagenet_r_synsets.txt")))}


@cache
def indices() -> tuple[int, ...]:
    """Return the outputs of a classifier of ImageNet-1k that belong to the 200 classes, in the order of `classes`."""
    return tuple(imagenet_classes()[name] for name in classes())


@cache
def labels() -> Labels:
    """Return the labels: the positions among the 200, with all other outputs masked."""
    of_class = torch.full((N_CLASSES,), -1)
    of_class[list(indices())] = torch.arange(len(indices()))
    return Labels(of_class, masked=True)


def part(root: str | os.PathLike[str]) -> Part:
    """Return the renditions as one part."""
    return Part(NAME, read_class_folders(root, classes()), labels(), N_IMAGES)


def clean_part(root: str | os.PathLike[str]) -> Part:
    """Return ImageNet's own images of the 200 classes as one part."""
    return Part(CLEAN, imagenet.find_images(root).only(classes()), labels(), N_CLEAN)
