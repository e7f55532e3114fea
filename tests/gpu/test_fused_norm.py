"""Fused batch norms give the same outputs and the same gradients."""

import copy

import pytest
import timm
import torch
from torch import nn

from swad.gpu.fused_norm import fuse, restore, unfused
from swad.tensors.batch_norms import batch_norms
from swad.testbed.models import networks


def network(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = Biased() if name == "biased" else networks.build(name, 5)
    for norm in batch_norms(model):
        norm.running_mean.normal_(0, 0.2)
        norm.running_var.uniform_(0.5, 1.5)
        norm.weight.data.uniform_(0.5, 1.5)
        norm.bias.data.normal_(0, 0.2)
    return model.double().train()


class Biased(nn.Sequential):
    """Convolutions with a bias, as in VGG."""

    def __init__(self) -> None:
        one = (nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 3, 2), nn.BatchNorm2d(4), nn.ReLU())
        super().__init__(*one, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
        networks.freeze_statistics(self)


@pytest.mark.parametrize(("name", "norms"), [("resnet10t", 14), ("mobilenetv2_050", 52), ("biased", 2)])
def test_outputs_and_gradients_match_the_unfused_network(name, norms):
    plain, images = network(name), torch.randn(2, 3, 64, 64, dtype=torch.float64)
    fused = copy.deepcopy(plain)
    assert fuse(fused, images, kernels=False) == norms == len(batch_norms(plain))
    for model in (plain, fused):
        model(images).square().sum().backward()
    torch.testing.assert_close(fused(images), plain(images))
    for (key, mine), theirs in zip(fused.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, msg=lambda text, key=key: f"{key}: {text}")
    assert fused.state_dict().keys() == plain.state_dict().keys()
    copied = copy.deepcopy(fused)  # as at the end of a run, which evaluates a copy
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.mul_(1.1)
    assert not torch.equal(copied(images), fused(images))
    torch.testing.assert_close(fused(images), plain(images))
    with unfused(fused):
        assert torch.equal(fused(images), plain(images))
    assert not torch.equal(fused(images), plain(images))
    assert torch.equal(fused.eval()(images), plain.eval()(images))
    restore(fused.train())
    assert torch.equal(fused(images), plain.train()(images))


def test_networks_that_cannot_be_fused_are_unchanged():
    images = torch.randn(2, 3, 32, 32)
    assert fuse(networks.build("small", 5).train(), torch.randn(2, 3, 28, 28), kernels=False) == 0
    trained = timm.create_model("resnet10t", num_classes=5).train()
    statistics = {name: tensor.clone() for name, tensor in trained.named_buffers()}
    assert fuse(trained, images, kernels=False) == 0
    assert all(tensor.equal(statistics[name]) for name, tensor in trained.named_buffers())

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)

        def forward(self, x):
            maps = self.conv(x)
            return self.norm(maps) + maps  # the output of the convolution is used twice

    twice = Twice()
    networks.freeze_statistics(twice)
    nn.init.constant_(twice.norm.weight, 3.0)
    before = twice(images)
    assert fuse(twice.train(), images, kernels=False) == 0
    assert torch.equal(twice(images), before)
