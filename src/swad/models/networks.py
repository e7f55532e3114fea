"""Predictors: any timm backbone by name with one linear head, or a small network for small images.

A predictor is a plain module: images in, class scores out. A timm predictor *is* the timm model, nothing around
it, so its weights load wherever timm is installed:

    model = timm.create_model(name, num_classes=n)
    model.load_state_dict(safetensors.torch.load_file("swad.safetensors"))

Dropout before the head is not part of the module: its mask is drawn beforehand and passed to `scores`, so that the
same step can be computed twice and the saved model has nothing to switch off.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from swad.models.small_cnn import SmallNet

DEFAULT = "resnet50.tv_in1k"
SMALL = "small"
"""The name of the network for small images (digits, MNIST)."""
SMALLEST, LARGEST = 28, 33
"""Rows and columns it takes."""


class NetworkError(ValueError):
    """A network that cannot be built or filled; the message is one line that says what to do."""


def build(
    name: str,
    n_classes: int,
    *,
    weights: str | Path | None = None,
    channels: int = 3,
    freeze_bn: bool = True,
) -> nn.Module:
    """Build a predictor with a fresh head for `n_classes`.

    `weights` is None for a random start, "pretrained" for timm's weights of that name, or a safetensors file.
    With `freeze_bn` the statistics of batch norms never change, while their scale and shift are trained.
    """
    if name == SMALL:
        model: nn.Module = SmallNet(n_classes, channels)
        if weights == "pretrained":
            raise NetworkError("the network 'small' has no pretrained weights: leave them out or give a file")
    else:
        model = _timm(name, n_classes, channels, weights == "pretrained")
    if weights is not None and weights != "pretrained":
        load_backbone(model, Path(weights))
    if freeze_bn:
        freeze_statistics(model)
    return model


def scores(predictor: nn.Module, images: Tensor, keep: Tensor | None = None) -> Tensor:
    """Class scores, with the features before the head multiplied by `keep`, a dropout mask, where one is given."""
    if keep is None:
        return cast(Tensor, predictor(images))
    return cast(Tensor, head(predictor)(features(predictor, images) * keep))


def features(predictor: nn.Module, images: Tensor) -> Tensor:
    """What the head sees of every image: one row of numbers each."""
    model = cast(Any, predictor)
    return cast(Tensor, model.forward_head(model.forward_features(images), pre_logits=True))


def head(predictor: nn.Module) -> nn.Linear:
    """The one linear layer at the end."""
    layer = cast(Any, predictor).get_classifier()
    if not isinstance(layer, nn.Linear):
        raise NetworkError(
            f"dropout, and methods that look at features, need a network with one linear head, got "
            f"{type(layer).__name__} in {type(predictor).__name__}: choose another network, or ERM without dropout"
        )
    return layer


def stages(model: nn.Module) -> list[nn.Module]:
    """The parts whose outputs are a network's maps of features, from fine to coarse: four, where it has so many.

    timm says where a map is 4, 8, 16 and 32 times coarser than the image: a ResNet's four residual stages. Where all
    blocks keep one resolution (ViT) it is every quarter of the blocks; the small network has its two convolutions.
    """
    return [stage for stage, _ in _stages(model)]


def channels(model: nn.Module) -> list[int]:
    """Channels of the maps that `stages` put out."""
    return [count for _, count in _stages(model)]


def _stages(model: nn.Module) -> list[tuple[nn.Module, int]]:
    if isinstance(model, SmallNet):
        return [(stage, cast(nn.Conv2d, stage[0]).out_channels) for stage in (model.stem, model.body)]
    info = getattr(model, "feature_info", ())
    known = {one["module"]: one for one in getattr(info, "info", info)}
    names = {name: one["reduction"] for name, one in known.items()}
    blocks = list(names)
    if not blocks:
        raise NetworkError(f"{type(model).__name__} names no stages of its own: choose a network that timm takes apart")
    if len(set(names.values())) == 1:
        chosen = sorted({blocks[-(-len(blocks) * quarter // 4) - 1] for quarter in (1, 2, 3, 4)}, key=blocks.index)
    else:
        chosen = [name for name, coarser in names.items() if coarser >= 4]
    try:
        return [(model.get_submodule(name), known[name]["num_chs"]) for name in chosen]
    except AttributeError:  # of some networks timm names maps, and not modules
        raise NetworkError(
            f"{type(model).__name__} has stages that are no modules of their own: choose another network"
        ) from None


# --- batch norm -------------------------------------------------------------------------------------------------


def batch_norms(model: nn.Module) -> list[nn.Module]:
    """The batch norms of a model."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


def freeze_statistics(model: nn.Module) -> None:
    """Keep the batch norms in evaluation mode for good, whatever `train()` says; scale and shift stay trainable.

    Batches mix domains with statistics of their own, and few images each: the statistics of ImageNet serve better.
    """
    for module in batch_norms(model):
        module.eval()
        # On the instance, so that the model's class, and with it what timm can load, stays as it is.
        module.__dict__["train"] = _NoOpTrain(module)


def is_frozen(module: nn.Module) -> bool:
    """Whether `freeze_statistics` froze this batch norm."""
    return isinstance(module.__dict__.get("train"), _NoOpTrain)


class _NoOpTrain:
    """A `train` that changes nothing."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self, mode: bool = True) -> nn.Module:
        return self.module


# --- weights from files -----------------------------------------------------------------------------------------


def load_backbone(model: nn.Module, path: Path) -> None:
    """Fill all but the head from a safetensors file with timm's names, of any floating-point precision.

    The file's own head is dropped. Anything else that is missing, left over or of another shape is an error.
    """
    stored = read_safetensors(path)
    heads = _head_prefixes(model)
    own = model.state_dict()
    wanted = {name for name in own if not name.startswith(heads)}
    offered = {name: tensor for name, tensor in stored.items() if not name.startswith(heads)}
    # A counter that nothing here reads, and that half of the files in circulation lack.
    missing = sorted(name for name in wanted - offered.keys() if not name.endswith("num_batches_tracked"))
    unknown = sorted(offered.keys() - wanted)
    unlike = sorted(
        f"{name} {_shape(offered[name])} instead of {_shape(own[name])}"
        for name in wanted & offered.keys()
        if offered[name].shape != own[name].shape
    )
    faults = [
        f"{words} {_some(names)}"
        for words, names in (("it lacks", missing), ("it has unknown", unknown), ("it has", unlike))
        if names
    ]
    if faults:
        raise NetworkError(
            f"{path} does not fit {type(model).__name__}: {'; '.join(faults)}; "
            "give the file that belongs to the network, with timm's names"
        )
    with torch.no_grad():
        for name in wanted & offered.keys():
            own[name].copy_(offered[name])


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name; one that cannot be read is named."""
    try:
        from safetensors.torch import load_file
    except ImportError:
        raise NetworkError("reading weights needs safetensors: pip install safetensors") from None
    try:
        return dict(load_file(path))
    except FileNotFoundError:
        raise NetworkError(f"there is no weights file {path}: check the path") from None
    except Exception as error:  # safetensors raises its own class, and OSError for folders and broken disks
        reason = " ".join(str(error).split())
        raise NetworkError(f"cannot read {path} as safetensors: {reason}; give a whole .safetensors file") from None


def _timm(name: str, n_classes: int, channels: int, pretrained: bool) -> nn.Module:
    try:
        import timm
    except ImportError:
        raise NetworkError("networks other than 'small' come from timm: pip install timm") from None
    try:
        model = timm.create_model(name, pretrained=pretrained, num_classes=n_classes, in_chans=channels)
    except Exception as error:  # whatever timm, the hub or the network raise: the cause is in the text
        reason = " ".join(str(error).split())[:200]
        if not timm.is_model(name):
            near = timm.list_models(f"*{name.split('.')[0][:6]}*")[:5]
            like = ", ".join([*near, SMALL])
            hint = f"names like it: {like}" if near else f"see timm.list_models(), or use {SMALL!r}"
            raise NetworkError(f"timm has no network {name!r} ({reason}); {hint}") from None
        if pretrained:
            raise NetworkError(
                f"cannot get the pretrained weights of {name}: {reason}; give a local safetensors file as weights, "
                "or go online"
            ) from None
        raise NetworkError(f"timm cannot build {name}: {reason}") from None
    if isinstance(layer := model.get_classifier(), nn.Linear):
        # A fresh head as every linear layer of torch, whatever the family: that of timm's EfficientNets and MobileNets
        # is 13 times as wide for 7 classes and gives a first loss of 8 instead of 2, which spoils the features.
        layer.reset_parameters()
    _disable_stochastic(model)
    return cast(nn.Module, model)


def _disable_stochastic(model: nn.Module) -> None:
    """Take away what a network drops at random by itself (Swin: whole blocks), which nobody asked for.

    A step that is computed twice, as SAM's and VAT's are, or by several processes, must be the same step.
    """
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name in ("drop_prob", "prob"):  # timm's DropPath and DropBlock, and PatchDropout
            if type(module).__module__.startswith("timm.") and isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


def _head_prefixes(model: nn.Module) -> tuple[str, ...]:
    named = getattr(model, "pretrained_cfg", {}).get("classifier", "head")
    return tuple(f"{one}." for one in ((named,) if isinstance(named, str) else named))


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "scalar"


def _some(names: Iterable[str], limit: int = 4) -> str:
    names = list(names)
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
