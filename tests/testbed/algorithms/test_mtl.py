from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional

from helpers.tiny_algorithms import batch_for, make, noise_for, train_points
from swad.testbed.algorithms.base import StepContext
from swad.testbed.models import networks


def features_of(network, images):
    return network.forward_head(network.forward_features(images), pre_logits=True)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_loss_gradient_and_memory_by_hand(dropout):
    algorithm = make("mtl", ema=0.7, dropout=dropout)
    algorithm.embeddings.normal_(generator=torch.Generator().manual_seed(5))
    batch, noise = batch_for(algorithm), noise_for(algorithm)
    twin = copy.deepcopy(algorithm).double()
    network = twin.predictor.network
    features = features_of(network, batch.images.double()) * (noise["dropout_mask"].double() if dropout else 1)
    losses, remembered = [], []
    for domain in range(3):
        rows = slice(4 * domain, 4 * domain + 4)
        memory = 0.7 * sum(features[rows]) / 4 + 0.3 * twin.embeddings[domain]
        remembered.append(memory.detach())
        weight, bias = network.head.weight, network.head.bias
        for z, y in zip(features[rows], batch.labels[rows], strict=True):
            scores = weight[:, :128] @ z + weight[:, 128:] @ memory + bias
            losses.append(scores.exp().sum().log() - scores[y])
    want = sum(losses) / 12
    before = algorithm.embeddings.clone()
    loss = algorithm.loss(batch, noise)
    assert loss.item() == pytest.approx(want.item(), rel=1e-5)
    assert algorithm.embeddings.equal(before), "a loss changes nothing"
    loss.backward()
    for weight, gradient in zip(
        algorithm.predictor.parameters(), torch.autograd.grad(want, list(twin.predictor.parameters())), strict=True
    ):
        torch.testing.assert_close(weight.grad.double(), gradient, rtol=1e-3, atol=1e-6)
    algorithm.update(batch, noise, StepContext())
    torch.testing.assert_close(algorithm.embeddings.double(), torch.stack(remembered), rtol=1e-4, atol=1e-6)


def test_the_first_embedding_is_the_weighted_batch_mean():
    algorithm = make("mtl")
    assert not algorithm.embeddings.any()
    batch = batch_for(algorithm)
    with torch.no_grad():
        means = features_of(algorithm.predictor, batch.images).view(3, 4, -1).mean(1)
    algorithm.update(batch, {}, StepContext())
    torch.testing.assert_close(algorithm.embeddings, 0.99 * means)
    assert "embeddings" in algorithm.state_dict()
    assert not any("embedding" in name for name in algorithm.predictor.state_dict())


@pytest.mark.parametrize("name", [networks.SMALL, "test_resnet", "test_vit"])
def test_evaluation_uses_the_mean_of_each_group(name):
    size = 28 if name == networks.SMALL else 160
    algorithm = make("mtl", networks.build(name, 5))
    predictor = algorithm.predictor.eval()
    assert algorithm.eval_group_size(algorithm.hyperparameters) == 4
    images = torch.randn(10, 3, size, size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = predictor(images)
        parts = torch.cat([predictor(part) for part in images.split(4)])
        torch.testing.assert_close(found, parts, rtol=1e-4, atol=1e-5)
        last = features_of(predictor.network, images[8:])
        context = last.mean(0).expand_as(last)
        torch.testing.assert_close(
            found[8:], networks.head(predictor)(torch.cat([last, context], 1)), atol=1e-5, rtol=1e-4
        )
        assert not torch.allclose(found[:1], predictor(images[:1])), "grouping matters"
        assert found.equal(predictor(images)), "and nothing else: no chance"


def test_the_head_is_replaced():
    predictor = make("mtl").predictor
    heads = [
        module for module in predictor.modules() if isinstance(module, torch.nn.Linear) and module.out_features == 5
    ]
    assert [one.in_features for one in heads] == [256]
    assert networks.head(predictor) is heads[0]


def test_it_predicts_labels_that_depend_on_the_domain():
    """The label says whether a number is above its domain's mean; without the domain it is almost random."""

    def draw(generator):
        center = torch.tensor([[-4.0], [0.0], [4.0]])
        points = center + torch.randn((3, 64), generator=generator)
        return points.unsqueeze(-1), (points > points.mean(1, keepdim=True)).long()

    def right(name):
        algorithm = train_points(name, draw, steps=400, features=4, lr=0.02)
        points, labels = draw(torch.Generator().manual_seed(999))
        scores = algorithm.predictor.eval()(points[1] + 2.0)  # a new domain
        return (scores.argmax(1) == labels[1]).double().mean().item()

    assert right("erm") < 0.7
    assert right("mtl") > 0.9


def test_embeddings_stay_in_full_precision_under_bf16():
    algorithm = make("mtl")
    algorithm.update(batch_for(algorithm), {}, StepContext(autocast=lambda: torch.autocast("cpu", torch.bfloat16)))
    assert algorithm.embeddings.dtype == torch.float32
    assert functional.mse_loss(algorithm.embeddings, algorithm.embeddings.bfloat16().float()) > 0


def test_weight_decay_and_clipping_act_like_larger_ones_on_a_sum_over_domains():
    """DomainBed sums the losses of the domains; the docstring of MTL says how the two are related."""
    states = {}
    for name, factor, decay, clip in (("mean", 1, 0.3, 0.1), ("sum", 3, 0.9, 0.3), ("same", 3, 0.3, 0.3)):
        algorithm = make("mtl", weight_decay=decay, lr=0.01)
        loss = algorithm.loss
        algorithm.loss = lambda batch, noise, loss=loss, factor=factor: factor * loss(batch, noise)
        for optimizer in algorithm.optimizers.values():
            for group in optimizer.param_groups:
                group["eps"] = 1e-8 * factor
        for step in (1, 2, 3):
            algorithm.update(batch_for(algorithm, step), noise_for(algorithm, step), StepContext(clip=clip))
        states[name] = algorithm.predictor.get_classifier().weight.detach()
    torch.testing.assert_close(states["mean"], states["sum"], rtol=1e-3, atol=1e-5)
    assert (states["mean"] - states["same"]).abs().max() > 1e-3
