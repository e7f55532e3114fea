"""ImageNet-R: renditions (art, cartoons, toys, ...) of 200 classes of ImageNet.

Hendrycks et al., "The Many Faces of Robustness", ICCV 2021. A classifier of 1,000 classes is judged among the 200: the
other outputs are masked before the largest is taken. Beside the accuracy stands that on the same 200 classes of
ImageNet itself, also masked, and the gap between the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from swad.robustness.folders import imagenet_classes, timm_list

N_IMAGES = 30_000
"""Images in the published set."""


@dataclass(frozen=True)
class Result:
    """Accuracies in percent."""

    accuracy: float
    """On ImageNet-R, among its 200 classes."""
    clean_accuracy: float | None = None
    """On the validation images of ImageNet of these classes, among the 200 classes."""

    @property
    def gap(self) -> float | None:
        """Points that are lost from ImageNet to ImageNet-R."""
        return None if self.clean_accuracy is None else self.clean_accuracy - self.accuracy


@cache
def classes() -> dict[str, int]:
    """Return the position of every class folder among the 200."""
    return {name: position for position, name in enumerate(sorted(timm_list("imagenet_r_synsets.txt")))}


@cache
def indices() -> tuple[int, ...]:
    """Return the outputs of a classifier of ImageNet-1k that belong to the 200 classes, in the order of `classes`."""
    return tuple(imagenet_classes()[name] for name in classes())


def masked(outputs: Iterator[Tensor]) -> Iterator[Tensor]:
    """Keep the outputs of the 200 classes."""
    for output in outputs:
        if output.shape[1] != len(imagenet_classes()):
            raise ValueError(
                f"ImageNet-R needs a classifier of the {len(imagenet_classes()):,} classes of ImageNet, "
                f"got {output.shape[1]:,} outputs"
            )
        yield output[:, torch.tensor(indices(), device=output.device)]
