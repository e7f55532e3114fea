"""Images in class folders, as all benchmarks of ImageNet store them, and ImageNet's own validation images."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from swad.util.images import entries, image_files
from swad.util.names import listed

N_CLASSES = 1000
"""Classes of ImageNet."""
N_IMAGES = 50_000
"""Validation images of ImageNet-1k."""
NAME = "imagenet"


@dataclass(frozen=True, eq=False)
class ClassFolders:
    """The images of class folders, in sorted order.

    ImageNet-C has 4.75 million images. Their names are one array, which worker processes share: as Python objects they
    would be copied into each of them.
    """

    root: Path
    names: np.ndarray[Any, np.dtype[np.bytes_]] = field(repr=False)
    """CLASS/FILE of each image, as the file system encodes it."""
    labels: np.ndarray[Any, np.dtype[np.int64]] = field(repr=False)
    missing: tuple[str, ...] = ()
    """Classes without a folder, or whose folder has no image."""

    def __len__(self) -> int:
        return len(self.names)

    def path(self, index: int) -> Path:
        """Return the path of an image."""
        return self.root / os.fsdecode(self.names[index])

    @property
    def paths(self) -> list[Path]:
        """The paths of all images."""
        return [self.path(index) for index in range(len(self))]

    @cached_property
    def digest(self) -> str:
        """A hash of the names of all images: the same for the same images, wherever they are."""
        return hashlib.blake2b(b"\n".join(self.names.tolist()), digest_size=8).hexdigest()

    def only(self, classes: Mapping[str, int]) -> ClassFolders:
        """Return the images of some of the classes, with other labels."""
        folders = [os.fsdecode(name).split(os.sep)[0] for name in self.names]
        chosen = [index for index, name in enumerate(folders) if name in classes]
        labels = np.array([classes[folders[index]] for index in chosen], np.int64)
        return ClassFolders(self.root, self.names[chosen], labels, tuple(sorted(classes.keys() - set(folders))))


def read_class_folders(root: str | os.PathLike[str], classes: Mapping[str, int]) -> ClassFolders:
    """Find the images of every class.

    Args:
        root: Folder with one folder per class.
        classes: Label by folder name. A folder that is not among them is an error: its images would be left out.
    """
    root = Path(root)
    if not root.is_dir():
        raise ValueError(f"{root} is not a folder: give one with a folder for every class")
    folders = {entry.name for entry in entries(root) if entry.is_dir() and entry.name[0] != "."}
    if unknown := sorted(folders - classes.keys()):
        raise ValueError(
            f"{root} has folders that are not classes of this benchmark: {listed(unknown)}; give the directory of "
            f"class folders such as {min(classes)}"
        )
    names: list[bytes] = []
    labels: list[int] = []
    missing = []
    for name in sorted(classes):
        images = image_files(root / name) if name in folders else []
        if not images:
            missing.append(name)
        names += [os.fsencode(os.path.join(name, image)) for image in images]
        labels += [classes[name]] * len(images)
    if not names and image_files(root):
        raise ValueError(f"{root} holds images without class folders: sort them into folders such as {min(classes)}")
    if not names:
        raise ValueError(f"{root} holds no image in a class folder such as {min(classes)}: check the path")
    return ClassFolders(root, np.array(names), np.array(labels, np.int64), tuple(missing))


@dataclass(frozen=True, eq=False)
class Labels:
    """The labels of a benchmark, and how the outputs of a classifier of ImageNet become one of them."""

    of_class: Tensor
    """Label of each of the 1,000 classes of ImageNet; -1 for a class that has none."""
    masked: bool = False
    """Whether outputs of classes without a label are left out. Otherwise such an answer is wrong."""
    _on_device: dict[torch.device, Tensor] = field(default_factory=dict, repr=False)

    @cached_property
    def n_labels(self) -> int:
        """Number of labels."""
        return int(self.of_class.max()) + 1

    def predict(self, outputs: Tensor) -> Tensor:
        """Return the label of each image; -1 for none. Outputs of the labels themselves are taken as they are."""
        if outputs.shape[1] == self.n_labels:
            return outputs.argmax(1)
        if outputs.shape[1] != N_CLASSES:
            raise ValueError(
                f"this benchmark needs a classifier of the {N_CLASSES:,} classes of ImageNet or of its own "
                f"{self.n_labels}, got {outputs.shape[1]:,} outputs"
            )
        of_class = self._map_on(outputs.device)
        if self.masked:
            outputs = outputs.masked_fill(of_class < 0, -torch.inf)
        return of_class[outputs.argmax(1)]

    def _map_on(self, device: torch.device) -> Tensor:
        if device not in self._on_device:  # a copy in every batch would wait for the GPU
            self._on_device[device] = self.of_class.to(device)
        return self._on_device[device]

    def known(self, classes: Tensor) -> Tensor:
        """Return the labels that a classifier of these classes of ImageNet can answer with."""
        labels = self.of_class[classes]
        return labels[labels >= 0]


@dataclass(frozen=True)
class Part:
    """Images that are judged together.

    Args:
        name: Name of the part, such as imagenet-c/fog/3.
        labels: Labels of the benchmark.
        expected: Number of images in the published set.
        stored: Whether the images are stored as the model takes them, so that they are not cropped.
    """

    name: str
    images: ClassFolders
    labels: Labels
    expected: int
    stored: bool = False


@cache
def imagenet_classes() -> dict[str, int]:
    """Return the label of every WordNet ID of ImageNet-1k, from timm's list."""
    return {name: label for label, name in enumerate(timm_list("imagenet_synsets.txt"))}


def timm_list(name: str) -> list[str]:
    """Return the lines of one of timm's lists of classes."""
    try:
        text = files("timm.data").joinpath("_info", name).read_text(encoding="utf-8")
    except ModuleNotFoundError:
        raise ImportError("the classes of ImageNet come with timm: pip install 'swad[vision]'") from None
    return text.split()


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
