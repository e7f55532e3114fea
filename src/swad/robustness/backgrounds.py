"""The Background Challenge: does a classifier look at the object or at what is behind it?

Xiao et al., "Noise or Signal: The Role of Image Backgrounds in Object Recognition", ICLR 2021. ImageNet-9 has nine
coarse classes, in variations of the same images:

    original                    the image
    mixed_same, mixed_rand      the object on a background of its own class, or of a random class
    mixed_next                  ... of the next class
    only_fg, no_fg              the object alone; the image with the object cut out
    only_bg_b, only_bg_t        the background with the object's box black, or filled with background

A classifier of ImageNet-1k is right if its largest output belongs to the coarse class; 630 of the 1,000 belong to none
and count as wrong. The gap is the accuracy on mixed_same minus that on mixed_rand: what backgrounds are worth. In the
challenge itself an object counts only if it is recognized on *every* background of only_bg_t.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from swad.robustness.evaluation import default_batch_size, image_batches
from swad.robustness.imagenet import Labels, Part, read_class_folders
from swad.util.progress import Progress

FOLDERS = (
    "00_dog",
    "01_bird",
    "02_wheeled vehicle",
    "03_reptile",
    "04_carnivore",
    "05_insect",
    "06_musical instrument",
    "07_primate",
    "08_fish",
)
CLASSES = {name: label for label, name in enumerate(FOLDERS)}
VARIATIONS = (
    "original",
    "mixed_same",
    "mixed_rand",
    "mixed_next",
    "only_fg",
    "no_fg",
    "only_bg_b",
    "only_bg_t",
)

N_IMAGES = 4_050
"""Images of each variation: 450 of each class."""
MEAN, STD = (0.4717, 0.4499, 0.3837), (0.2600, 0.2516, 0.2575)
"""Normalization of classifiers of the nine classes, as their authors trained them."""
PREFIX = "backgrounds"
CHALLENGE = f"{PREFIX}/challenge"

_MEMBERS = (
    "151-170 173-268",
    "7-24 87-100 127-146",
    "407 408 428 436 444 468 511 547 555 561 565 569 573 586 603 609 612 627 656 661 665 670 671 675 690 705 717 734 "
    "751 757 791 802 803 817 820 829 847 864 866 867 870 880",
    "33-68",
    "269-280 286-299 356-362 387 388",
    "300-326",
    "401 402 420 432 486 494 513 541 546 558 566 577 579 593 594 641 642 683 684 687 699 776 822 875 881 889",
    "365-384",
    "0-6 389-397",
)
"""Classes of ImageNet-1k that belong to each of the nine."""


@cache
def class_map() -> Tensor:
    """Return the coarse class of each of the 1,000 classes of ImageNet; -1 for none."""
    coarse = torch.full((1000,), -1)
    for label, ranges in enumerate(_MEMBERS):
        for text in ranges.split():
            first, _, last = text.partition("-")
            coarse[int(first) : int(last or first) + 1] = label
    return coarse


@cache
def labels() -> Labels:
    """Return the labels: the nine classes. An answer that belongs to none is wrong."""
    return Labels(class_map())


def parts(root: str | os.PathLike[str]) -> list[Part]:
    """Return a part for each variation below `root`, or below its folder bg_challenge."""
    base = _base(root)
    return [
        Part(f"{PREFIX}/{name}", read_class_folders(base / name / "val", CLASSES), labels(), N_IMAGES, stored=True)
        for name in VARIATIONS
        if (base / name / "val").is_dir()
    ]


def _base(root: str | os.PathLike[str]) -> Path:
    for base in (Path(root) / "bg_challenge", Path(root)):
        if any((base / name / "val").is_dir() for name in VARIATIONS):
            return base
    raise ValueError(f"{root} holds no variation such as original/val: give the unpacked bg_challenge")


def missing_folders(root: str | os.PathLike[str]) -> list[str]:
    """Return which of the folders that the challenge needs are not there."""
    return [name for name in ("original", "only_bg_t", "fg_mask") if not (_base(root) / name / "val").is_dir()]


@dataclass(frozen=True)
class Challenge:
    """The objects and backgrounds of the challenge, as bytes on the device."""

    foregrounds: Tensor
    masks: Tensor
    """1 where the object is, `[objects, height, width]`."""
    labels: Tensor
    backgrounds: Tensor


@dataclass(frozen=True)
class ChallengeState:
    """How far the challenge is: the backgrounds that are done, and the objects that were recognized on all of them."""

    position: int
    recognized: tuple[int, ...]


def load_challenge(
    root: str | os.PathLike[str], device: torch.device, workers: int | None = None, progress: Progress | None = None
) -> Challenge:
    """Read objects, masks and backgrounds onto the device: 1.4 GB for the published 4,050 of each."""
    if missing := missing_folders(root):
        raise ValueError(f"the challenge needs the folder {missing[0]}/val in {root}: unpack the whole archive")
    base, by_name = _base(root), {part.name: part for part in parts(root)}
    originals, behind = by_name[f"{PREFIX}/original"], by_name[f"{PREFIX}/only_bg_t"]
    every_mask = [read_mask(base, path) for path in originals.images.paths]
    if len(sizes := {(mask.shape[0], mask.shape[1]) for mask in every_mask}) > 1:
        raise ValueError(f"masks of the challenge must have one size, got {sorted(sizes)} in {base}: restore the files")
    images: tuple[list[Tensor], list[Tensor]] = ([], [])
    done, total = 0, len(originals.images) + len(behind.images)
    for number, batch in image_batches([originals, behind], sizes.pop(), device, workers=workers):
        images[number].append(batch)
        done += len(batch)
        if progress is not None:
            progress("read backgrounds", done, total)
    foregrounds, backgrounds = map(torch.cat, images)
    answers = torch.from_numpy(originals.images.labels).to(device)
    return Challenge(foregrounds, torch.stack(every_mask).to(device), answers, backgrounds)


@torch.inference_mode()
def recognized_objects(
    predict: Callable[[Tensor], Tensor],
    challenge: Challenge,
    *,
    state: ChallengeState | None = None,
    batch_size: int | None = None,
    on_round: Callable[[ChallengeState], None] | None = None,
    progress: Progress | None = None,
) -> tuple[int, ...]:
    """Return the numbers of the objects that are recognized on every background.

    An object on a background is `background * (1 - mask) + foreground * mask`. Each background in turn gets all objects
    that were recognized so far: an object is given up at its first wrong answer, and batches stay full. Backgrounds are
    shuffled, since those of one class are alike; the order does not change the result.

    Args:
        predict: From images between 0 and 1 to coarse classes.
        challenge: Objects, masks and backgrounds.
        state: Where an interrupted call stopped.
        batch_size: Composed images per forward pass. Default: 256 on a GPU, 32 on a CPU.
        on_round: Called after one or several backgrounds with the state to resume from.
        progress: Called with the number of images done, and that number plus the most that may still be needed.
    """
    device, n_backgrounds = challenge.backgrounds.device, len(challenge.backgrounds)
    batch_size = batch_size or default_batch_size(device)
    order = torch.randperm(n_backgrounds, generator=torch.Generator().manual_seed(0)).to(device)
    position = 0 if state is None else state.position
    everything = range(len(challenge.labels))
    left = torch.tensor([*(everything if state is None else state.recognized)], dtype=torch.long, device=device)
    done = 0
    while position < n_backgrounds and len(left):
        behind = order[position : position + max(1, batch_size // len(left))]
        objects, scenes = left.repeat_interleave(len(behind)), behind.repeat(len(left))
        correct = [
            predict(_compose(challenge, some, scene)) == challenge.labels[some]
            for some, scene in zip(torch.split(objects, batch_size), torch.split(scenes, batch_size), strict=True)
        ]
        left = left[torch.cat(correct).view(len(left), len(behind)).all(1)]
        position, done = position + len(behind), done + len(objects)
        if on_round is not None:
            on_round(ChallengeState(position, tuple(left.tolist())))
        if progress is not None:
            progress("challenge", done, done + len(left) * (n_backgrounds - position))
    return tuple(left.tolist())


def _compose(challenge: Challenge, objects: Tensor, scenes: Tensor) -> Tensor:
    mask = challenge.masks[objects].unsqueeze(1).float()
    foregrounds, backgrounds = challenge.foregrounds[objects], challenge.backgrounds[scenes]
    return (backgrounds * (1 - mask) + foregrounds * mask) / 255


def read_mask(root: Path, image: Path) -> Tensor:
    """Return the mask of an image of the variation original: fg_mask/val/CLASS/NAME.npy."""
    path = root / "fg_mask" / "val" / image.parent.name / f"{image.stem}.npy"
    try:
        mask = np.load(path, allow_pickle=False)
    except OSError as error:
        raise ValueError(
            f"cannot read {path} ({error.strerror}): the challenge needs the mask of every image"
        ) from None
    except ValueError as error:
        raise ValueError(f"{path} is not a mask ({error}): restore the file") from None
    if mask.ndim != 2:
        raise ValueError(f"{path} must have the shape [height, width], got {mask.shape}: restore the file")
    if not ((mask == 0) | (mask == 1)).all():
        raise ValueError(f"{path} must hold 0 and 1 only: restore the file")
    return torch.from_numpy(mask.astype(bool))
