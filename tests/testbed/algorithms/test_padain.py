from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from helpers.tiny_algorithms import batch_for, make, noise_for, tell
from swad.gpu.fused_norm import fuse
from swad.tensors.batch_norms import batch_norms
from swad.testbed.algorithms._mixed_maps import MixingState
from swad.testbed.algorithms.padain import SwapStatistics, convolutions
from swad.testbed.models import networks

EPS = 1e-5


def swapped(maps, partner):
    """Swap statistics image by image and channel by channel, in double precision."""
    maps, wanted = maps.double(), torch.empty_like(maps, dtype=torch.float64)
    positions = maps[0, 0].numel()
    for n in range(len(maps)):
        for c in range(maps.shape[1]):
            x, y = maps[n, c], maps[partner[n], c]
            deviations = []
            for values in (x, y):
                squares = ((values - values.mean()) ** 2).sum()
                deviations.append((squares / (positions - 1) + EPS) ** 0.5)
            wanted[n, c] = (x - x.mean()) / (deviations[0] + EPS) * deviations[1] + y.mean()
    return wanted


def test_maps_get_the_statistics_of_their_partner_before_the_norm():
    """Every convolution swaps or not by its own draw; what comes out is what the batch norm receives."""
    algorithm = make("padain", networks.build("test_resnet", 5), batch_size=1, p=1.0)
    layers = convolutions(algorithm.predictor)
    norms = batch_norms(algorithm.predictor)
    every_other = torch.arange(len(layers)) % 2 == 0
    noise = noise_for(algorithm) | {"coin": every_other, "partner": torch.tensor([[1, 2, 0]]).expand(len(layers), 3)}
    outputs, inputs = [], []
    for layer in layers:
        own = layer.forward

        def forward(x, own=own):
            outputs.append(own(x))
            return outputs[-1]

        layer.forward = forward
    for norm in norms:
        norm.register_forward_pre_hook(lambda module, args: inputs.append(args[0]))
    with torch.no_grad():
        algorithm.loss(batch_for(algorithm, 1, (3, 16, 16)), noise)
    assert len(outputs) == len(layers) == algorithm.n_layers
    for k, before in enumerate(outputs):
        wanted = before.double()
        if noise["coin"][k] and before.shape[2] > 1:
            wanted = swapped(before, noise["partner"][k])
            assert not torch.allclose(wanted, before.double(), atol=1e-2)
        found = [one for one in inputs if one.shape == before.shape and torch.allclose(one.double(), wanted, atol=1e-4)]
        assert found, f"the norm after convolution {k} received something else"
    assert any(before.shape[2] == 1 for before in outputs), "maps of one position are left unchanged"


def test_tiny_deviations_show_both_constants_and_the_divisor():
    """Elsewhere they cancel: both images have the same divisor, and 1e-5 is small."""
    mixing, partner = MixingState(), torch.tensor([1, 2, 0])
    mixing.step = {"coin": torch.tensor([True]), "partner": partner[None]}, lambda rows: rows, lambda rows: rows
    maps = torch.randn(3, 2, 2, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([1e-3, 4e-3, 2e-2]).view(
        3, 1, 1, 1
    )
    found = SwapStatistics(mixing, 0)(nn.Identity(), (), maps)
    torch.testing.assert_close(found.double(), swapped(maps, partner), rtol=1e-4, atol=1e-8)


def test_only_the_partners_statistics_carry_no_gradient():
    algorithm = make("padain", p=1.0)
    batch, noise = batch_for(algorithm), noise_for(algorithm)
    algorithm.loss(batch, noise).backward()
    twin = copy.deepcopy(algorithm.predictor).double()

    def swap(maps, k):
        mean = maps.mean((2, 3), keepdim=True)
        deviation = (maps.var((2, 3), keepdim=True) + EPS).sqrt()
        partner = noise["partner"][k]
        return (maps - mean) / (deviation + EPS) * deviation[partner].detach() + mean[partner].detach()

    for layer in convolutions(twin):
        layer._forward_hooks.clear()
    maps = swap(twin.stem[0](batch.images.double()), 0).relu()
    maps = swap(twin.body[0](maps), 1).relu()
    pooled = functional.max_pool2d(maps, 2, 2)
    loss = functional.cross_entropy(twin.head(twin.hidden(pooled.flatten(1))), batch.labels)
    wanted = torch.autograd.grad(loss, list(twin.parameters()))
    for weight, gradient in zip(algorithm.predictor.parameters(), wanted, strict=True):
        torch.testing.assert_close(weight.grad.double(), gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(("name", "layers", "shortcuts"), [("resnet50", 49, 4), ("mobilenetv2_100", 52, 0)])
def test_all_convolutions_but_those_of_shortcuts_swap(name, layers, shortcuts):
    timm = pytest.importorskip("timm")
    with torch.device("meta"):
        network = timm.create_model(name)
    assert len(convolutions(network)) == layers
    assert sum(isinstance(module, nn.Conv2d) for module in network.modules()) == layers + shortcuts


def test_a_network_without_convolutions_is_an_error():
    with pytest.raises(networks.NetworkError, match="pAdaIN needs a network with convolutions, got Sequential"):
        make("padain", nn.Sequential(nn.Flatten(), nn.Linear(12, 5)))


def test_draws_follow_the_probability_and_permute_the_whole_batch():
    algorithm = make("padain", p=0.25)
    noises = {step: noise_for(algorithm, step) for step in range(1, 301)}
    assert torch.stack([noise["coin"] for noise in noises.values()]).double().mean().item() == pytest.approx(
        0.25, abs=0.05
    )
    assert {noise["coin"].any().item() == (algorithm.phase(step) == "swap") for step, noise in noises.items()} == {True}
    assert {algorithm.phase(step) for step in noises} == {"plain", "swap"}
    for step in range(1, 10):
        first, second = noises[step]["partner"]
        assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(12))
        assert not first.equal(second), "every convolution has its own"
    coins = [algorithm.draw_coins(step) for step in noises]
    tell(algorithm, seed=1)
    assert coins != [algorithm.draw_coins(step) for step in noises], "other runs have other draws"


def test_only_training_is_swapped_and_probability_zero_is_erm():
    algorithm, plain = make("padain", p=1.0), make("erm")
    batch, noise = batch_for(algorithm), noise_for(algorithm)
    assert algorithm.predictor(batch.images).equal(plain.predictor(batch.images))
    assert not algorithm.loss(batch, noise).equal(plain.loss(batch, {}))
    assert algorithm.predictor(batch.images).equal(plain.predictor(batch.images))
    assert algorithm.eval().loss(batch, noise).equal(plain.loss(batch, {}))
    never = make("padain", p=0.0)
    assert never.loss(batch, noise_for(never)).equal(plain.loss(batch, {}))


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_batch_norms_are_fused_only_where_nothing_swaps(p):
    """Maps change between a convolution and its batch norm, so a fused one would swap something else."""
    algorithm = make("padain", networks.build("test_resnet", 5), p=p)
    for norm in batch_norms(algorithm.predictor):
        norm.running_mean.normal_(0, 0.2)
        norm.running_var.uniform_(0.5, 1.5)
        norm.weight.data.uniform_(0.5, 1.5)
    batch, noise = batch_for(algorithm, 1, (3, 32, 32)), noise_for(algorithm)
    calls: list[bool] = []
    algorithm.predictor.register_forward_pre_hook(
        lambda network, args: calls.append(any("forward" in module.__dict__ for module in network.modules()))
    )
    loss = algorithm.loss(batch, noise)
    assert fuse(algorithm.predictor, batch.images[:2], kernels=False) > 0
    torch.testing.assert_close(algorithm.loss(batch, noise), loss)
    assert (calls[0], calls[-1]) == (False, p == 0)


@pytest.mark.slow
def test_compiled_networks_swap_too():
    layers = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
    networks.freeze_statistics(network)
    network[1].running_var.fill_(2)
    algorithm = make("padain", network, batch_size=1, p=0.3)
    by_phase = {algorithm.phase(step): step for step in range(1, 50)}
    steps = [by_phase["plain"], by_phase["swap"], by_phase["plain"]]
    batches = [batch_for(algorithm, step, (3, 8, 8)) for step in steps]
    wanted = [algorithm.loss(batch, noise_for(algorithm, batch.step)) for batch in batches]
    assert fuse(algorithm.predictor, batches[0].images[:2], kernels=False) > 0
    torch._dynamo.reset()
    algorithm._predict = torch.compile(algorithm._predict, backend="eager")
    for batch, want in zip(batches, wanted, strict=True):
        torch.testing.assert_close(algorithm.loss(batch, noise_for(algorithm, batch.step)), want)
    torch._dynamo.reset()
