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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from swad.robustness.folders import ClassFolders, read_class_folders
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


@dataclass(frozen=True)
class Result:
    """Accuracies in percent; None where the images were not there."""

    accuracy: Mapping[str, float] = field(default_factory=dict)
    """By variation."""
    challenge: float | None = None

    @property
    def gap(self) -> float | None:
        """Accuracy on mixed_same minus accuracy on mixed_rand."""
        same, rand = self.accuracy.get("mixed_same"), self.accuracy.get("mixed_rand")
        return None if same is None or rand is None else same - rand


@cache
def class_map() -> Tensor:
    """Return the coarse class of each of the 1,000 classes of ImageNet; -1 for none."""
    coarse = torch.full((1000,), -1)
    for label, ranges in enumerate(_MEMBERS):
        for text in ranges.split():
            first, _, last = text.partition("-")
            coarse[int(first) : int(last or first) + 1] = label
    return coarse


def coarse_predictions(outputs: Tensor) -> Tensor:
    """Return the coarse class of the largest output; -1 for a class that belongs to none.

    A classifier of the nine classes themselves is taken as it is.
    """
    predicted = outputs.argmax(1)
    if outputs.shape[1] == len(FOLDERS):
        return predicted
    if outputs.shape[1] != len(class_map()):
        raise ValueError(
            f"the Background Challenge needs a classifier of the 1,000 classes of ImageNet or of its 9, "
            f"got {outputs.shape[1]:,} outputs"
        )
    return class_map().to(outputs.device)[predicted]


def find_variations(root: Path) -> dict[str, ClassFolders]:
    """Return the images of every variation below `root`, or below its folder bg_challenge."""
    base = root / "bg_challenge" if (root / "bg_challenge").is_dir() else root
    found = {
        name: read_class_folders(base / name / "val", CLASSES) for name in VARIATIONS if (base / name / "val").is_dir()
    }
    if not found:
        raise ValueError(f"{root} holds no variation such as original/val: unpack the archive of the challenge")
    return found


@torch.inference_mode()
def challenge_accuracy(
    predict: Callable[[Tensor], Tensor],
    foregrounds: Sequence[Tensor],
    masks: Sequence[Tensor],
    labels: Sequence[int],
    backgrounds: Tensor,
    *,
    batch_size: int = 256,
    progress: Progress | None = None,
) -> float:
    """Return the percentage of objects that are recognized on every background.

    An object on a background is `background * (1 - mask) + foreground * mask`. An object is given up at its first wrong
    answer, so a weak classifier costs far fewer than foregrounds x backgrounds images.

    Args:
        predict: From images between 0 and 1 to coarse classes.
        foregrounds: Images of the objects, `[3, height, width]` each, between 0 and 1.
        masks: 1 where the object is, `[height, width]` each.
        labels: Coarse class of every object.
        backgrounds: All backgrounds, `[backgrounds, 3, height, width]`, on the device of the model: bytes or floats
            between 0 and 1.
        batch_size: Composed images per forward pass.
        progress: Called after every object.
    """
    recognized = 0
    for done, (foreground, mask, label) in enumerate(zip(foregrounds, masks, labels, strict=True), start=1):
        foreground, mask = foreground.to(backgrounds.device), mask.to(backgrounds.device).float()
        correct = True
        for batch in torch.split(backgrounds, batch_size):
            images = batch.float() / 255 if batch.dtype == torch.uint8 else batch
            composed = images * (1 - mask) + foreground * mask
            if not bool((predict(composed) == label).all()):
                correct = False
                break
        recognized += correct
        if progress is not None:
            progress("Background Challenge", done, len(labels))
    return 100 * recognized / len(labels)


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
        raise ValueError(f"{path} is no mask ({error}): restore the file") from None
    if mask.ndim != 2:
        raise ValueError(f"{path} must have the shape [height, width], got {mask.shape}: restore the file")
    return torch.from_numpy(mask.astype(np.float32))
