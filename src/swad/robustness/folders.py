"""Images in class folders, and the predictions of a model on them: what the three benchmarks share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from swad.data.image_folder import EXTENSIONS
from swad.util.cpu import available_cores
from swad.util.progress import Progress

Preprocess = Callable[[Any], Tensor]
"""From a PIL image to the tensor that the model takes."""


@dataclass(frozen=True)
class ClassFolders:
    """The images of class folders, in sorted order."""

    root: Path
    paths: tuple[Path, ...]
    labels: tuple[int, ...]
    missing: tuple[str, ...] = ()
    """Classes without a folder, or whose folder has no image."""

    def __len__(self) -> int:
        return len(self.paths)


def read_class_folders(root: str | os.PathLike[str], classes: Mapping[str, int]) -> ClassFolders:
    """Find the images of every class.

    Args:
        root: Folder with one folder per class.
        classes: Label by folder name. A folder that is not among them is an error: its images would be left out.
    """
    root = Path(root)
    if not root.is_dir():
        raise ValueError(f"{root} is not a folder: give one with a folder for every class")
    folders = {entry.name: Path(entry.path) for entry in os.scandir(root) if entry.is_dir() and entry.name[0] != "."}
    if unknown := sorted(folders.keys() - classes.keys()):
        raise ValueError(
            f"{root} has folders that are no class of this benchmark: {', '.join(unknown[:3])}"
            f"{f' and {len(unknown) - 3} more' if unknown[3:] else ''}; expected names such as {min(classes)}"
        )
    paths: list[Path] = []
    labels: list[int] = []
    missing = []
    for name in sorted(classes):
        images = _images(folders[name]) if name in folders else []
        if not images:
            missing.append(name)
        paths += images
        labels += [classes[name]] * len(images)
    if not paths:
        raise ValueError(f"{root} holds no image in a class folder such as {min(classes)}: check the path")
    return ClassFolders(root, tuple(paths), tuple(labels), tuple(missing))


def _images(folder: Path) -> list[Path]:
    entries = (Path(entry.path) for entry in os.scandir(folder) if entry.is_file() and entry.name[0] != ".")
    return sorted(path for path in entries if path.suffix.lower() in EXTENSIONS)


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


class _Images(Dataset[Tensor]):
    def __init__(self, paths: Sequence[Path], preprocess: Preprocess) -> None:
        self.paths, self.preprocess = paths, preprocess

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        from PIL import Image

        path = self.paths[index]
        try:
            with Image.open(path) as image:
                return self.preprocess(image.convert("RGB"))
        except OSError as error:
            raise ValueError(f"cannot read {path} ({error}): restore the image or remove it") from None


def image_batches(
    paths: Sequence[Path], preprocess: Preprocess, batch_size: int = 256, workers: int | None = None
) -> Iterator[Tensor]:
    """Yield batches of preprocessed images in their order, read by worker processes."""
    workers = min(8, available_cores()) if workers is None else workers
    yield from DataLoader(_Images(paths, preprocess), batch_size, num_workers=workers, pin_memory=False)


@torch.inference_mode()
def logits(
    model: nn.Module,
    paths: Sequence[Path],
    preprocess: Preprocess,
    *,
    device: torch.device | str = "cpu",
    batch_size: int = 256,
    workers: int | None = None,
    bf16: bool = False,
    progress: Progress | None = None,
    description: str = "images",
) -> Iterator[Tensor]:
    """Yield the model's outputs batch by batch, on its device, in fp32.

    Args:
        model: A classifier in evaluation mode, on `device`.
        paths: Image files.
        preprocess: Turns an image into the model's input.
        device: Device of the model.
        batch_size: Images per forward pass.
        workers: Processes that decode images. Default: one per core, at most 8.
        bf16: Compute in bf16.
        progress: Called after every batch.
        description: Name of the work for `progress`.
    """
    device, done = torch.device(device), 0
    for batch in image_batches(paths, preprocess, batch_size, workers):
        images = batch.to(device, non_blocking=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            output = model(images)
        yield output.float()
        done += len(batch)
        if progress is not None:
            progress(description, done, len(paths))


def top1_error(outputs: Iterator[Tensor], labels: Sequence[int]) -> float:
    """Return the fraction of images whose largest output is not that of their label."""
    predicted = torch.cat([output.argmax(1) for output in outputs])
    correct = (predicted == torch.tensor(labels, device=predicted.device)).sum().item()
    return 1 - correct / len(labels)
