"""MIRO's regularization, layer by layer and element by element, and its frozen network."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch.nn import functional

from helpers.tiny_algorithms import CLASSES, batch_for, make, noise_for, tell, update
from swad.tensors.batch_norms import batch_norms
from swad.testbed.algorithms.base import StepContext
from swad.testbed.algorithms.miro import gaussian_loss
from swad.testbed.models import networks


def resnet(freeze_bn=True):
    torch.manual_seed(0)
    network = networks.build("test_resnet", CLASSES, freeze_bn=freeze_bn)
    for norm in batch_norms(network):
        nn.init.uniform_(norm.running_mean, -1, 1)
    return network


def vit():
    torch.manual_seed(0)
    return VisionTransformer(img_size=32, patch_size=8, embed_dim=32, depth=8, num_heads=2, num_classes=CLASSES)


def small():
    torch.manual_seed(0)
    return networks.build(networks.SMALL, CLASSES)


def maps_by_hand(network, images):
    """Return the maps of the layers, with the channels first, without hooks."""
    if isinstance(network, VisionTransformer):
        found, tokens = [network.patch_embed.proj(images)], network._pos_embed(network.patch_embed(images))
        for i, block in enumerate(network.blocks):
            tokens = block(tokens)
            if i in (1, 3, 5, 7):
                found.append(tokens.transpose(1, 2))
        return found
    if hasattr(network, "layer1"):
        found = [network.maxpool(network.act1(network.bn1(network.conv1(images))))]
        for layer in (network.layer1, network.layer2, network.layer3, network.layer4):
            found.append(layer(found[-1]))
        return found
    first = network.stem(images)
    return [first, network.body(first)]


def trained(build, **options):
    """Return an algorithm after a few steps, so that both networks and the variances differ, and a batch."""
    shape = (3, 28, 28) if build is small else (3, 32, 32)
    algorithm = make("miro", build(), shape=shape, lr=0.02, **options)
    for step in (1, 2, 3):
        update(algorithm, batch_for(algorithm, step, shape))
    return algorithm, batch_for(algorithm, 4, shape)


@pytest.mark.parametrize(("build", "layers"), [(resnet, 5), (vit, 5), (small, 2)])
def test_loss_and_gradients_are_those_of_the_elements(build, layers):
    """Against autograd through the formula as written, for the weights and the variances."""
    algorithm, batch = trained(build, penalty=0.7)
    weights = [*algorithm.predictor.parameters(), *algorithm.raw_variances]
    with torch.no_grad():
        targets = maps_by_hand(build().eval(), batch.images)  # of the initial weights
    wanted = functional.cross_entropy(algorithm.predictor(batch.images), batch.labels)
    maps = maps_by_hand(algorithm.predictor, batch.images)
    assert len(maps) == layers
    for z, z0, raw in zip(maps, targets, algorithm.raw_variances, strict=True):
        assert not z.equal(z0)
        variance = (torch.log1p(raw.exp()) + 1e-5).view(-1, *[1] * (z.ndim - 2)).expand_as(z)
        wanted = wanted + 0.7 * ((z - z0) ** 2 / variance + variance.log()).mean() / 2
    loss = algorithm.loss(batch, noise_for(algorithm))
    torch.testing.assert_close(loss, wanted, rtol=1e-5, atol=1e-5)
    pairs = zip(torch.autograd.grad(loss, weights), torch.autograd.grad(wanted, weights), strict=True)
    for gradient, wanted_gradient in pairs:
        torch.testing.assert_close(gradient, wanted_gradient, rtol=1e-3, atol=1e-6)


def test_a_variance_has_a_closed_form():
    """The derivative by σ² is (1 - d / σ²) / (2 C σ²), which is 0 where σ² is the mean squared distance d."""
    z, z0 = torch.randn(2, 5, 4, 3, generator=torch.Generator().manual_seed(0)).double().unbind(0)
    distances = (z - z0).square().mean((0, 1))
    for factor in (0.5, 1.0, 2.0):
        variances = (factor * distances).requires_grad_()
        loss = gaussian_loss(z.double(), z0.double(), variances)
        [found] = torch.autograd.grad(loss, variances)
        torch.testing.assert_close(found.float(), ((1 - 1 / factor) / (6 * variances)).float(), rtol=1e-4, atol=1e-6)
        want = sum(1 / factor + math.log(factor * d) for d in distances.tolist()) / 6
        assert loss.item() == pytest.approx(want, rel=1e-5)


def test_it_starts_with_a_variance_of_a_tenth_and_equal_networks():
    algorithm = make("miro", penalty=2.0)
    batch = batch_for(algorithm)
    for raw in algorithm.raw_variances:
        torch.testing.assert_close(functional.softplus(raw) + 1e-5, torch.full_like(raw, 0.1))
    entropy = functional.cross_entropy(algorithm.predictor(batch.images), batch.labels)
    want = entropy + 2 * 2 * math.log(0.1) / 2
    torch.testing.assert_close(algorithm.loss(batch, noise_for(algorithm)), want)


def test_variances_grow_where_features_change():
    """Two channels of the first layer: one is moved away from the start, the other is not."""
    algorithm = make("miro", lr=1e-3)
    batch = batch_for(algorithm)
    with torch.no_grad():
        algorithm.predictor.stem[0].bias[0] += 5
    for step in range(1, 4):
        update(algorithm, batch._replace(step=step))
    variances = functional.softplus(algorithm.raw_variances[0]) + 1e-5
    assert variances[0] > 0.1 > variances[1]


def test_a_large_penalty_keeps_the_features():
    def moved(penalty):
        algorithm = make("miro", lr=1e-3, penalty=penalty)
        batch = batch_for(algorithm)
        for step in range(1, 9):
            update(algorithm, batch._replace(step=step))
        maps = [net.stem(batch.images) for net in (algorithm.predictor, small())]
        return (maps[0] - maps[1]).square().mean().item()

    assert moved(100.0) < 0.5 * moved(0.0)


def test_the_variances_have_ten_times_the_learning_rate():
    algorithm = make("miro", lr=0.02, weight_decay=0.2)
    tell(algorithm, lr_scale=0.5)
    network, variances = algorithm.optimizers["main"].param_groups
    assert (network["lr"], variances["lr"]) == (0.01, 0.1)
    assert network["weight_decay"] == variances["weight_decay"] == 0.2
    assert [id(param) for param in variances["params"]] == [id(param) for param in algorithm.raw_variances]


def test_the_frozen_network_never_changes_and_is_in_checkpoints():
    algorithm, _ = trained(lambda: resnet(freeze_bn=False))
    start = resnet(freeze_bn=False).state_dict()
    state = algorithm.state_dict()
    assert {key.removeprefix("frozen."): value for key, value in state.items() if key.startswith("frozen.")}.keys() == (
        start.keys()
    )
    assert all(state[f"frozen.{key}"].equal(value) for key, value in start.items())
    changed = {key for key, value in start.items() if not state[f"predictor.{key}"].equal(value)}
    assert any("running_mean" in key for key in changed), "the trained network's statistics are not frozen here"
    # Another start, as if the file of initial weights had changed since.
    torch.manual_seed(9)
    other = make("miro", networks.build("test_resnet", CLASSES), shape=(3, 32, 32), lr=0.02)
    for weight in other.predictor.parameters():
        nn.init.normal_(weight)
    other.load_state_dict(state)
    batch = batch_for(algorithm, 9, (3, 32, 32))
    algorithm.eval(), other.eval()
    assert algorithm.loss(batch, noise_for(algorithm)).equal(other.loss(batch, noise_for(other)))


def test_the_predictor_is_the_network_alone():
    algorithm, batch = trained(small)
    assert algorithm.predictor.state_dict().keys() == small().state_dict().keys()
    plain = small()
    plain.load_state_dict(algorithm.predictor.state_dict())
    twin = copy.deepcopy(algorithm.predictor)
    assert twin(batch.images).equal(plain(batch.images))
    assert algorithm._maps.maps is None


def test_a_sharpness_aware_step_moves_the_variances_too():
    algorithm = make("miro+sagm", rho=0.5)
    before = [raw.detach().clone() for raw in algorithm.raw_variances]
    algorithm.update(batch_for(algorithm), {}, StepContext())
    assert not any(one.equal(other) for one, other in zip(before, algorithm.raw_variances, strict=True))
