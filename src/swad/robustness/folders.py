"""Images in class folders, as all benchmarks of ImageNet store them."""

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

from swad.util.images import EXTENSIONS


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
    folders = {entry.name for entry in os.scandir(root) if entry.is_dir() and entry.name[0] != "."}
    if unknown := sorted(folders - classes.keys()):
        raise ValueError(
            f"{root} has folders that are not classes of this benchmark: {', '.join(unknown[:3])}"
            f"{f' and {len(unknown) - 3} more' if unknown[3:] else ''}; give the directory of class "
            f"folders such as {min(classes)}"
        )
    names: list[bytes] = []
    labels: list[int] = []
    missing = []
    for name in sorted(classes):
        images = _images(root / name) if name in folders else []
        if not images:
            missing.append(name)
        names += [os.fsencode(os.path.join(name, image)) for image in images]
        labels += [classes[name]] * len(images)
    if not names and _images(root):
        raise ValueError(f"{root} holds images without class folders: sort them into folders such as {min(classes)}")
    if not names:
        raise ValueError(f"{root} holds no image in a class folder such as {min(classes)}: check the path")
    return ClassFolders(root, np.array(names), np.array(labels, np.int64), tuple(missing))


def _images(folder: Path) -> list[str]:
    names = (entry.name for entry in os.scandir(folder) if entry.is_file() and entry.name[0] != ".")
    return sorted(name for name in names if os.path.splitext(name)[1].lower() in EXTENSIONS)


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
