"""Robustness of a classifier: corruptions for any images, ImageNet-C, ImageNet-R and the Background Challenge.

    noisy = swad.robustness.corruptions.corrupt(images, "gaussian_noise", severity=3)
    swad.robustness.imagenet_c.mce({"fog": [.2, .3, .4, .5, .6], ...})    # errors at severities 1 to 5

Modules are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import Any

from swad.util.packages import require_extra

__all__ = ["backgrounds", "corruptions", "imagenet_c", "imagenet_r"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        with require_extra(f"swad.robustness.{name}", "vision"):
            return importlib.import_module(f"swad.robustness.{name}")
    raise AttributeError(f"module 'swad.robustness' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
