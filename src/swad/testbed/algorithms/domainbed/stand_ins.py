"""What files of DomainBed's form import from `domainbed`: the networks of our run, and `seed_hash`.

The modules stand in while such a file is imported. Other modules of `domainbed` are those of the file's own folder.
"""

from __future__ import annotations

import copy
import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from swad.testbed.algorithms import AlgorithmError
from swad.testbed.data.splits import seed_hash
from swad.testbed.models import networks

# --- networks ---------------------------------------------------------------------------------------------------


class Features(nn.Module):
    """The network of a run without its head: from images to features, with dropout in training."""

    def __init__(self, network: nn.Module, dropout: float) -> None:
        super().__init__()
        self.network, self.dropout, self.n_outputs = network, dropout, networks.head(network).in_features

    def forward(self, images: Tensor) -> Tensor:
        """Return features; in full precision where the network computes in less."""
        with _autocast():
            rows = networks.features(self.network, images)
        rows = rows.float() if rows.dtype in (torch.bfloat16, torch.float16) else rows
        return functional.dropout(rows, self.dropout, self.training)


class RunNetworks:
    """The networks of a run: the first featurizer and the first classifier are its own, further ones new.

    Further featurizers are copies of the first, which has the weights that the run starts from.
    """

    def __init__(self, network: nn.Module, channels: int, dropout: float) -> None:
        self._features, self._head, self._channels = Features(network, dropout), networks.head(network), channels
        self.n_classes, self.n_featurizers, self._head_is_free = self._head.out_features, 0, True
        for parent in network.modules():
            for name, child in parent.named_children():
                if child is self._head:
                    setattr(parent, name, nn.Identity())

    def featurizer(self, channels: int) -> Features:
        """Return the network without its head, or a copy."""
        if channels != self._channels:
            raise AlgorithmError(
                f"the network of a run takes {self._channels} channels, got a featurizer of {channels}"
            )
        self.n_featurizers += 1
        return self._features if self.n_featurizers == 1 else copy.deepcopy(self._features)

    def classifier(self, n_inputs: int, n_outputs: int) -> nn.Linear:
        """Return the head of the network, or a new layer."""
        own = self._head_is_free and (n_inputs, n_outputs) == (self._head.in_features, self._head.out_features)
        self._head_is_free = self._head_is_free and not own
        return self._head if own else nn.Linear(n_inputs, n_outputs)


_run_networks: RunNetworks
_autocast: Callable[[], AbstractContextManager[object]] = nullcontext


@contextmanager
def using(run_networks: RunNetworks, autocast: Callable[[], AbstractContextManager[object]]) -> Iterator[None]:
    """Let networks that are made be those of a run, in its precision, for the block."""
    global _run_networks, _autocast
    _run_networks, _autocast = run_networks, autocast
    try:
        yield
    finally:
        _autocast = nullcontext


def featurizer(input_shape: Sequence[int], *_: Any, **__: Any) -> Features:
    """Stand in for `networks.Featurizer`."""
    return _run_networks.featurizer(input_shape[0])


def classifier(in_features: int, out_features: int, *_: Any, **__: Any) -> nn.Linear:
    """Stand in for `networks.Classifier`, always linear."""
    return _run_networks.classifier(in_features, out_features)


class MLP(nn.Sequential):
    """Stand in for `networks.MLP`: `mlp_depth` linear layers, with dropout and ReLU between them."""

    def __init__(self, n_inputs: int, n_outputs: int, hparams: Mapping[str, Any]) -> None:
        widths = [n_inputs, *[hparams["mlp_width"]] * (max(2, hparams["mlp_depth"]) - 1), n_outputs]
        first, *rest = itertools.starmap(nn.Linear, itertools.pairwise(widths))
        dropout = hparams["mlp_dropout"]
        super().__init__(first, *(each for layer in rest for each in (nn.Dropout(dropout), nn.ReLU(), layer)))
        self.n_outputs = n_outputs


class WholeFish(nn.Module):
    """Stand in for `networks.WholeFish`: featurizer and classifier as one network, whose weights can be set."""

    def __init__(self, input_shape: Sequence[int], num_classes: int, hparams: Mapping[str, Any], weights: Any = None):
        super().__init__()
        features = featurizer(input_shape)
        self.net = nn.Sequential(features, classifier(features.n_outputs, num_classes))
        if weights is not None:
            self.load_state_dict(weights)

    def reset_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Set all weights."""
        self.load_state_dict(weights)

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores."""
        return cast(Tensor, self.net(x))


# --- modules ------------------------------------------------------------------------------------------------------


class Missing:
    """What a file imports and nobody has: an error when it is used, because other classes of the file may run."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Raise."""
        raise AlgorithmError(
            f"{self.name} has no stand-in and is not beside the file: name the file in a copy of its whole repository"
        )


def _module(name: str, path: Path, **attributes: Any) -> ModuleType:
    """Return a module with stand-ins; further names are those of the file of that name, if there is one."""
    module, own = ModuleType(name), path.with_suffix(".py")
    loaded: list[ModuleType] = []

    def get(attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        if own.is_file() and not loaded:
            spec = importlib.util.spec_from_file_location(f"{name}_of_file", own)
            assert spec is not None and spec.loader is not None  # noqa: PT018
            loaded.append(importlib.util.module_from_spec(spec))
            spec.loader.exec_module(loaded[0])
        return getattr(loaded[0] if loaded else None, attribute, Missing(f"{name}.{attribute}"))

    vars(module).update(attributes, __path__=[str(path)], __getattr__=get)
    return module


def _package(name: str, path: Path) -> ModuleType:
    module = ModuleType(name)
    module.__path__ = [str(path)]
    return module


@contextmanager
def installed(root: Path) -> Iterator[None]:
    """Let `domainbed` be a folder with stand-ins, for the block; its own `lib/misc.py` is taken if there is one."""
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "domainbed"}
    modules = {
        "domainbed": _package("domainbed", root),
        "domainbed.networks": _module("domainbed.networks", root / "networks", **_NETWORKS),
        "domainbed.lib": _package("domainbed.lib", root / "lib"),
    }
    if not (root / "lib" / "misc.py").is_file():
        modules["domainbed.lib.misc"] = _module("domainbed.lib.misc", root / "lib" / "misc", seed_hash=seed_hash)
    for name, module in modules.items():
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(modules[parent], child, module)
    sys.modules.update(modules)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "domainbed"]:
            del sys.modules[name]
        sys.modules.update(before)


_NETWORKS = {"Featurizer": featurizer, "Classifier": classifier, "MLP": MLP, "WholeFish": WholeFish}
