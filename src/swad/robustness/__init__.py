"""Robustness of a classifier: corruptions for any images, ImageNet-C, ImageNet-R and the Background Challenge.

    noisy = swad.robustness.corruptions.corrupt(images, "gaussian_noise", severity=3)
    swad.robustness.imagenet_c.mce({"fog": [.2, .3, .4, .5, .6], ...})    # errors at severities 1 to 5

Modules are imported on first use.
"""

from __future__ import annotations

from swad.util.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__, {}, modules=("backgrounds", "corruptions", "imagenet_c", "imagenet_r"), extra="vision"
)

__all__ = ["backgrounds", "corruptions", "imagenet_c", "imagenet_r"]
