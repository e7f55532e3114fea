"""Which networks there are: timm's, your own and the small one, and the images that each was made for."""

from __future__ import annotations

from typing import Any

from swad.testbed.models.own import FILES
from swad.testbed.models.weight_files import NetworkError
from swad.util.images import InputConfig
from swad.util.names import did_you_mean

DEFAULT = "resnet50.tv_in1k"
SMALL = "small"
"""The name of the network for low-resolution images (digits, MNIST)."""
SMALLEST, LARGEST = 28, 33
"""The range of image sizes that it accepts, in pixels."""
_NOT_TIMM = (SMALL, "resnet50_v1")


def input_config(name: str) -> InputConfig:
    """Return the images that a timm network was made for; ImageNet's usual ones if timm does not know.

    >>> input_config("vit_tiny_patch16_384")
    InputConfig(size=384, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5), crop=1.0, interpolation='bicubic')
    """
    require_known(name)
    known = pretrained_config(name)
    if known is None:
        return InputConfig()
    values = import_timm().data.resolve_data_config(pretrained_cfg=known.to_dict())
    _, height, width = values["input_size"]
    if height != width:
        raise NetworkError(f"{name} takes images of {height} × {width}, but ours are square: choose another network")
    mean, std = (tuple(map(float, values[name])) for name in ("mean", "std"))
    return InputConfig(height, mean, std, float(values["crop_pct"]), str(values["interpolation"]))


def is_own(name: str) -> bool:
    """Whether a network is your own: a file in a folder that SWAD_NETWORKS names."""
    if name not in FILES.names():
        return False
    if name == SMALL or import_timm().is_model(name):
        raise NetworkError(f"network names must be unique, but {name!r} exists already: rename your {name}.py")
    return True


def has_pretrained(name: str) -> bool:
    """Whether a network may have pretrained weights under its name."""
    return name != SMALL and not is_own(name)


def in_timm(name: str) -> bool:
    """Whether plain timm has the network."""
    return name not in _NOT_TIMM and not is_own(name)


def require_known(name: str) -> None:
    """Require that timm, or a file of your own, has this network; one of the hub, hf-hub:NAME, is known there."""
    timm = import_timm()
    if ":" in name or is_own(name) or timm.is_model(name):
        return
    known = [*timm.list_models(), *FILES.names(), SMALL]
    hint = did_you_mean(name.split(".")[0], known) or "timm.list_models() lists timm's."
    raise NetworkError(
        f"timm has no network {name!r}: {hint} For your own, name the folder of its file in SWAD_NETWORKS"
    )


def takes_image_size(name: str, image_size: int | None) -> bool:
    """Whether timm needs the size of the images: it differs from the fixed input size of a network (ViT)."""
    known = None if image_size is None else pretrained_config(name)
    return known is not None and bool(known.fixed_input_size) and image_size != known.input_size[-1]


def pretrained_config(name: str) -> Any:
    """Return timm's description of the pretrained weights of a name; None for networks of a hub and your own."""
    if ":" in name or is_own(name):
        return None
    try:
        return import_timm().models.get_pretrained_cfg(name, allow_unregistered=True)
    except RuntimeError as error:  # the part after the dot
        known = ", ".join(import_timm().list_pretrained(f"{name.split('.')[0]}.*")[:5]) or "none"
        raise NetworkError(f"timm has no weights {name!r} ({error}); it has {known}") from None


def import_timm() -> Any:
    """Import timm with the networks that we add to it."""
    try:
        import timm
        import timm.data

        import swad.testbed.models.resnet50_v1
    except ImportError:
        raise NetworkError("networks other than 'small' come from timm: pip install timm") from None
    assert swad.testbed.models.resnet50_v1  # imported because it registers its network with timm
    return timm
