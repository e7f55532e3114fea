"""Fused ViT blocks equal timm's. Without a GPU, Triton's interpreter runs the kernels."""

import copy

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch.nn import functional

from helpers.triton_interpreter import DEVICE, runs_kernels
from swad.gpu.fused_norm import restore
from swad.gpu.fused_vit import fuse_blocks

pytest.importorskip("triton", reason="needs triton")


def vit(**options) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"img_size": 12, "patch_size": 4, "embed_dim": 48, "depth": 2, "num_heads": 3, "num_classes": 5}
    model = VisionTransformer(**{**sizes, **options})
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0, 0.2)
    return model.to(DEVICE).train()


def images(n: int = 3) -> torch.Tensor:
    return torch.randn(n, 3, 12, 12, generator=torch.Generator().manual_seed(1)).to(DEVICE)


@pytest.fixture
def full_precision(monkeypatch):
    """Fuse in full precision, where a difference cannot hide behind rounding."""
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: True)
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda device: torch.float32)


@runs_kernels
@pytest.mark.parametrize("options", [{}, {"qkv_bias": False, "class_token": False, "global_pool": "avg"}])
def test_fused_blocks_keep_outputs_and_gradients(options, full_precision):
    plain = vit(**options)
    fused = copy.deepcopy(plain)
    assert fuse_blocks(fused, images()) == 2
    for model in (plain, fused):
        model(images()).square().sum().backward()
    torch.testing.assert_close(fused(images()), plain(images()), rtol=1e-4, atol=1e-4)
    for (name, mine), theirs in zip(fused.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(
            mine.grad, theirs.grad, rtol=1e-3, atol=1e-3 * theirs.grad.abs().max().item(), msg=name
        )
    assert list(fused.state_dict()) == list(plain.state_dict())
    restore(fused)
    assert not any("forward" in module.__dict__ for module in fused.modules())


@runs_kernels
def test_mixed_precision_is_as_exact_as_torchs():
    plain = vit()
    fused, exact = copy.deepcopy(plain), plain(images())
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        assert fuse_blocks(fused, images())
        mine, theirs = ((model(images()) - exact).norm() for model in (fused, plain))
    assert mine <= 2 * theirs
    torch.testing.assert_close(fused(images()), exact)  # without mixed precision nothing is fused


@runs_kernels
def test_hooks_of_a_block_get_its_output(full_precision):
    model, seen = vit(), []
    assert fuse_blocks(model, images())
    handle = model.blocks[0].register_forward_hook(lambda module, inputs, output: seen.append(output))
    model(images())
    handle.remove()
    model(images())
    assert len(seen) == 1


@runs_kernels
@pytest.mark.parametrize(
    "options", [{"init_values": 0.1}, {"qk_norm": True}, {"act_layer": nn.ReLU}, {"drop_path_rate": 0.2}]
)
def test_blocks_of_another_kind_stay(options):
    model = vit(**options)
    assert fuse_blocks(model, images()) == 0
    assert fuse_blocks(nn.Linear(2, 2), images()) == 0
    assert not any("forward" in module.__dict__ for module in model.modules())


@runs_kernels
@pytest.mark.parametrize(("rows", "width"), [(1, 24), (7, 48), (130, 96)])
def test_kernels_equal_their_formulas(rows, width):
    from swad.gpu._fused_vit_kernel import add_norm, bias_gelu, pack

    def leaf(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=DEVICE, dtype=torch.float64).float().requires_grad_()

    torch.manual_seed(rows)
    x, delta, bias, weights = leaf(rows, width), leaf(rows, width), leaf(width), leaf(2, rows, width).detach()
    norm = nn.LayerNorm(width, eps=1e-3).to(DEVICE)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    inputs = (x, delta, bias, norm.weight, norm.bias)
    total, y = add_norm(x, delta, bias, norm, torch.float32)
    mine = torch.autograd.grad((total * weights[0] + y * weights[1]).sum(), inputs)
    wanted = x + delta + bias
    theirs = torch.autograd.grad((wanted * weights[0] + norm(wanted) * weights[1]).sum(), inputs)
    torch.testing.assert_close((total, y), (wanted, norm(wanted)), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)
    mine = torch.autograd.grad((bias_gelu(x, bias) * weights[0]).sum(), (x, bias))
    theirs = torch.autograd.grad((functional.gelu(x + bias) * weights[0]).sum(), (x, bias))
    torch.testing.assert_close(bias_gelu(x, bias), functional.gelu(x + bias), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)
    parts = [x.detach(), delta.detach(), weights[0]]
    packed, sums = pack(parts)
    assert packed.equal(torch.cat(parts, 1))
    torch.testing.assert_close(sums.sum(0), torch.cat(parts, 1).sum(0), rtol=1e-4, atol=1e-4)
