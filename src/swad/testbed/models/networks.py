"""Predictors: any timm backbone by name with one linear head, a small network for low-resolution images, or your own.

A predictor is a plain module from images to class scores. A timm predictor *is* the timm model, without a wrapper, so
its weights load wherever timm is installed:

    model = timm.create_model(name, num_classes=n)
    model.load_state_dict(safetensors.torch.load_file("swad.safetensors"))

Dropout before the head is not part of the module. Algorithms draw its mask beforehand and multiply the `features`, so
that the same step can be computed twice, and the saved model has no dropout to switch off.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from swad.tensors.batch_norms import batch_norms
from swad.testbed.models.catalog import DEFAULT as DEFAULT
from swad.testbed.models.catalog import SMALL as SMALL
from swad.testbed.models.catalog import (
    has_pretrained,
    import_timm,
    input_config,
    is_own,
    pretrained_config,
    require_known,
    takes_image_size,
)
from swad.testbed.models.own import FILES
from swad.testbed.models.small_cnn import SmallNet
from swad.testbed.models.weight_files import NetworkError as NetworkError
from swad.testbed.models.weight_files import head_prefixes, load_weights, read_safetensors
from swad.util.names import listed, one_line

_HUB_PREFIXES = ("hf-hub:", "hf_hub:")
_FILES = (
    "model.safetensors",
    "pytorch_model.bin",
    "open_clip_model.safetensors",
    "open_clip_pytorch_model.bin",
)
"""Weights of a repository, in the order in which timm asks for them; the latter two of CLIP's networks."""

_OTHER_SCORES = "_scores_are_not_of_the_head"


def build(
    name: str,
    n_classes: int,
    *,
    weights: str | Path = "random",
    channels: int = 3,
    freeze_bn: bool = True,
    image_size: int | None = None,
    log: Callable[[str], None] = print,
) -> nn.Module:
    """Build a predictor with a fresh head.

    Args:
        name: A timm model name, "resnet50_v1", "small", or the name of your own file (`swad.testbed.models.own`).
        n_classes: Number of classes.
        weights: "random", "pretrained" for timm's weights of that name, or a safetensors file.
        channels: Channels of the images.
        freeze_bn: Never change the statistics of batch norms; their scale and shift are trained.
        image_size: Height and width of the images; a network that cannot take them is refused. Default: the network's.
        log: Called with a message before weights are downloaded.
    """
    own_network = is_own(name)
    if weights == "pretrained" and not has_pretrained(name):
        raise NetworkError(f"the network {name!r} has no pretrained weights: use random ones or a safetensors file")
    if name == SMALL:
        model: nn.Module = SmallNet(n_classes, channels)
    elif own_network:
        model = _own(name, n_classes, channels)
    else:
        model = _timm(name, n_classes, channels, weights == "pretrained", image_size, log)
    if name != SMALL and image_size is not None:
        _require_fitting(model, name, n_classes, channels, image_size)
    if weights not in ("random", "pretrained"):
        load_weights(model, read_safetensors(Path(weights)), Path(weights), ignore=head_prefixes(model))
    if freeze_bn:
        freeze_statistics(model)
    return model


def build_classifier(name: str, weights: Path | None = None) -> nn.Module:
    """Build a timm network with the head of its weights.

    Args:
        name: A timm model name, with the tag of its weights: resnet50.tv_in1k.
        weights: A safetensors file with timm's names. Default: timm's weights of that name, from the hub.
    """
    instead = f"name a local safetensors file ({name}=FILE)"
    if weights is None:
        return _create(name, instead, pretrained=True)
    stored = read_safetensors(weights)
    model = _create(name, instead)
    n_outputs = {len(stored[head]) for prefix in head_prefixes(model) if (head := f"{prefix}bias") in stored}
    if n_outputs and n_outputs != {getattr(model, "num_classes", None)}:
        model = _create(name, instead, num_classes=max(n_outputs))
    load_weights(model, stored, weights)
    return model


def scores(predictor: nn.Module, images: Tensor) -> Tensor:
    """Return class scores."""
    return cast(Tensor, predictor(images))


def features(predictor: nn.Module, images: Tensor) -> Tensor:
    """Return the features before the head, one row for every image."""
    model = cast(Any, predictor)
    missing = [name for name in ("forward_features", "forward_head") if not hasattr(model, name)]
    if missing:
        raise _no_features(predictor, f"without {' and '.join(missing)}")
    return cast(Tensor, model.forward_head(model.forward_features(images), pre_logits=True))


def head(predictor: nn.Module) -> nn.Linear:
    """Return the linear layer at the end of the network."""
    layer = cast(Any, predictor).get_classifier() if hasattr(predictor, "get_classifier") else None
    if not isinstance(layer, nn.Linear):
        raise _no_features(predictor, "without get_classifier" if layer is None else f"with {type(layer).__name__}")
    if getattr(predictor, _OTHER_SCORES, False):
        raise _no_features(predictor, "whose scores are not those of its head for its features")
    return layer


def _no_features(predictor: nn.Module, reason: str) -> NetworkError:
    return NetworkError(
        "dropout, and algorithms that use features, need a network with timm's forward_features, forward_head and "
        f"get_classifier, which returns one linear head; got {type(predictor).__name__} {reason}: choose another "
        "network, or ERM without dropout"
    )


def stages(model: nn.Module) -> list[nn.Module]:
    """Return the modules whose outputs are the network's feature maps, from fine to coarse: at most four.

    timm says which modules make maps that are 4, 8, 16 and 32 times coarser than the image. In a ResNet these are the
    four residual stages. If all blocks have one resolution (ViT), the stages are quarters of the blocks. The small
    network has two stages, its convolutions.
    """
    return [stage for stage, _ in _stages(model)]


def channels(model: nn.Module) -> list[int]:
    """Return the number of channels after each of the `stages`."""
    return [count for _, count in _stages(model)]


def stem(model: nn.Module) -> list[tuple[nn.Module, int]]:
    """Return the module that ends the stem, before the first of the `stages`, and its channels; [] if there is none.

    The stem ends with the max pooling in a ResNet, the convolution of the patches in a ViT, and the last module with a
    finer map than the first stage's in other networks. In the small network, the stem is a stage.
    """
    patches = getattr(getattr(model, "patch_embed", None), "proj", None)
    if isinstance(patches, nn.Conv2d):
        return [(patches, patches.out_channels)]
    if isinstance(model, SmallNet):
        return []
    finer = [entry for entry in _feature_info(model) if entry["reduction"] < 4]
    if finer and isinstance(pooling := getattr(model, "maxpool", None), nn.Module):
        return [(pooling, finer[-1]["num_chs"])]
    return [(model.get_submodule(entry["module"]), entry["num_chs"]) for entry in finer[-1:]]


def _stages(model: nn.Module) -> list[tuple[nn.Module, int]]:
    if isinstance(model, SmallNet):
        return [(stage, cast(nn.Conv2d, stage[0]).out_channels) for stage in (model.stem, model.body)]
    entries = {entry["module"]: entry for entry in _feature_info(model)}
    names = list(entries)
    if not names:
        raise NetworkError(
            f"stages need timm's feature_info, which {type(model).__name__} does not have: choose another network"
        )
    if len({entry["reduction"] for entry in entries.values()}) == 1:
        chosen = sorted({names[-(-len(names) * quarter // 4) - 1] for quarter in (1, 2, 3, 4)}, key=names.index)
    else:
        chosen = [name for name in names if entries[name]["reduction"] >= 4]
    try:
        return [(model.get_submodule(name), entries[name]["num_chs"]) for name in chosen]
    except AttributeError:  # for some networks timm names feature maps that no module puts out
        raise NetworkError(
            f"the stages of a network must be modules, but those of {type(model).__name__} are not: choose another "
            "network"
        ) from None


def _feature_info(model: nn.Module) -> list[dict[str, Any]]:
    info = getattr(model, "feature_info", [])
    return cast(list[dict[str, Any]], getattr(info, "info", info))


# --- batch norm -------------------------------------------------------------------------------------------------


def freeze_statistics(model: nn.Module) -> None:
    """Keep the batch norms in evaluation mode, whatever `train()` says; scale and shift stay trainable.

    A batch mixes a few images of several domains, each with statistics of its own. The statistics of ImageNet work
    better.
    """
    for module in batch_norms(model):
        module.eval()
        # Replaced on the instance, so that the model keeps its class and its state dict still loads in timm.
        module.__dict__["train"] = _NoOpTrain(module)


def is_frozen(module: nn.Module) -> bool:
    """Whether `freeze_statistics` froze this batch norm."""
    return isinstance(module.__dict__.get("train"), _NoOpTrain)


class _NoOpTrain:
    """A `train` method that changes nothing; as an object it is copied together with the module."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self, mode: bool = True) -> nn.Module:
        return self.module


def frozen_copy(model: nn.Module) -> nn.Module:
    """Return a copy that no optimizer trains: its weights are buffers, and its batch norms keep their statistics.

    As buffers, the weights are saved in checkpoints, and an algorithm can change them as it changes any buffer.
    """
    twin = copy.deepcopy(model)
    for module in twin.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            delattr(module, name)
            module.register_buffer(name, weight.detach())
    freeze_statistics(twin)
    return twin


def _timm(
    name: str, n_classes: int, channels: int, pretrained: bool, image_size: int | None, log: Callable[[str], None]
) -> nn.Module:
    options: dict[str, Any] = {"pretrained": pretrained, "num_classes": n_classes, "in_chans": channels}
    if takes_image_size(name, image_size):
        options["img_size"] = image_size
    model = _create(
        name, "use a local safetensors file (--weights FILE), or train from scratch (--weights random)", log, **options
    )
    if isinstance(layer := cast(Any, model).get_classifier(), nn.Linear):
        # Initialize the head like any linear layer of torch. timm's initialization of EfficientNets and MobileNets is
        # 13 times as wide for 7 classes and gives a first loss of 8 instead of 2, which spoils the features.
        layer.reset_parameters()
    _disable_stochastic(model)
    return model


def _own(name: str, n_classes: int, channels: int) -> nn.Module:
    network = FILES.get(name)
    try:
        model = network(num_classes=n_classes, in_chans=channels)
    except Exception as error:  # the file may contain anything
        raise NetworkError(
            f"{name}.py must build a network by NETWORK(num_classes={n_classes}, in_chans={channels}), but it raises "
            f"{type(error).__name__}: {one_line(error, 200)}"
        ) from error
    if not isinstance(model, nn.Module):
        raise NetworkError(f"NETWORK in {name}.py must return a torch.nn.Module, got {type(model).__name__}")
    if extra := [key for key, value in model.state_dict().items() if not isinstance(value, Tensor)]:
        raise NetworkError(
            f"the state dict of {name}.py must contain only tensors, which safetensors files can store, got "
            f"{listed(extra, 4)}: register buffers instead of the extra state"
        )
    _disable_stochastic(model)
    return model


def _require_fitting(model: nn.Module, name: str, n_classes: int, channels: int, image_size: int) -> None:
    """Pass one image through a new network: sizes that do not fit fail here, in one line.

    A network that adds something to the scores of its head (VOLO adds those of a second head) is marked: algorithms
    that train the head on the features would train another function than the one that is evaluated.
    """
    image = torch.linspace(-1, 1, channels * image_size**2).view(1, channels, image_size, image_size)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            class_scores = model.eval()(image)
            shape = class_scores.shape
            if not _are_of_head(class_scores, model, image):
                setattr(model, _OTHER_SCORES, True)
    except Exception as error:  # every network raises its own
        instead = "the size that it takes" if is_own(name) else f"{input_config(name).size} pixels"
        raise NetworkError(
            f"{name} cannot take images of {channels}×{image_size}×{image_size}: {one_line(error, 200)}; use images of "
            f"{instead} (image_size), or another network"
        ) from None
    finally:
        model.train()
    if tuple(shape) != (1, n_classes):
        raise NetworkError(
            f"{name} is not a classifier: its scores for an image must have shape {(1, n_classes)}, got {tuple(shape)}"
        )


def require_whole_patches(model: nn.Module, name: str, image_size: int) -> None:
    """Refuse images that do not divide into the patches of a ViT: timm leaves out what is left of them.

    It is not part of `build`, so that weights of such a network still load.
    """
    for module in model.modules():
        if getattr(module, "dynamic_img_pad", None) is not False:  # timm's embeddings of patches have it
            continue
        patch = cast(Any, module).patch_size[0]
        if image_size % patch:
            smaller = image_size // patch * patch
            raise NetworkError(
                f"{name} sees patches of {patch} × {patch} pixels, but {image_size} is not a multiple of {patch}: "
                f"use an image_size of {smaller} or {smaller + patch}"
            )


def _are_of_head(class_scores: Tensor, model: nn.Module, image: Tensor) -> bool:
    """Whether scores equal those of the head for the features; True for a network without features or a head."""
    if class_scores.is_meta:  # without values, where only the size of a network is wanted
        return True
    try:
        of_head = head(model)(features(model, image))
    except Exception:  # a network without them; one that raises anything else raises it again when they are used
        return True
    return of_head.shape == class_scores.shape and torch.allclose(of_head, class_scores, 1e-3, 1e-4, equal_nan=True)


def _disable_stochastic(model: nn.Module) -> None:
    """Turn off the network's own dropout and stochastic depth (Swin drops whole blocks by default).

    SAM and VAT compute a step twice, and several processes share one: the network must be the same each time.
    """
    for module in model.modules():
        package = type(module).__module__.partition(".")[0]
        names = {"timm": ("drop_prob", "prob", "drop_rate"), "torchvision": ("p",)}.get(package, ("drop_prob",))
        if isinstance(module, nn.modules.dropout._DropoutNd):
            names = ("p",)
        elif isinstance(module, nn.MultiheadAttention | nn.RNNBase):
            names = ("dropout",)
        for name in names:
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


# -- timm and its hub ------------------------------------------------------------------------------------------------


def _create(name: str, instead: str, log: Callable[[str], None] = print, **options: Any) -> nn.Module:
    """Create a timm network; `instead` says what to do without the hub."""
    timm = import_timm()
    require_known(name)
    try:
        if options.get("pretrained") and (repository := _hub_repository(name)):
            require_hub(repository, log)
        with _quiet("timm", "huggingface_hub", "httpx", "urllib3"):
            return cast(nn.Module, timm.create_model(name, **options))
    except Exception as error:  # timm, the hub and the model code raise many classes; the text has the cause
        reason = one_line(error, 200)
        if options.get("pretrained"):
            raise NetworkError(
                f"cannot get the pretrained weights of {name}: {reason}; connect to the internet, or {instead}"
            ) from None
        raise NetworkError(f"timm cannot build {name}: {reason}") from None


def require_hub(repository: str, log: Callable[[str], None]) -> None:
    """Log that weights are downloaded, and raise the error of the connection if the hub does not answer.

    huggingface_hub repeats an unanswered request for 23 s, timm makes one for each file, and no setting shortens that.
    This one request is not repeated. It waits for HF_HUB_ETAG_TIMEOUT (10 s) at most.

    Args:
        repository: For example "timm/resnet50.tv_in1k". Nothing happens if its weights were downloaded before.
        log: Called with the message.
    """
    import huggingface_hub as hub
    from huggingface_hub.errors import HfHubHTTPError

    repository, _, revision = repository.partition("@")
    revision = revision or "main"
    if any(isinstance(hub.try_to_load_from_cache(repository, file, revision=revision), str) for file in _FILES):
        return
    url = hub.hf_hub_url(repository, _FILES[0], revision=revision)
    log(f"downloading pretrained weights from {url.partition('/resolve/')[0]}")
    with suppress(HfHubHTTPError):  # an answer: timm's own requests find the file or explain the refusal
        hub.get_hf_file_metadata(url)


def _hub_repository(name: str) -> str | None:
    """Return where the pretrained weights are on the hub; None if timm has them elsewhere or not at all."""
    if name.startswith(_HUB_PREFIXES):
        return name.partition(":")[2]
    known = pretrained_config(name)
    return None if known is None else known.hf_hub_id


@contextmanager
def _quiet(*names: str) -> Iterator[None]:
    """Mute loggers: the hub logs every retry, and the error at the end says it all."""
    levels = {logger: logger.level for logger in map(logging.getLogger, names)}
    for logger in levels:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)
