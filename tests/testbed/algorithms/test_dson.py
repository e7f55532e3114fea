from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from helpers.tiny_algorithms import batch_for, make, update
from swad.tensors.batch_norms import batch_norms
from swad.testbed.algorithms.base import StepContext
from swad.testbed.algorithms.dson import DomainNorm, Mixture
from swad.testbed.data.loaders import Batch
from swad.testbed.models import networks
from swad.testbed.models.small_cnn import SmallNet
from swad.testbed.training.evaluation import eval_mode

MIXES = pytest.mark.parametrize("mix", ["statistics", "outputs"])


def norm_with_branches(mix="statistics", domains=3, channels=4, freeze=True):
    """Return a norm whose branches all differ, with random statistics, and its plain batch norm."""
    torch.manual_seed(0)
    batch_norm = nn.BatchNorm2d(channels)
    for tensor in (batch_norm.weight, batch_norm.bias, batch_norm.running_mean):
        nn.init.normal_(tensor)
    nn.init.uniform_(batch_norm.running_var, 0.5, 2)
    if freeze:
        networks.freeze_statistics(batch_norm)
    norm = DomainNorm(batch_norm, Mixture(domains, 0.5), domains, mix == "outputs")
    for tensor in (norm.weight, norm.bias, norm._mixture[0].logits):
        nn.init.normal_(tensor)
    return norm, batch_norm


def by_hand(x, w, mean, variance, gamma, beta, eps, mix):
    """Normalize one map `[channels, height, width]` number by number."""
    found = torch.empty_like(x)
    for c in range(len(x)):
        numbers = x[c].flatten()
        own_mean = sum(numbers) / len(numbers)
        own_variance = sum((number - own_mean) ** 2 for number in numbers) / len(numbers)
        if mix == "statistics":
            center, spread = w * mean[c] + (1 - w) * own_mean, w * variance[c] + (1 - w) * own_variance
            normalized = (x[c] - center) / (spread + eps) ** 0.5
        else:
            batch = (x[c] - mean[c]) / (variance[c] + eps) ** 0.5
            normalized = w * batch + (1 - w) * (x[c] - own_mean) / (own_variance + eps) ** 0.5
        found[c] = gamma[c] * normalized + beta[c]
    return found


@MIXES
def test_outputs_and_gradients_by_hand(mix):
    norm, _ = norm_with_branches(mix)
    maps = torch.randn(6, 4, 3, 2, generator=torch.Generator().manual_seed(1), requires_grad=True)
    logits = norm._mixture[0].logits
    gamma, beta, a, x = (t.detach().double().requires_grad_() for t in (norm.weight, norm.bias, logits, maps))
    mean, variance = norm.running_mean.double(), norm.running_var.double()
    wanted = torch.stack(
        [
            by_hand(x[n], 1 / (1 + (-a[d]).exp()), mean[d], variance[d], gamma[d], beta[d], norm.eps, mix)
            for n in range(6)
            for d in [n // 2]
        ]
    )
    found = norm(maps)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-5)
    factors = torch.randn(found.shape, generator=torch.Generator().manual_seed(2))
    (found * factors).sum().backward()
    (wanted * factors.double()).sum().backward()
    for weight, twin in ((norm.weight, gamma), (norm.bias, beta), (logits, a), (maps, x)):
        torch.testing.assert_close(weight.grad.double(), twin.grad, rtol=1e-3, atol=1e-5)


@MIXES
@torch.no_grad()
def test_the_ends_of_the_mixture_are_batch_norm_and_instance_norm(mix):
    norm, batch_norm = norm_with_branches(mix)
    norm.weight.copy_(batch_norm.weight.expand(3, -1))
    norm.bias.copy_(batch_norm.bias.expand(3, -1))
    maps = torch.randn(6, 4, 5, 5, generator=torch.Generator().manual_seed(1))
    nn.init.constant_(norm._mixture[0].logits, 40.0)
    torch.testing.assert_close(norm(maps), batch_norm(maps))
    nn.init.constant_(norm._mixture[0].logits, -100.0)
    wanted = functional.instance_norm(maps, weight=batch_norm.weight, bias=batch_norm.bias)
    torch.testing.assert_close(norm(maps), wanted, rtol=1e-4, atol=1e-5)


@MIXES
def test_without_freezing_every_domain_has_its_own_batch_norm(mix):
    """With w = 1, outputs, gradients and running statistics are those of one `nn.BatchNorm2d` for each domain."""
    norm, batch_norm = norm_with_branches(mix, freeze=False)
    nn.init.constant_(norm._mixture[0].logits, 40.0)
    branches = [copy.deepcopy(batch_norm) for _ in range(3)]
    for d, branch in enumerate(branches):
        branch.weight.data, branch.bias.data = norm.weight.data[d].clone(), norm.bias.data[d].clone()
    for step in range(2):
        maps = torch.randn(6, 4, 3, 3, generator=torch.Generator().manual_seed(step)) * torch.arange(1, 7).view(
            6, 1, 1, 1
        )
        one, other = (maps.clone().requires_grad_() for _ in range(2))
        found = norm(one)
        wanted = torch.cat([branch(part) for branch, part in zip(branches, other.chunk(3), strict=True)])
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        found.square().mul(maps).sum().backward()
        wanted.square().mul(maps).sum().backward()
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-4)
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(getattr(norm, name), torch.stack([getattr(branch, name) for branch in branches]))
    norm.eval()
    before = norm.running_mean.clone()
    assert norm(maps).isfinite().all()
    assert norm.running_mean.equal(before)


def test_statistics_of_averaged_weights_are_those_of_every_domain():
    network = networks.build("test_resnet", 5, freeze_bn=False)
    algorithm = make("dson", network, shape=(3, 32, 32), start=0.9)
    batches = [batch_for(algorithm, step, (3, 32, 32)).images for step in (1, 2)]
    predictor = algorithm.predictor
    norm = predictor.network.bn1
    assert isinstance(norm, DomainNorm)
    with torch.no_grad():  # the first norm's inputs do not depend on other statistics
        maps = torch.stack([algorithm.by_domain(predictor.network.conv1(images)) for images in batches])
    assert algorithm.estimate_statistics(predictor, iter(batches))
    torch.testing.assert_close(norm.running_mean, maps.mean((0, 2, 4, 5)), rtol=1e-4, atol=1e-5)
    variances = maps.transpose(2, 3).flatten(3).var(3).mean(0)
    torch.testing.assert_close(norm.running_var, variances, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(norm.running_mean[0], norm.running_mean[1], atol=1e-3)
    assert norm.momentum == 0.1
    assert not any(module.training for module in predictor.modules())
    assert not make("dson").estimate_statistics(make("dson").predictor, []), "those of the small network are fixed"


@pytest.mark.parametrize("name", [networks.SMALL, "test_resnet", "test_efficientnet"])
def test_batch_statistics_alone_are_the_plain_network(name):
    """With w = 1 and the network's own scale and shift, also in batch norms with activations inside."""
    shape = (3, 28, 28) if name == networks.SMALL else (3, 32, 32)
    network = networks.build(name, 5)
    for norm in batch_norms(network):
        nn.init.normal_(norm.running_mean, std=0.1)
        nn.init.uniform_(norm.running_var, 0.8, 1.2)
    erm, algorithm = make("erm", copy.deepcopy(network), shape=shape), make("dson", network, shape=shape, start=0.5)
    assert not batch_norms(algorithm.predictor)
    batch = batch_for(algorithm, shape=shape)
    assert not torch.allclose(algorithm.loss(batch, {}), erm.loss(batch, {}), atol=1e-3)
    nn.init.constant_(algorithm.predictor.mixtures[0].logits, 40.0)
    torch.testing.assert_close(algorithm.loss(batch, {}), erm.loss(batch, {}), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(algorithm.predictor(batch.images), erm.predictor(batch.images), rtol=1e-3, atol=1e-4)


def small_scores(network, image, domain, w, mix):
    """Return the scores of one image in one branch of the small network."""
    maps = image
    for stage in (network.stem, network.body):
        conv, norm, relu = stage
        maps = conv(maps[None])[0]
        mean, variance = torch.zeros(len(maps)), torch.ones(len(maps))
        maps = relu(by_hand(maps, w, mean, variance, norm.weight[domain], norm.bias[domain], 1e-5, mix))
    features = network.hidden(functional.max_pool2d(maps, 2, 2).flatten()[None])
    return network.head(features)[0]


@MIXES
@torch.no_grad()
def test_training_uses_the_domains_branch_and_predictions_are_means_over_branches(mix):
    algorithm = make("dson", SmallNet(5, 3, width=2), domains=2, batch_size=1, mix=mix)
    predictor = algorithm.predictor
    for stage in networks.stages(predictor.network):
        for parameter in stage[1].parameters():
            nn.init.normal_(parameter, mean=1.0, std=0.3)
    predictor.mixtures[0].logits.copy_(torch.tensor([-1.0, 2.0]))
    batch = batch_for(algorithm)
    w = predictor.mixtures[0]().tolist()
    branches = torch.stack(
        [
            torch.stack([small_scores(predictor.network, image, d, w[d], mix) for image in batch.images])
            for d in range(2)
        ]
    )
    torch.testing.assert_close(predictor(batch.images), branches.mean(0), rtol=1e-4, atol=1e-5)
    wanted = functional.cross_entropy(torch.stack([branches[0, 0], branches[1, 1]]), batch.labels)
    torch.testing.assert_close(algorithm.loss(batch, {}), wanted, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(branches[0], branches[1], atol=1e-2)


def test_weights_are_shared_by_the_network_or_by_a_layer():
    shared, layered = (make("dson", share=share).predictor for share in ("network", "layer"))
    assert [len(predictor.mixtures) for predictor in (shared, layered)] == [1, 2]
    assert shared.network.stem[1]._mixture[0] is shared.network.body[1]._mixture[0] is shared.mixtures[0]
    assert layered.network.body[1]._mixture[0] is layered.mixtures[1]
    pointers = [tensor.data_ptr() for tensor in shared.state_dict().values()]
    assert len(set(pointers)) == len(pointers), "every tensor is saved once"
    twin = copy.deepcopy(shared)
    assert twin.network.stem[1]._mixture[0] is twin.mixtures[0] is not shared.mixtures[0]


def test_start_and_optimizers():
    algorithm = make("dson", start=0.8, lr=1e-5, mixture_lr=0.01, weight_decay=0.5)
    torch.testing.assert_close(algorithm.predictor.mixtures[0](), torch.full((3,), 0.8))
    rates = {
        name: (float(group["lr"]), group["weight_decay"])
        for name, optimizer in algorithm.optimizers.items()
        for group in optimizer.param_groups
    }
    assert rates == {"main": (1e-5, 0.5), "mixtures": (0.01, 0)}


@pytest.mark.parametrize("share", ["network", "layer"])
@MIXES
def test_all_options_train_and_predict(mix, share):
    algorithm = make("dson", networks.build("test_resnet", 5), shape=(3, 32, 32), mix=mix, share=share)
    before = copy.deepcopy(algorithm.predictor.mixtures.state_dict())
    batch = batch_for(algorithm, shape=(3, 32, 32))
    for step in (1, 2):
        assert update(algorithm, batch._replace(step=step)).isfinite()
    assert all(not tensor.equal(before[name]) for name, tensor in algorithm.predictor.mixtures.state_dict().items())
    with torch.no_grad(), eval_mode(algorithm.predictor):
        assert algorithm.predictor(batch.images[:5]).isfinite().all()


def test_a_domain_whose_brightness_matters_keeps_its_batch_statistics():
    """In one domain brightness is the label, in the other it is noise, which instance norm removes."""

    def draw(seed):
        generator = torch.Generator().manual_seed(seed)
        labels = torch.randint(0, 2, (32,), generator=generator)
        images = 0.3 * torch.randn((32, 1, 28, 28), generator=generator)
        brightness = torch.where(torch.arange(32) < 16, labels.float(), 4 * torch.randn(32, generator=generator))
        for image, label in zip(images[16:], labels[16:].tolist(), strict=True):
            image[:, 4 + 12 * label : 8 + 12 * label, 12:16] += 2
        return Batch(seed, images + brightness.view(-1, 1, 1, 1), labels)

    algorithm = make("dson", SmallNet(2, 1), domains=2, batch_size=16, lr=1e-3, start=0.5, mixture_lr=0.05)
    for step in range(1, 41):
        algorithm.update(draw(step), {}, StepContext())
    w = algorithm.predictor.mixtures[0]()
    assert w[0] > w[1] + 0.1
