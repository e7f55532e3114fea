from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from swad.testbed.algorithms import AlgorithmError
from swad.testbed.algorithms.domainbed import stand_ins
from swad.testbed.models import networks


@pytest.fixture
def run_networks():
    made = stand_ins.RunNetworks(networks.build("small", 4), 3, 0.0)
    with stand_ins.using(made, nullcontext):
        yield made


@pytest.mark.usefixtures("run_networks")
def test_the_first_networks_are_those_of_the_run_and_further_ones_new():
    torch.manual_seed(0)
    network = networks.build("small", 4)
    images, scores = torch.randn(2, 3, 28, 28), None
    scores = network(images)
    with stand_ins.using(stand_ins.RunNetworks(network, 3, 0.0), nullcontext):
        features = stand_ins.featurizer((3, 28, 28), {})
        head = stand_ins.classifier(features.n_outputs, 4, False)
        assert torch.equal(head(features(images)), scores)
        assert not set(features.parameters()) & set(head.parameters())
        second = stand_ins.featurizer((3, 28, 28), {})
        assert torch.equal(second(images), features(images))
        assert not set(second.parameters()) & set(features.parameters())
        assert stand_ins.classifier(features.n_outputs, 4) is not head


@pytest.mark.usefixtures("run_networks")
def test_an_mlp_has_the_depth_width_and_dropout_of_its_hyperparameters():
    mlp = stand_ins.MLP(6, 2, {"mlp_width": 5, "mlp_depth": 4, "mlp_dropout": 0.3})
    linear = [module for module in mlp if isinstance(module, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in linear] == [(6, 5), (5, 5), (5, 5), (5, 2)]
    assert [module.p for module in mlp if isinstance(module, nn.Dropout)] == [0.3] * 3
    assert mlp.n_outputs == 2


@pytest.mark.usefixtures("run_networks")
def test_a_whole_network_takes_weights():
    first = stand_ins.WholeFish((3, 28, 28), 4, {})
    second = stand_ins.WholeFish((3, 28, 28), 4, {}, weights=first.state_dict())
    images = torch.randn(2, 3, 28, 28)
    assert torch.equal(first(images), second(images))


@pytest.mark.usefixtures("run_networks")
def test_features_of_a_network_in_bf16_are_in_full_precision_and_have_dropout_in_training():
    features = stand_ins.featurizer((3, 28, 28))
    features.dropout = 0.5
    images = torch.randn(2, 3, 28, 28)
    features.network.bfloat16()
    assert features(images.bfloat16()).dtype is torch.float32
    features.network.float()
    assert (features(images) == 0).float().mean() > (features.eval()(images) == 0).float().mean() + 0.1


def test_what_nobody_has_is_an_error_when_it_is_used():
    with pytest.raises(AlgorithmError, match="kl has no stand-in and is not beside the file"):
        stand_ins.Missing("kl")(1)
