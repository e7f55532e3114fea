from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from helpers.tiny_algorithms import batch_for, make
from swad.testbed.algorithms.base import StepContext
from swad.testbed.algorithms.registry import get_algorithm
from swad.testbed.data.loaders import Batch
from swad.testbed.models import networks
from swad.testbed.models.networks import NetworkError
from swad.testbed.training.config import RunConfig
from swad.testbed.training.resolve import resolve


def by_hand(predictor, images, group):
    """Compute the context of every group, and the scores of its images one by one."""
    found = []
    for start in range(0, len(images), group):
        part = images[start : start + group]
        context = sum(predictor.context(image[None])[0] for image in part) / len(part)
        found += [predictor.network(torch.cat([image, context])[None])[0] for image in part]
    return torch.stack(found)


def test_loss_and_gradient_by_hand():
    algorithm = make("arm", domains=2, context_width=8)
    batch = batch_for(algorithm)
    twin = copy.deepcopy(algorithm.predictor).double()
    want = functional.cross_entropy(by_hand(twin, batch.images.double(), 4), batch.labels)
    loss = algorithm.loss(batch, {})
    assert loss.item() == pytest.approx(want.item(), rel=1e-5)
    loss.backward()
    wanted = torch.autograd.grad(want, list(twin.parameters()))
    for (name, weight), gradient in zip(algorithm.predictor.named_parameters(), wanted, strict=True):
        torch.testing.assert_close(
            weight.grad.double(), gradient, rtol=1e-3, atol=1e-6, msg=lambda t, n=name: f"{n} {t}"
        )


@pytest.mark.parametrize("name", [networks.SMALL, "test_resnet", "test_vit"])
def test_evaluation_uses_the_context_of_each_group(name):
    size = 28 if name == networks.SMALL else 160
    algorithm = make("arm", networks.build(name, 5), context_width=4)
    predictor = algorithm.predictor.eval()
    assert algorithm.eval_group_size(algorithm.hyperparameters) == 4
    images = torch.randn(6, 3, size, size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = predictor(images)
        torch.testing.assert_close(found, by_hand(predictor, images, 4), rtol=1e-3, atol=1e-4)
        assert not torch.allclose(found[:1], predictor(images[:1]))
        features = networks.features(predictor, images)
        torch.testing.assert_close(networks.head(predictor)(features), found, rtol=1e-4, atol=1e-5)


def test_training_and_evaluation_use_the_same_groups():
    algorithm = make("arm")
    batch = batch_for(algorithm)
    with torch.no_grad():
        torch.testing.assert_close(algorithm.scores(batch, {}), algorithm.predictor(batch.images))
        keep = {"dropout_mask": torch.ones(12, 128)}
        torch.testing.assert_close(algorithm.scores(batch, keep), algorithm.predictor(batch.images))


@pytest.mark.parametrize("name", [networks.SMALL, "test_resnet", "test_vit", "test_efficientnet"])
def test_pretrained_weights_stay_and_the_new_channel_is_a_copy(name):
    network = networks.build(name, 5)
    before = copy.deepcopy(network.state_dict())
    predictor = make("arm", network).predictor
    changed = [key for key, tensor in predictor.network.state_dict().items() if tensor.shape != before[key].shape]
    assert len(changed) == 1
    widened = predictor.network.state_dict()[changed[0]]
    assert widened[:, :3].equal(before[changed[0]])
    assert widened[:, 3].equal(before[changed[0]][:, 0])


def test_context_is_trained_and_part_of_the_predictor():
    algorithm = make("arm")
    before = copy.deepcopy(algorithm.predictor.state_dict())
    algorithm.update(batch_for(algorithm), {}, StepContext())
    after = algorithm.predictor.state_dict()
    assert all(not tensor.equal(before[key]) for key, tensor in after.items() if key.startswith("context."))
    assert any(key.startswith("context.") for key in after)
    assert not list(algorithm.predictor.context.buffers()), "nothing in it that a pass could change"


def test_the_context_keeps_the_scale_of_images():
    torch.manual_seed(0)
    context = make("arm").predictor.context
    maps = context(torch.randn(8, 3, 28, 28))
    assert 0.5 < maps.std().item() < 3


@pytest.mark.parametrize(
    "network",
    [
        nn.Linear(2, 2),
        nn.Conv2d(4, 4, 3, groups=2),
        nn.ModuleList([nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 1)]),  # in parallel, as in RepVGG
        nn.Conv2d(48, 4, 3),  # after a rearrangement, as in TResNet
    ],
)
def test_networks_need_one_convolution_that_receives_the_images(network):
    with pytest.raises(NetworkError, match="needs exactly one such convolution, which"):
        get_algorithm("arm").wrap_predictor(network, get_algorithm("arm").Hyperparameters(), 3)


def test_defaults_are_those_of_domainbed():
    assert get_algorithm("arm").Hyperparameters().batch_size == 8
    config = resolve(RunConfig.from_options(dataset="digits", target="paper", output="unused", algorithm="arm"))
    assert config.hyperparameters["batch_size"] == 32  # the dataset's, because its images are low-resolution
    shapes = [tuple(one.weight.shape) for one in make("arm").predictor.context if isinstance(one, nn.Conv2d)]
    assert shapes == [(64, 3, 5, 5), (64, 64, 5, 5), (1, 64, 5, 5)]


class Tiny(nn.Module):
    """A 1 × 1 convolution, the mean over all positions, a hidden layer and the head."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.stem, self.hidden, self.head = nn.Conv2d(1, 8, 1), nn.Linear(8, 16), nn.Linear(16, 2)

    def forward_features(self, images):
        return self.hidden(self.stem(images).relu().mean((2, 3))).relu()

    def forward_head(self, features, pre_logits=False):
        return features if pre_logits else self.head(features)

    def forward(self, images):
        return self.forward_head(self.forward_features(images))

    def get_classifier(self):
        return self.head


def test_it_predicts_labels_that_depend_on_the_domain():
    """The label says whether an image is brighter than its domain's mean; the test domains are new."""

    def draw(seed, centers):
        generator = torch.Generator().manual_seed(seed)
        light = torch.tensor(centers)[:, None] + torch.randn((len(centers), 16), generator=generator)
        labels = (light > light.mean(1, keepdim=True)).long()
        return light.flatten()[:, None, None, None].expand(-1, 1, 4, 4), labels.flatten()

    def right(name):
        own = {"context_width": 8} if name == "arm" else {}
        algorithm = make(name, Tiny(), lr=0.01, batch_size=16, **own)
        for step in range(1, 201):
            algorithm.update(Batch(step, *draw(step, (-3.0, 0.0, 3.0))), {}, StepContext())
        images, labels = draw(999, [-2.0, -1.5, 1.5, 2.0] * 4)
        return (algorithm.predictor.eval()(images).argmax(1) == labels).double().mean().item()

    assert right("erm") < 0.6
    assert right("arm") > 0.85
