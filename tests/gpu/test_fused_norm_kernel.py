"""The fused operation equals the modules it replaces. Without a GPU, Triton's interpreter runs the kernels."""

import copy
import gc

import pytest
import torch
from timm.models import resnet
from torch import nn

from helpers.triton_interpreter import DEVICE, INTERPRETED, runs_kernels
from swad.gpu.fused_norm import fuse, restore
from swad.tensors.batch_norms import batch_norms
from swad.testbed.models import networks

pytest.importorskip("triton", reason="needs triton")

SIZE = 16 if INTERPRETED else 32  # of images; the interpreter is slow


@pytest.fixture(autouse=True)
def _full_precision(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def layer(groups: int, kernel: int, channels: int = 12) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    torch.manual_seed(0)
    conv = nn.Conv2d(8, channels, kernel, 2, kernel // 2, groups=groups, bias=False)
    norm = nn.BatchNorm2d(channels).eval()
    for tensor, low, high in ((norm.weight, 0.5, 1.5), (norm.bias, -1, 1), (norm.running_var, 0.5, 1.5)):
        nn.init.uniform_(tensor, low, high)
    nn.init.uniform_(norm.running_mean, -1, 1)
    return conv.to(DEVICE), norm.to(DEVICE)


CASES = [("none", False, 1), ("none", True, 2), ("relu", False, 1), ("relu", True, 2), ("relu6", False, 2)]


@runs_kernels
@pytest.mark.parametrize(
    ("act", "shortcut", "uses", "groups", "kernel", "channels"),
    [
        *((*case, 1, 3, 12) for case in CASES),
        *((*case, 4, 3, 12) for case in CASES),
        # More than one block of channels, slow in the interpreter.
        *((*case, 1, 1, 160) for case in (CASES[1:4:2] if INTERPRETED else CASES)),
    ],
)
def test_values_and_gradients_match_the_modules(act, shortcut, groups, kernel, channels, uses):
    from swad.gpu._fused_norm_kernel import conv_norm_act

    conv, norm = layer(groups, kernel, channels)
    plain = copy.deepcopy((conv, norm))
    images = torch.randn(3, 8, 9, 7, device=DEVICE)
    added = torch.randn(3, channels, 5, 4, device=DEVICE) if shortcut else None
    weights = [torch.randn(3, channels, 5, 4, device=DEVICE) for _ in range(2)]

    mine = [t.clone().requires_grad_() if t is not None else None for t in (images, added)]
    y, alias = conv_norm_act(mine[0], conv, norm, act, mine[1], torch.float32)
    ((y * weights[0]).sum() + (alias * weights[1]).sum() * (uses == 2)).backward()

    theirs = [t.clone().requires_grad_() if t is not None else None for t in (images, added)]
    wanted = plain[1](plain[0](theirs[0])) + (0 if theirs[1] is None else theirs[1])
    wanted = {"none": lambda t: t, "relu": torch.relu, "relu6": nn.functional.relu6}[act](wanted)
    (wanted * (weights[0] + weights[1] * (uses == 2))).sum().backward()

    close = {"rtol": 1e-3, "atol": 1e-3}
    torch.testing.assert_close(y, wanted, **close)
    torch.testing.assert_close(mine[0].grad, theirs[0].grad, **close)
    if shortcut:
        torch.testing.assert_close(mine[1].grad, theirs[1].grad, **close)
    for one, other in ((conv.weight, plain[0].weight), (norm.weight, plain[1].weight), (norm.bias, plain[1].bias)):
        torch.testing.assert_close(one.grad, other.grad, **close)


@runs_kernels
@pytest.mark.parametrize(("size", "stride", "padding"), [(3, 2, 1), (2, 2, 0), (3, 1, 1)])
def test_max_pool_equals_torchs(size, stride, padding):
    from swad.gpu._fused_norm_kernel import max_pool

    torch.manual_seed(size)
    images = torch.randn(2, 66, 7, 5, device=DEVICE).relu()  # with many equal values, as after an activation
    images[1, 2, 3, 4] = float("nan")
    mine, theirs = (images.clone().requires_grad_() for _ in range(2))
    y, wanted = max_pool(mine, size, stride, padding), nn.functional.max_pool2d(theirs, size, stride, padding)
    assert torch.equal(y.isnan(), wanted.isnan())
    assert torch.equal(y.nan_to_num(), wanted.nan_to_num())
    weights = torch.randn_like(wanted)
    for output in (y, wanted):
        output.backward(weights)
    torch.testing.assert_close(mine.grad, theirs.grad)


@pytest.mark.parametrize(("kernel", "padding"), [(7, 3), (3, 1), (4, 1), (2, 0), (1, 0)])
@pytest.mark.parametrize("size", [(14, 14), (15, 12)])
@pytest.mark.parametrize("channels", [1, 3])
def test_blocks_of_pixels_as_channels_give_the_same_convolution(kernel, padding, size, channels):
    from swad.gpu._fused_norm_kernel import depth_to_space, space_to_depth

    torch.manual_seed(0)
    images = torch.randn(2, channels, *size, dtype=torch.float64)
    weight = torch.randn(5, channels, kernel, kernel, dtype=torch.float64, requires_grad=True)
    wanted = nn.functional.conv2d(images, weight, None, 2, padding)
    blocks, in_blocks = space_to_depth(images, weight.detach(), (padding, padding))
    in_blocks.requires_grad_()
    y = nn.functional.conv2d(blocks, in_blocks)
    torch.testing.assert_close(y, wanted)
    along = torch.randn_like(wanted)
    (of_weight,) = torch.autograd.grad(wanted, weight, along)
    (of_blocks,) = torch.autograd.grad(y, in_blocks, along)
    torch.testing.assert_close(depth_to_space(of_blocks, weight), of_weight)


@runs_kernels
def test_kernels_that_are_compiled_together_do_not_run_yet():
    from swad.gpu._fused_norm_kernel import shift_act
    from swad.util.kernels import compile_together

    maps, shift = torch.zeros(2, 4, 3, 3, device=DEVICE).to(memory_format=torch.channels_last), torch.ones(4)
    shift = shift.to(DEVICE)
    compile_together(lambda: [shift_act(maps, shift, None, act) for act in ("none", "relu", "relu")])
    assert not maps.any()
    assert shift_act(maps, shift, None, "none").eq(1).all()


@runs_kernels
def test_the_first_convolution_equals_the_modules():
    from swad.gpu._fused_norm_kernel import conv_norm_act

    torch.manual_seed(0)
    conv, norm = nn.Conv2d(3, 12, 7, 2, 3, bias=False).to(DEVICE), layer(1, 3)[1]
    images, results = torch.randn(3, 3, 18, 13, device=DEVICE), []
    for output in (conv_norm_act(images, conv, norm, "relu", None, torch.float32)[0], norm(conv(images)).relu()):
        grads = torch.autograd.grad(output.square().sum(), (conv.weight, norm.weight, norm.bias))
        results.append((output, *grads))
    torch.testing.assert_close(results[0], results[1], rtol=1e-3, atol=1e-3)


@runs_kernels
@pytest.mark.parametrize("act", ["none", "relu"])
def test_a_large_shift_can_still_be_trained_in_bfloat16(act):
    """Some pretrained batch norms have shifts of 16 and more, and a step changes them by 0.00005."""
    from swad.gpu._fused_norm_kernel import conv_norm_act

    conv, norm = layer(1, 3)
    images = torch.randn(4, 8, 24, 24, device=DEVICE)

    def mean_at(shift: float) -> torch.Tensor:
        nn.init.constant_(norm.bias, shift)
        return conv_norm_act(images, conv, norm, act, None, torch.bfloat16)[0].float().mean()

    assert float(mean_at(16.04) - mean_at(16.0)) == pytest.approx(0.04, abs=0.015)


@runs_kernels
@pytest.mark.parametrize("act", ["none", "relu", "relu6"])
def test_nan_is_kept(act):
    """As with torch's activations: a network that diverged must not look as if it had not."""
    from swad.gpu._fused_norm_kernel import conv_norm_act

    conv, norm = layer(1, 3)
    images = torch.randn(2, 8, 9, 7, device=DEVICE)
    images[0, 0, 4, 4] = float("nan")
    images.requires_grad_()
    wanted = {"none": lambda t: t, "relu": torch.relu, "relu6": nn.functional.relu6}[act](norm(conv(images)))
    (of_weight,) = torch.autograd.grad(wanted.sum(), conv.weight)
    y, _ = conv_norm_act(images, conv, norm, act, None, torch.float32)
    y.sum().backward()
    assert torch.equal(y.isnan(), wanted.isnan())
    assert y.isnan().any()
    assert torch.equal(conv.weight.grad.isnan(), of_weight.isnan())
    passes = y.isnan() | (act == "none") | ((y > 0) & (y < (6 if act == "relu6" else torch.inf)))
    assert torch.equal(norm.bias.grad, passes.sum((0, 2, 3)).float()), "a gradient must not vanish there either"


def network(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name in ("Bottleneck", "BasicBlock"):  # small enough for the interpreter
        block = getattr(resnet, name)
        model = resnet.ResNet(block, (2, 1, 1, 1), num_classes=5, channels=(4, 4, 4, 4))
        networks.freeze_statistics(model)
    else:
        model = networks.build(name, 5)
    for norm in batch_norms(model):
        norm.running_mean.normal_(0, 0.2)
        norm.running_var.uniform_(0.5, 1.5)
    return model.to(DEVICE, memory_format=torch.channels_last).train()


@runs_kernels
@pytest.mark.parametrize(
    "name", ["Bottleneck", "BasicBlock", *(() if INTERPRETED else ("resnet50", "mobilenetv2_100"))]
)
def test_fused_networks_keep_their_outputs_and_gradients(name, monkeypatch):
    plain, images = network(name), torch.randn(2, 3, SIZE, SIZE, device=DEVICE)
    fused = copy.deepcopy(plain)
    n = len(batch_norms(plain))
    with monkeypatch.context() as patch:
        # Fused in full precision, where a difference cannot hide behind rounding.
        patch.setattr(torch, "is_autocast_enabled", lambda device: True)
        patch.setattr(torch, "get_autocast_dtype", lambda device: torch.float32)
        assert fuse(fused, images, kernels=True) == n
        for model in (plain, fused):
            model(images).square().sum().backward()
        torch.testing.assert_close(fused(images), plain(images), rtol=1e-3, atol=1e-3)
    scale = max(p.grad.abs().max().item() for p in plain.parameters())
    for (key, mine), theirs in zip(fused.named_parameters(), plain.parameters(), strict=True):
        assert torch.allclose(mine.grad, theirs.grad, rtol=1e-2, atol=1e-3 * scale), key
    exact = plain(images)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        for mode in (False, True):  # as close to full precision as unfused mixed precision
            mine, theirs = ((model.train(mode)(images) - exact).norm() for model in (fused, plain))
            assert mine <= 3 * theirs + 1e-2 * exact.norm()
        copied = copy.deepcopy(fused)
        for parameter in copied.parameters():
            parameter.data.zero_()
        assert not copied(images).any()
    # Without mixed precision nothing is fused.
    torch.testing.assert_close(fused(images), plain(images), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(fused.eval()(images), plain.eval()(images), rtol=1e-5, atol=1e-5)
    restore(fused)
    assert not any("forward" in module.__dict__ for module in fused.modules())


@runs_kernels
def test_rounding_does_not_prevent_fusion():
    for seed in range(2 if INTERPRETED else 4):
        model = network("Bottleneck")
        torch.manual_seed(100 + seed)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            assert fuse(model, torch.randn(2, 3, SIZE, SIZE, device=DEVICE), kernels=True)


@runs_kernels
def test_tensors_of_a_pass_are_freed():
    def held() -> int:
        gc.collect()
        return sum("alias" in one.__dict__ for one in gc.get_objects() if type(one) is torch.Tensor)

    model, images = network("BasicBlock"), torch.randn(2, 3, SIZE, SIZE, device=DEVICE)
    before = held()
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        assert fuse(model, images, kernels=True)
        scores = model(images)
        assert held() > before  # kept for the backward pass
        scores.sum().backward()
        del scores
        with torch.no_grad():
            model.eval()(images)
    assert held() == before
