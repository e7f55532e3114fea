"""The settings of the training augmentation, for both input pipelines."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from swad.util.options import Bounds, problem


def _share(default: float, minimum: float = 0, maximum: float = 1) -> Any:
    return dataclasses.field(default=default, metadata={"bounds": Bounds(minimum, maximum)})


@dataclass(frozen=True)
class Augmentation:
    """Random crop, flip, color jitter and grayscale, in this order; the defaults are DomainBed's.

    Args:
        crop: Smallest share of the image's area in a crop with an aspect ratio of 3/4 to 4/3; 1 for the whole image.
        flip: Probability of a horizontal flip.
        jitter: Largest change of brightness, contrast, saturation and hue; 0 for none.
        grayscale: Probability of a gray image.
    """

    crop: float = _share(0.7, minimum=0.01)
    flip: float = _share(0.5)
    jitter: float = _share(0.3, maximum=0.5)
    grayscale: float = _share(0.1)

    def problems(self) -> list[str]:
        """Return what is wrong with the values, one sentence each.

        >>> Augmentation(crop=0.8, jitter=0.6).problems()
        ['jitter of the augmentation must be a number from 0 to 0.5, got 0.6']
        """
        problems = (
            problem(f"{one.name} of the augmentation", getattr(self, one.name), (float,), one.metadata["bounds"])
            for one in dataclasses.fields(self)
        )
        return list(filter(None, problems))
