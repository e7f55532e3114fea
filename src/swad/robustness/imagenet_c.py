"""ImageNet-C: errors under 15 corruptions at five severities, and the scores that papers make of them.

Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations", ICLR 2019.
With E(c, s) the error under corruption c at severity s, and A(c, s) that of AlexNet:

    mCE            mean over c of  sum_s E(c, s) / sum_s A(c, s)
    relative mCE   mean over c of  sum_s (E(c, s) - E_clean) / sum_s (A(c, s) - A_clean)
    mean error     mean of E(c, s) over c and s, without AlexNet

Papers print each of the three as "mCE", so every number here is named. The official script prints the mean error over
19 corruptions: the 15 and four more, which were meant for validation.

>>> mce(ALEXNET_ERRORS)
100.0
>>> round(mean_error(ALEXNET_ERRORS), 2)
78.9
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence, Sized
from pathlib import Path

from swad.robustness import imagenet
from swad.robustness.corruptions import CORRUPTIONS, SEVERITIES
from swad.robustness.imagenet import Part, imagenet_classes, read_class_folders
from swad.util.names import did_you_mean, listed
from swad.util.progress import Progress
from swad.util.statistics import mean

Errors = Mapping[str, Sequence[float]]
"""By corruption: the error at severities 1 to 5, as fractions."""

ALEXNET_ERRORS: Errors = {
    "gaussian_noise": (0.69528, 0.82542, 0.93554, 0.98138, 0.99452),
    "shot_noise": (0.71224, 0.85108, 0.93574, 0.98182, 0.99146),
    "impulse_noise": (0.78374, 0.89808, 0.94870, 0.98720, 0.99548),
    "defocus_blur": (0.65624, 0.73202, 0.85036, 0.91364, 0.94714),
    "glass_blur": (0.64308, 0.75054, 0.88806, 0.91622, 0.93344),
    "motion_blur": (0.58430, 0.70048, 0.82108, 0.89750, 0.92638),
    "zoom_blur": (0.70008, 0.76992, 0.80784, 0.84198, 0.87198),
    "snow": (0.71726, 0.88392, 0.86468, 0.91870, 0.94952),
    "frost": (0.61390, 0.79734, 0.88790, 0.89942, 0.93430),
    "fog": (0.67474, 0.76050, 0.84378, 0.87260, 0.94500),
    "brightness": (0.45140, 0.48502, 0.54048, 0.62166, 0.72440),
    "contrast": (0.64548, 0.76150, 0.88874, 0.97760, 0.99270),
    "elastic_transform": (0.52596, 0.70116, 0.55686, 0.64076, 0.80554),
    "pixelate": (0.52218, 0.54620, 0.73728, 0.87092, 0.91262),
    "jpeg_compression": (0.51002, 0.54718, 0.57294, 0.65458, 0.74778),
}
"""The errors of AlexNet that mCE is normalized by, as the authors published them."""

ALEXNET_CLEAN_ERROR = 0.43478
"""AlexNet's error on ImageNet itself, for the relative mCE."""

EXTRA = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
"""The four further corruptions, in the folder `extra`."""

PREFIX = "imagenet-c"


def mce(errors: Errors, names: Sequence[str] = tuple(CORRUPTIONS)) -> float:
    """Return the mean corruption error in percent, normalized by AlexNet.

    Args:
        errors: By corruption, the error at severities 1 to 5 as fractions.
        names: The corruptions to average over. Default: all 15; do not compare an mCE over fewer with papers.
    """
    _require(errors, names, of_alexnet=True)
    return 100 * mean(sum(errors[name]) / sum(ALEXNET_ERRORS[name]) for name in names)


def relative_mce(errors: Errors, clean_error: float, names: Sequence[str] = tuple(CORRUPTIONS)) -> float:
    """Return the relative mean corruption error in percent: how much corruptions add, compared with AlexNet.

    Args:
        errors: By corruption, the error at severities 1 to 5 as fractions.
        clean_error: The error on uncorrupted images, as a fraction.
        names: The corruptions to average over. Default: all 15.
    """
    _require(errors, names, of_alexnet=True)
    if not 0 <= clean_error <= 1:
        raise ValueError(f"the clean error must be a fraction from 0 to 1, got {clean_error:g}: divide percent by 100")
    return 100 * mean(
        sum(error - clean_error for error in errors[name])
        / sum(error - ALEXNET_CLEAN_ERROR for error in ALEXNET_ERRORS[name])
        for name in names
    )


def mean_error(errors: Errors, names: Sequence[str] = tuple(CORRUPTIONS)) -> float:
    """Return the mean error in percent over corruptions and severities, without normalization.

    Args:
        errors: By corruption, the error at severities 1 to 5 as fractions.
        names: The corruptions to average over. Default: the 15; with `EXTRA` the official script's 19.
    """
    _require(errors, names)
    return 100 * mean(mean(errors[name]) for name in names)


def _require(errors: Errors, names: Sequence[str], of_alexnet: bool = False) -> None:
    """Require the error of every corruption at every severity, and if asked for, that AlexNet's are known."""
    if isinstance(names, str):
        raise TypeError(f"names must be a list of corruptions, got {names!r}: pass [{names!r}]")
    known = {*CORRUPTIONS, *EXTRA}
    problems = [
        f"there is no corruption {name!r}: {did_you_mean(name, known) or ', '.join(CORRUPTIONS)}"
        for name in errors
        if name not in known
    ]
    if not names:
        problems.append("no corruption was given: name at least one")
    if of_alexnet and (unknown := [name for name in names if name in EXTRA]):
        problems.append(f"AlexNet's errors under {', '.join(unknown)} are not known: use mean_error")
    if missing := [name for name in names if name not in errors]:
        problems.append(f"the errors of {', '.join(missing)} are missing")
    lengths = {name: len(values) if isinstance(values, Sized) else 1 for name, values in errors.items()}
    if short := [name for name, length in lengths.items() if length != len(SEVERITIES)]:
        got = f"got {lengths[short[0]]} for {listed(short)}"
        problems.append(f"every corruption needs an error for each of {len(SEVERITIES)} severities, {got}")
    full = {name: list(values) for name, values in errors.items() if name not in short}
    if outside := [name for name, values in full.items() if not all(0 <= value <= 1 for value in values)]:
        got = f"got {full[outside[0]]} for {listed(outside)}"
        problems.append(f"errors must be fractions from 0 to 1, {got}: divide percent by 100")
    if problems:
        raise ValueError("; ".join(problems))


def find_folders(root: str | os.PathLike[str]) -> dict[tuple[str, int], Path]:
    """Return the folder of every corruption and severity below `root`.

    The archives nest the corruptions in noise, blur, weather, digital and extra; both layouts are found.
    """
    root = Path(root)
    if not root.is_dir():
        raise ValueError(f"{root} is not a folder: give the one that ImageNet-C was unpacked into")
    folders: dict[tuple[str, int], Path] = {}
    for name in (*CORRUPTIONS, *EXTRA):
        for base in (root / name, *sorted(root.glob(f"*/{name}"))):
            for severity in SEVERITIES:
                if (base / str(severity)).is_dir():
                    folders.setdefault((name, severity), base / str(severity))
    if not folders:
        raise ValueError(
            f"{root} holds no folder CORRUPTION/SEVERITY such as gaussian_noise/1: give the one that the archives of "
            "ImageNet-C were unpacked into"
        )
    return folders


def parts(root: str | os.PathLike[str], progress: Progress | None = None) -> list[Part]:
    """Return a part for every corruption and severity that is there, in the order of `find_folders`.

    Args:
        root: Directory of the corruptions, or of the unpacked archives.
        progress: Called after every folder: listing 4.75 million files takes a while.
    """
    found, folders = [], find_folders(root)
    for (name, severity), folder in folders.items():
        images = read_class_folders(folder, imagenet_classes())
        part = Part(f"{PREFIX}/{name}/{severity}", images, imagenet.labels(), imagenet.N_IMAGES, stored=True)
        found.append(part)
        if progress is not None:
            progress("find the images of ImageNet-C", len(found), len(folders))
    return found
