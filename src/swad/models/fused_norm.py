"""Frozen batch norms folded into the convolutions before them, exactly, with scale and shift still trained.

With frozen statistics a batch norm is ``y = s·x + t`` per channel, ``s = γ / √(v + ε)`` and ``t = β − m·s``. A
convolution is linear, so ``bn(conv(x, W)) = conv(x, s·W) + t``: the multiplication moves from every activation to the
weights, and the gradient of ``s`` no longer needs the activations, which saves a pass over each and the memory to keep
it. Gradients reach ``W``, ``γ`` and ``β`` through the same expression; names, values and shapes of the parameters are
untouched. In evaluation mode only what is fused (below) is computed otherwise than before.

`fold` writes it as that expression, for a compiler to make fast. `fuse` does shift, shortcut and ReLU in one kernel
after the convolution where mixed precision is on (`swad.models._fused_norm_kernel`): nothing needs to be compiled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from swad.models.networks import is_frozen

_CUTS = {nn.ReLU: "relu", nn.ReLU6: "relu6"}


def fold(model: nn.Module, images: Tensor) -> int:
    """Fold every frozen batch norm of `model` that directly follows a convolution; returns how many.

    Which follows which is seen in a pass over `images`, and the folded model must give the same outputs, or nothing
    is changed.
    """
    return _patch(model, images, fused=False)


def fuse(model: nn.Module, images: Tensor) -> int:
    """The same, with activations and the shortcuts of timm's residual blocks; call under the autocast to be used."""
    return _patch(model, images, fused=True)


def unfold(model: nn.Module) -> None:
    """Give every module its own forward back."""
    for module in model.modules():
        if isinstance(module.__dict__.get("forward"), _Forward):
            del module.__dict__["forward"]


@dataclass
class _Place:
    """A convolution, the batch norm after it, and the activation after that, where it can be fused."""

    conv: nn.Conv2d
    norm: _BatchNorm
    act: nn.Module | None = None


def _patch(model: nn.Module, images: Tensor, fused: bool) -> int:
    if not any(isinstance(module, _BatchNorm) and is_frozen(module) for module in model.modules()):
        return 0  # and no pass, which would move the statistics of the others
    places = _find(model, images)
    if not places:
        return 0
    with torch.no_grad():
        with torch.autocast(images.device.type, enabled=False):
            wanted = model(images)
        usual = model(images)
        for place in places:
            layer = _Layer(place.conv, place.norm, fused)
            if fused and (act := place.act or getattr(place.norm, "act", None)) is not None:
                layer.act = _CUTS.get(type(act), "none")
            place.conv.__dict__["forward"], place.norm.__dict__["forward"] = layer, _Rest(layer)
            if place.act is not None and layer.act != "none":
                place.act.__dict__["forward"] = _Done(layer, place.act)
        for module in model.modules() if fused else ():
            if (block := _Block.of(module)) is not None:
                module.__dict__["forward"] = block
        got = model(images)
    # Mixed precision has errors of its own: the patched model may have errors of that size, not others. Of a few scores
    # that size is known roughly: of two models alike, one can be off by several times as much as the other.
    mixed = torch.is_autocast_enabled(images.device.type)
    error, allowed = (got - wanted).norm(), 3 * (usual - wanted).norm() + (2e-2 if mixed else 1e-3) * wanted.norm()
    if not bool(error <= allowed):
        unfold(model)
        return 0
    return len(places)


def _find(model: nn.Module, images: Tensor) -> list[_Place]:
    calls: dict[nn.Module, int] = {}
    # What made a tensor; tensors are held, so that no later one gets the same id.
    convs: dict[int, tuple[nn.Conv2d, Tensor]] = {}
    norms: dict[int, tuple[_Place, Tensor]] = {}
    found: list[_Place] = []

    def after_conv(module: nn.Module, inputs: Any, output: Tensor) -> None:
        calls[module] = calls.get(module, 0) + 1
        convs[id(output)] = (cast(nn.Conv2d, module), output)

    def after_norm(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        calls[module] = calls.get(module, 0) + 1
        if id(inputs[0]) in convs:
            found.append(_Place(convs[id(inputs[0])][0], cast(_BatchNorm, module)))
            norms[id(output)] = (found[-1], output)

    def before_act(module: nn.Module, inputs: tuple[Tensor]) -> None:
        calls[module] = calls.get(module, 0) + 1
        if id(inputs[0]) in norms:
            norms[id(inputs[0])][0].act = module

    handles = []
    for module in model.modules():
        if type(module) is nn.Conv2d and module.padding_mode == "zeros" and not isinstance(module.padding, str):
            handles.append(module.register_forward_hook(after_conv))
        elif isinstance(module, _BatchNorm) and is_frozen(module) and module.affine and module.track_running_stats:
            handles.append(module.register_forward_hook(after_norm))
        elif type(module) in _CUTS:
            handles.append(module.register_forward_pre_hook(before_act))
    try:
        with torch.no_grad():
            model(images)
    finally:
        for handle in handles:
            handle.remove()
    once = [place for place in found if calls[place.conv] == calls[place.norm] == 1]
    for place in once:
        if place.act is not None and calls[place.act] != 1:
            place.act = None
    return once


class _Forward:
    """A forward that takes the place of a module's own; as an object it is copied together with the model."""


class _Layer(_Forward):
    """The convolution's: everything up to the activation where that is fused, else with scaled weights."""

    def __init__(self, conv: nn.Conv2d, norm: _BatchNorm, fused: bool) -> None:
        self.conv, self.norm, self.act, self._fused = conv, norm, "none", fused

    @property
    def fused(self) -> bool:
        """Whether batch norm and activation are in the convolution: in mixed precision."""
        return self._fused and torch.is_autocast_enabled(self.conv.weight.device.type)

    @property
    def folded(self) -> bool:
        """Whether at least the scale is: in training."""
        return self.conv.training or self.fused

    def __call__(self, images: Tensor) -> Tensor:
        conv = self.conv
        if not self.folded:
            return nn.Conv2d.forward(conv, images)
        if self.fused and conv.bias is None:
            return self.twice(images, self.act)[0]
        weight = conv.weight * self.scale().view(-1, 1, 1, 1)
        return functional.conv2d(images, weight, None, conv.stride, conv.padding, conv.dilation, conv.groups)

    def twice(self, images: Tensor, act: str, shortcut: Tensor | None = None) -> tuple[Tensor, Tensor]:
        from swad.models._fused_norm_kernel import conv_norm_act

        dtype = torch.get_autocast_dtype(images.device.type)
        return conv_norm_act(images, self.conv, self.norm, act, shortcut, dtype)

    def scale(self) -> Tensor:
        norm = self.norm
        assert norm.running_var is not None
        return norm.weight * torch.rsqrt(norm.running_var + norm.eps)


class _Rest(_Forward):
    """The batch norm's: the shift, where the convolution did not add it, and what timm's batch norms carry besides."""

    def __init__(self, layer: _Layer) -> None:
        self.layer = layer

    def __call__(self, maps: Tensor) -> Tensor:
        layer, norm, conv = self.layer, self.layer.norm, self.layer.conv
        if not layer.folded:
            return type(norm).forward(norm, maps)
        done = layer.fused and conv.bias is None
        if not done:
            assert norm.running_mean is not None
            mean = norm.running_mean if conv.bias is None else norm.running_mean - conv.bias
            maps = (maps + (norm.bias - mean * layer.scale()).view(1, -1, 1, 1)).to(maps.dtype)
        for name in ("drop", "act"):
            module = getattr(norm, name, None)
            if isinstance(module, nn.Module) and not (name == "act" and done and layer.act != "none"):
                maps = module(maps)
        return maps


class _Done(_Forward):
    """The activation's: nothing, where the convolution has done it."""

    def __init__(self, layer: _Layer, act: nn.Module) -> None:
        self.layer, self.module = layer, act

    def __call__(self, maps: Tensor) -> Tensor:
        done = self.layer.fused and self.layer.conv.bias is None
        return maps if done else cast(Tensor, type(self.module).forward(self.module, maps))


class _Block(_Forward):
    """A residual block's: the last convolution adds the shortcut.

    The output comes with a twin, its second use: the next block takes the one for its convolutions and the other for
    its shortcut, so that the kernel that needs the sum of both gradients is the one that adds them.
    """

    def __init__(self, block: Any, last: nn.Conv2d) -> None:
        self.block, self.last = block, last

    @classmethod
    def of(cls, module: Any) -> _Block | None:
        """The forward for one of timm's plain residual blocks; None for any other module."""
        if (type(module).__module__, type(module).__name__) not in _BLOCKS:
            return None
        last, act = (module.conv3, module.act3) if hasattr(module, "conv3") else (module.conv2, module.act2)
        extras = [getattr(module, name, None) for name in ("se", "drop_path", "aa", "drop_block")]
        plain = all(one is None or isinstance(one, nn.Identity) for one in extras) and type(act) is nn.ReLU
        ready = isinstance(last.__dict__.get("forward"), _Layer) and last.bias is None
        return cls(module, last) if plain and ready else None

    def __call__(self, images: Tensor) -> Tensor:
        block, layer = self.block, cast(_Layer, self.last.__dict__["forward"])
        if not layer.fused:
            return cast(Tensor, type(block).forward(block, images))
        shortcut = getattr(images, "twin", images)
        maps = block.act1(block.bn1(block.conv1(images)))
        if hasattr(block, "conv3"):
            maps = block.act2(block.bn2(block.conv2(maps)))
        if block.downsample is not None:
            shortcut = block.downsample(shortcut)
        first, second = layer.twice(maps, "relu", shortcut)
        # The second is a view and holds the first: the other way round both would hold each other, and never be freed.
        second.twin = first  # type: ignore[attr-defined]
        return second


_BLOCKS = {("timm.models.resnet", "Bottleneck"), ("timm.models.resnet", "BasicBlock")}
