"""The settings of the training augmentation, for both input pipelines."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass


@dataclass(frozen=True)
class Augmentation:
    """Random crop, flip, color jitter and grayscale, in this order; the defaults are DomainBed's.

    Args:
        crop: Smallest share of the image's area in a crop with an aspect ratio of 3/4 to 4/3; 1 for the whole image.
        flip: Probability of a horizontal flip.
        jitter: Largest change of brightness, contrast, saturation and hue; 0 for none.
        grayscale: Probability of a gray image.
    """

    crop: float = 0.7
    flip: float = 0.5
    jitter: float = 0.3
    grayscale: float = 0.1

    def problems(self) -> list[str]:
        """Return what is wrong with the values, one sentence each.

        >>> Augmentation(crop=0.8, jitter=0.6).problems()
        ['jitter of the augmentation must be from 0 to 0.5, got 0.6']
        """
        problems = []
        for name, value in dataclasses.asdict(self).items():
            low, high = (0.01, 1) if name == "crop" else (0, 0.5 if name == "jitter" else 1)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                problems.append(f"{name} of the augmentation must be from {low:g} to {high:g}, got {value!r}")
        return problems
