"""The blocks of timm's ViTs with fused kernels, exactly: additions, layer norms, GELU and the gradients of biases.

About half of the time of a ViT's training step goes to passes over memory between its matrix products. The blocks of a
network are therefore computed as one function: what a block adds to the tokens is added by the kernel of the next layer
norm. Names, values and shapes of the parameters stay the same. The patches are embedded by a matrix product, which is
the same as the convolution and faster. Where the head reads the class token alone, the last block computes no other.

Blocks with parts of another kind (layer scale, norms of queries and keys, stochastic depth) stay as they are. So do
blocks with hooks, which need every block's own output.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from swad.gpu.fused_norm import Forward, fuse, keeps_outputs

_BLOCK = ("timm.models.vision_transformer", "Block")
_IDENTITIES = ("ls1", "drop_path1", "ls2", "drop_path2", "attn.q_norm", "attn.k_norm", "attn.norm", "mlp.norm")
_DROPOUTS = ("attn.attn_drop", "attn.proj_drop", "mlp.drop1", "mlp.drop2")


def fuse_kernels(model: nn.Module, images: Tensor) -> int:
    """Fuse what Triton kernels can fuse: batch norms or the blocks of a ViT. Return how many; 0 if nothing was changed.

    Args:
        model: The network; see `swad.gpu.fused_norm.fuse`.
        images: A small batch to try the network on, under the autocast that the network is used in.
    """
    return fuse(model, images, kernels=True) or fuse_blocks(model, images)


def fuse_blocks(model: nn.Module, images: Tensor) -> int:
    """Fuse the blocks of a ViT, and return how many there are; 0 if nothing was changed.

    The fused model must give the same outputs up to rounding; otherwise nothing is changed.

    Args:
        model: The network, on its device. Its modules get a new `forward`; see `swad.gpu.fused_norm.restore`.
        images: A small batch to try the network on. Call under the autocast that training uses.
    """
    vit = find_vit(model)
    if vit is None:
        return 0
    blocks = vit.blocks

    def change() -> None:
        blocks.__dict__["forward"] = _FusedBlocks(blocks, _reads_class_token_only(vit))
        conv = getattr(getattr(vit, "patch_embed", None), "proj", None)
        if type(conv) is nn.Conv2d and conv.kernel_size == conv.stride and conv.groups == 1 and not any(conv.padding):
            conv.__dict__["forward"] = _PatchProduct(conv)

    return len(blocks) if keeps_outputs(model, images, change) else 0


def find_vit(model: nn.Module) -> Any:
    """Return the module whose blocks `fuse_blocks` can fuse; None if there is none."""
    for module in model.modules():
        blocks = getattr(module, "blocks", None)
        if isinstance(blocks, nn.Sequential) and len(blocks) and all(map(_is_plain, blocks)):
            return module
    return None


def _is_plain(block: nn.Module) -> bool:
    if (type(block).__module__, type(block).__name__) != _BLOCK:
        return False
    attention, mlp = cast(Any, block).attn, cast(Any, block).mlp
    parts = dict(block.named_modules())
    return (
        all(isinstance(parts.get(name, nn.Identity()), nn.Identity) for name in _IDENTITIES)
        and all(isinstance(parts[name], nn.Dropout) and parts[name].p == 0.0 for name in _DROPOUTS if name in parts)
        and all(isinstance(parts[name], nn.LayerNorm) and parts[name].bias is not None for name in ("norm1", "norm2"))
        and type(attention).__name__ == "Attention"
        and getattr(attention, "gate", None) is None
        and attention.qkv.out_features == 3 * attention.proj.in_features
        and type(mlp).__name__ == "Mlp"
        and isinstance(mlp.fc1, nn.Linear)
        and mlp.fc1.bias is not None
        and type(mlp.act) is nn.GELU
        and mlp.act.approximate == "none"
    )


class _FusedBlocks(Forward):
    """The forward of all blocks of a network."""

    def __init__(self, blocks: nn.Sequential, class_token_only: bool) -> None:
        self.blocks, self.class_token_only = blocks, class_token_only

    def __call__(self, x: Tensor) -> Tensor:
        device = x.device.type
        if not torch.is_autocast_enabled(device) or any(map(_has_hooks, self.blocks.modules())):
            return cast(Tensor, nn.Sequential.forward(self.blocks, x))  # type: ignore[no-untyped-call]
        from swad.gpu._fused_vit_kernel import add_norm, bias_gelu, class_token_qkv, linear, qkv

        dtype = torch.get_autocast_dtype(device)
        blocks = list(cast(Any, self.blocks))
        casts = iter(_cast([layer.weight for block in blocks for layer in _layers(block)], dtype))
        x = x.float()
        delta: Tensor | None = None
        bias: Tensor | None = None
        for block in blocks:
            attention, (_, proj, fc1, fc2) = block.attn, _layers(block)
            class_token = self.class_token_only and block is blocks[-1]
            x, y = add_norm(x, delta, bias, block.norm1, dtype, class_token)
            parts = (class_token_qkv if class_token else qkv)(y, attention.qkv, next(casts), attention.num_heads)
            tokens = functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)
            delta, bias = linear(tokens, proj.weight, next(casts)), proj.bias
            x, y = add_norm(x, delta, bias, block.norm2, dtype)
            hidden = bias_gelu(linear(y, fc1.weight, next(casts)), fc1.bias)
            delta, bias = linear(hidden, fc2.weight, next(casts)), fc2.bias
        assert delta is not None
        return x + delta if bias is None else x + (delta + bias)


def _layers(block: Any) -> tuple[nn.Linear, ...]:
    return block.attn.qkv, block.attn.proj, block.mlp.fc1, block.mlp.fc2


def _cast(weights: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Return the weights in another precision, converted by one kernel."""
    casts = [torch.empty_like(weight, dtype=dtype) for weight in weights]
    with torch.no_grad():
        torch._foreach_copy_(casts, weights)
    return casts


def _reads_class_token_only(vit: Any) -> bool:
    """Whether the head reads the first token after the blocks and no other."""
    return (
        getattr(vit, "global_pool", None) == "token"
        and getattr(vit, "cls_token", None) is not None
        and getattr(vit, "attn_pool", None) is None
    )


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


class _PatchProduct(Forward):
    """A convolution whose patches do not overlap, as a matrix product; the output has the convolution's shape."""

    def __init__(self, conv: nn.Conv2d) -> None:
        self.conv = conv

    def __call__(self, images: Tensor) -> Tensor:
        conv = self.conv
        if not torch.is_autocast_enabled(images.device.type):
            return nn.Conv2d.forward(conv, images)
        n, channels, height, width = images.shape
        down, across = cast("tuple[int, int]", conv.kernel_size)
        rows, columns = height // down, width // across
        patches = images[:, :, : rows * down, : columns * across]
        patches = patches.reshape(n, channels, rows, down, columns, across).permute(0, 2, 4, 1, 3, 5)
        # One pass: converted on its own, the tensor would keep its layout and be copied again.
        patches = torch.empty(
            patches.shape, dtype=torch.get_autocast_dtype(images.device.type), device=images.device
        ).copy_(patches)
        product = functional.linear(patches.reshape(n, rows * columns, -1), conv.weight.flatten(1), conv.bias)
        return product.view(n, rows, columns, -1).permute(0, 3, 1, 2)
