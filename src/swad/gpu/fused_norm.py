"""Frozen batch norms fused into the convolutions before them, exactly, with scale and shift still trained.

With frozen statistics a batch norm is ``y = s·x + t`` per channel, ``s = γ / √(v + ε)`` and ``t = β − m·s``. A
convolution is linear, so ``bn(conv(x, W)) = conv(x, s·W) + t``: the multiplication moves from every activation to the
weights. The gradient of ``s`` then no longer needs the activations, which saves a pass over each of them and the memory
to keep them. Gradients reach ``W``, ``γ`` and ``β`` through the same expression; the names, values and shapes of the
parameters stay the same.

There are two ways to compute it. For `torch.compile` the convolution gets scaled weights and the batch norm adds the
shift, in plain torch. Otherwise Triton kernels (`swad.gpu._fused_norm_kernel`) do shift, shortcut and ReLU in one
pass after the convolution; they need mixed precision and no compilation. In evaluation mode only the second way changes
how the network is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from swad.util.packages import has_triton

_ACTIVATIONS = {nn.ReLU: "relu", nn.ReLU6: "relu6"}


def fuse(model: nn.Module, images: Tensor, *, kernels: bool) -> int:
    """Fuse every batch norm in evaluation mode that directly follows a convolution, and return how many were fused.

    A forward pass over `images` shows which module follows which. The fused model must then give the same outputs up
    to rounding; otherwise nothing is changed and the result is 0.

    Args:
        model: The network, on its device. In training mode only frozen batch norms are fused. Modules get a new
            `forward`; see `restore`.
        images: A small batch to try the network on. Call under the autocast that training uses.
        kernels: Use Triton kernels, which also fuse activations and the shortcuts of timm's residual blocks. False
            writes plain torch for `torch.compile`.
    """
    if not any(isinstance(module, _BatchNorm) and not module.training for module in model.modules()):
        return 0  # without a forward pass, which would move the statistics of batch norms that are not frozen
    pairs = _find_pairs(model, images)
    if not pairs or not keeps_outputs(model, images, lambda: _replace_forwards(model, pairs, kernels)):
        return 0
    return len(pairs)


def keeps_outputs(model: nn.Module, images: Tensor, change: Callable[[], None]) -> bool:
    """Give modules a new `forward`, and restore the old ones if the outputs change by more than rounding."""
    with torch.no_grad():
        with torch.autocast(images.device.type, enabled=False):
            exact = model(images)
        unfused = model(images)
    change()
    _compile_kernels(model, images)
    with torch.no_grad():
        fused = model(images)
    # Mixed precision has errors of its own, and the fused model may have errors of that size. From a few scores that
    # size is known only roughly: of two equally good models, one can be off by several times as much as the other, so
    # three times that size is allowed. Where the unfused model is exact by chance, or computes in fp32 throughout, the
    # rest has to suffice: about five roundings of bf16 (2**-8 = 4e-3), or one of TF32 (2**-10 = 1e-3), in which GPUs
    # multiply fp32 numbers in convolutions.
    mixed = torch.is_autocast_enabled(images.device.type)
    error, allowed = (fused - exact).norm(), 3 * (unfused - exact).norm() + (2e-2 if mixed else 1e-3) * exact.norm()
    if not bool(error <= allowed):
        restore(model)
        return False
    return True


def _compile_kernels(model: nn.Module, images: Tensor) -> None:
    """Compile the kernels of a model that was given a new `forward`: those of a training step, if it is trained."""
    if not has_triton():
        return
    from swad.util.kernels import compile_together

    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def step() -> None:
        with torch.set_grad_enabled(model.training and bool(parameters)):
            scores = model(images)
        if scores.requires_grad:
            torch.autograd.grad(scores.float().sum(), parameters, allow_unused=True)

    compile_together(step)


def restore(model: nn.Module) -> None:
    """Give every module its own `forward` back."""
    for module in model.modules():
        if isinstance(module.__dict__.get("forward"), Forward):
            del module.__dict__["forward"]


@contextmanager
def unfused(model: nn.Module) -> Iterator[None]:
    """Give every module its own `forward` for the duration of the block, in which hooks then see every map."""
    forwards = {
        module: module.__dict__["forward"]
        for module in model.modules()
        if isinstance(module.__dict__.get("forward"), Forward)
    }
    restore(model)
    try:
        yield
    finally:
        for module, forward in forwards.items():
            module.__dict__["forward"] = forward


@dataclass
class _Pair:
    """A convolution, the batch norm after it, and the activation after that if it can be fused too."""

    conv: nn.Conv2d
    norm: _BatchNorm
    act: nn.Module | None = None


def _find_pairs(model: nn.Module, images: Tensor) -> list[_Pair]:
    calls: dict[nn.Module, int] = {}
    # Which module made a tensor, by the tensor's id. The tensors are kept, so that no later one gets the same id.
    conv_outputs: dict[int, tuple[nn.Conv2d, Tensor]] = {}
    norm_outputs: dict[int, tuple[_Pair, Tensor]] = {}
    pairs: list[_Pair] = []

    def after_conv(module: nn.Module, inputs: Any, output: Tensor) -> None:
        calls[module] = calls.get(module, 0) + 1
        conv_outputs[id(output)] = (cast(nn.Conv2d, module), output)

    def after_norm(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        calls[module] = calls.get(module, 0) + 1
        if id(inputs[0]) in conv_outputs:
            pairs.append(_Pair(conv_outputs[id(inputs[0])][0], cast(_BatchNorm, module)))
            norm_outputs[id(output)] = (pairs[-1], output)

    def before_act(module: nn.Module, inputs: tuple[Tensor]) -> None:
        calls[module] = calls.get(module, 0) + 1
        if id(inputs[0]) in norm_outputs:
            norm_outputs[id(inputs[0])][0].act = module

    handles = []
    for module in model.modules():
        if type(module) is nn.Conv2d and module.padding_mode == "zeros" and not isinstance(module.padding, str):
            handles.append(module.register_forward_hook(after_conv))
        elif isinstance(module, _BatchNorm) and not module.training and module.affine and module.track_running_stats:
            handles.append(module.register_forward_hook(after_norm))
        elif type(module) in _ACTIVATIONS:
            handles.append(module.register_forward_pre_hook(before_act))
    try:
        with torch.no_grad():
            model(images)
    finally:
        for handle in handles:
            handle.remove()
    # A module that is called twice in a pass may have another neighbor each time.
    called_once = [pair for pair in pairs if calls[pair.conv] == calls[pair.norm] == 1]
    for pair in called_once:
        if pair.act is not None and calls[pair.act] != 1:
            pair.act = None
    return called_once


def _replace_forwards(model: nn.Module, pairs: list[_Pair], kernels: bool) -> None:
    for pair in pairs:
        conv = _FusedConv(pair.conv, pair.norm, kernels)
        if kernels and (act := pair.act or getattr(pair.norm, "act", None)) is not None:
            conv.act = _ACTIVATIONS.get(type(act), "none")
        pair.conv.__dict__["forward"], pair.norm.__dict__["forward"] = conv, _FusedNorm(conv)
        if pair.act is not None and conv.act != "none":
            pair.act.__dict__["forward"] = _FusedAct(conv, pair.act)
    for module in model.modules() if kernels else ():
        if _FusedPool.fits(module):
            module.__dict__["forward"] = _FusedPool(module)
        if (block := _FusedBlock.for_module(module)) is not None:
            module.__dict__["forward"] = block


class Forward:
    """A `forward` that replaces a module's own; as an object it is copied together with the model."""


class _FusedConv(Forward):
    """The convolution with scaled weights; with kernels also the shift and the activation."""

    def __init__(self, conv: nn.Conv2d, norm: _BatchNorm, kernels: bool) -> None:
        self.conv, self.norm, self.act, self._kernels = conv, norm, "none", kernels

    @property
    def uses_kernels(self) -> bool:
        """Whether the kernels compute batch norm and activation: only in mixed precision."""
        return self._kernels and torch.is_autocast_enabled(self.conv.weight.device.type)

    @property
    def scales_weights(self) -> bool:
        """Whether the scale is in the weights: in training, and always with kernels."""
        return self.conv.training or self.uses_kernels

    @property
    def does_all(self) -> bool:
        """Whether nothing is left for the batch norm and the activation."""
        return self.uses_kernels and self.conv.bias is None

    def __call__(self, images: Tensor) -> Tensor:
        conv = self.conv
        if not self.scales_weights:
            return nn.Conv2d.forward(conv, images)
        if self.does_all:
            return self.forward_with_alias(images, self.act)[0]
        weight = conv.weight * self.scale().view(-1, 1, 1, 1)
        return functional.conv2d(images, weight, None, conv.stride, conv.padding, conv.dilation, conv.groups)

    def forward_with_alias(self, images: Tensor, act: str, shortcut: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the output and a second tensor with the same values, whose gradients the kernel adds up."""
        from swad.gpu._fused_norm_kernel import conv_norm_act

        dtype = torch.get_autocast_dtype(images.device.type)
        return conv_norm_act(images, self.conv, self.norm, act, shortcut, dtype)

    def scale(self) -> Tensor:
        norm = self.norm
        assert norm.running_var is not None
        return norm.weight * torch.rsqrt(norm.running_var + norm.eps)


class _FusedNorm(Forward):
    """The rest of the batch norm: the shift, unless the convolution added it, and what timm puts into batch norms."""

    def __init__(self, fused_conv: _FusedConv) -> None:
        self.fused_conv = fused_conv

    def __call__(self, maps: Tensor) -> Tensor:
        fused_conv, norm, conv = self.fused_conv, self.fused_conv.norm, self.fused_conv.conv
        if not fused_conv.scales_weights:
            return type(norm).forward(norm, maps)
        if not fused_conv.does_all:
            assert norm.running_mean is not None
            mean = norm.running_mean if conv.bias is None else norm.running_mean - conv.bias
            maps = (maps + (norm.bias - mean * fused_conv.scale()).view(1, -1, 1, 1)).to(maps.dtype)
        act_done = fused_conv.does_all and fused_conv.act != "none"
        for name in ("drop", "act"):
            module = getattr(norm, name, None)
            if isinstance(module, nn.Module) and not (name == "act" and act_done):
                maps = module(maps)
        return maps


class _FusedAct(Forward):
    """The activation, which passes its input on if the convolution has already applied it."""

    def __init__(self, fused_conv: _FusedConv, act: nn.Module) -> None:
        self.fused_conv, self.module = fused_conv, act

    def __call__(self, maps: Tensor) -> Tensor:
        if self.fused_conv.does_all:
            return maps
        return cast(Tensor, type(self.module).forward(self.module, maps))


class _FusedPool(Forward):
    """The max pool with faster kernels, in mixed precision."""

    def __init__(self, module: nn.Module) -> None:
        self.module = cast(nn.MaxPool2d, module)

    @staticmethod
    def fits(module: nn.Module) -> bool:
        """Whether a module is a plain max pool with square windows."""
        if type(module) is not nn.MaxPool2d or module.ceil_mode or module.return_indices or module.dilation != 1:
            return False
        return all(isinstance(n, int) for n in (module.kernel_size, module.stride, module.padding))

    def __call__(self, maps: Tensor) -> Tensor:
        pool = self.module
        if not torch.is_autocast_enabled(maps.device.type):
            return cast(Tensor, nn.MaxPool2d.forward(pool, maps))
        from swad.gpu._fused_norm_kernel import max_pool

        return max_pool(maps, cast(int, pool.kernel_size), cast(int, pool.stride), cast(int, pool.padding))


class _FusedBlock(Forward):
    """A residual block whose last convolution also adds the shortcut.

    The output has an alias: the next block uses one of the two for its convolutions and the other for its shortcut.
    Both gradients then arrive at the same kernel, which adds them in its pass.
    """

    def __init__(self, block: Any, last: nn.Conv2d) -> None:
        self.block, self.last = block, last

    @classmethod
    def for_module(cls, module: Any) -> _FusedBlock | None:
        """Return the new forward for one of timm's plain residual blocks, and None for any other module."""
        if (type(module).__module__, type(module).__name__) not in _BLOCKS:
            return None
        last, act = (module.conv3, module.act3) if hasattr(module, "conv3") else (module.conv2, module.act2)
        extras = [getattr(module, name, None) for name in ("se", "drop_path", "aa", "drop_block")]
        plain = all(extra is None or isinstance(extra, nn.Identity) for extra in extras) and type(act) is nn.ReLU
        ready = isinstance(last.__dict__.get("forward"), _FusedConv) and last.bias is None
        return cls(module, last) if plain and ready else None

    def __call__(self, images: Tensor) -> Tensor:
        block, fused_conv = self.block, cast(_FusedConv, self.last.__dict__["forward"])
        if not fused_conv.uses_kernels:
            return cast(Tensor, type(block).forward(block, images))
        shortcut = getattr(images, "alias", images)
        maps = block.act1(block.bn1(block.conv1(images)))
        if hasattr(block, "conv3"):
            maps = block.act2(block.bn2(block.conv2(maps)))
        if block.downsample is not None:
            shortcut = block.downsample(shortcut)
        output, view = fused_conv.forward_with_alias(maps, "relu", shortcut)
        # The view holds the output. Were the attribute on the output, both would hold each other and never be freed.
        view.alias = output  # type: ignore[attr-defined]
        return view


_BLOCKS = {("timm.models.resnet", "Bottleneck"), ("timm.models.resnet", "BasicBlock")}
