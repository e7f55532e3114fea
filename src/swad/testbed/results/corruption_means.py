"""Errors by corruption and severity as the numbers of tables and curves, of runs' own images and of ImageNet-C."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

GROUPS = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
}
"""The corruptions by kind, as ImageNet-C groups them."""
CORRUPTIONS = tuple(name for names in GROUPS.values() for name in names)
CLEAN = ("none", 0)
"""The images as they are."""
COMPARED = ("Clean", "Corrupted")
AXIS = "severity (0: clean)"


def mean_errors(errors: Mapping[tuple[str, int], float]) -> dict[str | float, float]:
    """Return the error of clean and of corrupted images, what corruption adds, and by kind; then by severity.

    >>> mean_errors({("none", 0): 0.25, ("fog", 1): 0.5, ("fog", 5): 1.0})
    {'Clean': 0.25, 'Corrupted': 0.75, 'Added': 0.5, 'weather': 0.75, 0: 0.25, 1: 0.5, 5: 1.0}
    """
    corrupted = {case: error for case, error in errors.items() if case != CLEAN}
    found: dict[str | float, float] = {}
    if CLEAN in errors:
        found["Clean"] = errors[CLEAN]
    if corrupted:
        found["Corrupted"] = fmean(corrupted.values())
    if len(found) == 2:
        found["Added"] = found["Corrupted"] - found["Clean"]
    for kind, names in GROUPS.items():
        if of_kind := [error for (name, _), error in corrupted.items() if name in names]:
            found[kind] = fmean(of_kind)
    for severity in sorted({severity for _, severity in errors}):
        found[severity] = fmean(error for (_, each), error in errors.items() if each == severity)
    return found
