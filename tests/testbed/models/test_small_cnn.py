"""The small network: the sizes it accepts, and its pooling."""

from __future__ import annotations

import pytest
import torch

from swad.tensors.batch_norms import batch_norms
from swad.testbed.models import networks


@pytest.mark.parametrize(("channels", "size"), [(3, 28), (1, 28), (2, 28), (3, 31), (3, 32), (1, 33)])
def test_it_accepts_low_resolution_images(channels, size):
    model = networks.build(networks.SMALL, 10, channels=channels)
    assert model(torch.randn(4, channels, size, size)).shape == (4, 10)
    assert not batch_norms(model)
    assert sum(p.numel() for p in model.parameters()) < 200_000


def test_it_pools_as_torch_does_and_under_vmap():
    network = networks.build("small", 5)
    images = torch.randn(6, 3, 30, 30)
    images[:, :, :12] = 0.5  # ties
    maps = network.body(network.stem(images)).detach().requires_grad_()
    twin = maps.detach().clone().requires_grad_()
    network.stem, network.body = torch.nn.Identity(), torch.nn.Identity()
    pooled = network.forward_features(maps)
    wanted = torch.nn.functional.max_pool2d(twin, twin.shape[-1] - 12, 2)
    assert torch.equal(pooled, wanted)
    weight = torch.randn_like(wanted)
    (pooled * weight).sum().backward()
    (wanted * weight).sum().backward()
    assert torch.equal(maps.grad, twin.grad)
    several = torch.stack([maps.detach(), 2 * maps.detach()])
    assert torch.equal(torch.vmap(network.forward_features)(several)[0], wanted)
