from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional

from helpers.feature_distance import domain_distance, shifted_classes
from helpers.tiny_algorithms import batch_for, make, noise_for, train_points
from swad.testbed.algorithms.base import RunInfo, StepContext
from swad.testbed.algorithms.dann import Discriminator
from swad.testbed.algorithms.hyperparameters import draw, fill
from swad.testbed.algorithms.registry import get_algorithm

SETTINGS = [
    {},
    {"grad_penalty": 3.0},
    {"dropout": 0.5, "mlp_dropout": 0.5, "mlp_depth": 4, "mlp_width": 16, "adversary": 0.3, "grad_penalty": 0.5},
]


def by_hand(name, algorithm, batch, noise):
    """Compute scores, domain loss and gradient penalty in double precision, image by image."""
    twin = copy.deepcopy(algorithm).double()
    network, chosen = twin.predictor, algorithm.hyperparameters
    features = network.forward_head(network.forward_features(batch.images.double()), pre_logits=True)
    features = features * noise["dropout_mask"].double() if "dropout_mask" in noise else features
    total, penalty = 0.0, 0.0
    labels = batch.labels.tolist()
    for row, (z, y) in enumerate(zip(features, labels, strict=True)):
        z = z + twin.class_embeddings.weight[y] if name == "cdann" else z
        hidden = z
        for k, layer in enumerate(twin.discriminator.layers):
            hidden = layer.weight @ hidden + layer.bias
            if k + 1 < chosen.mlp_depth:
                if "hidden_dropout_mask" in noise:
                    hidden = hidden * noise["hidden_dropout_mask"][k, row].double()
                hidden = hidden.clamp(min=0)
        each = hidden.exp().sum().log() - hidden[row // chosen.batch_size]
        weight = 1 / (5 * labels.count(y)) if name == "cdann" else 1 / len(labels)
        total = total + weight * each
        (slope,) = torch.autograd.grad(each, z, create_graph=True)
        penalty = penalty + slope.square().sum() / len(labels)
    domain = total + chosen.grad_penalty * penalty
    return functional.cross_entropy(network.head(features), batch.labels), domain, twin


@pytest.mark.parametrize("name", ["dann", "cdann"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_both_sides_by_hand(name, settings):
    algorithm = make(name, **settings)
    for step in (1, 2):
        batch, noise = batch_for(algorithm, step), noise_for(algorithm, step)
        entropy, domain, twin = by_hand(name, algorithm, batch, noise)
        generator = algorithm.phase(step) == "generator"
        want = entropy - algorithm.hyperparameters.adversary * domain if generator else domain
        loss = algorithm.loss(batch, noise)
        assert loss.item() == pytest.approx(want.item(), rel=1e-4, abs=1e-5)
        algorithm.zero_grad()
        loss.backward()
        side = (lambda one: one.predictor) if generator else (lambda one: one.discriminator)
        wanted = torch.autograd.grad(want, list(side(twin).parameters()))
        for weight, gradient in zip(side(algorithm).parameters(), wanted, strict=True):
            torch.testing.assert_close(weight.grad.double(), gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", ["dann", "cdann"])
def test_each_phase_updates_its_own_side(name):
    algorithm = make(name)
    for step in (1, 2):
        before = copy.deepcopy(algorithm.state_dict())
        algorithm.update(batch_for(algorithm, step), noise_for(algorithm, step), StepContext())
        moved = {
            key.partition(".")[0] for key, tensor in algorithm.state_dict().items() if not tensor.equal(before[key])
        }
        against = {"discriminator", "class_embeddings"} if name == "cdann" else {"discriminator"}
        assert moved == ({"predictor"} if step == 1 else against)


@pytest.mark.parametrize(("d_steps", "turns"), [(1, "gdgdgdgd"), (2, "dgddgddg"), (3, "ddgdddgd")])
def test_phases_alternate(d_steps, turns):
    algorithm = make("dann", d_steps=d_steps)
    assert "".join(algorithm.phase(step)[0] for step in range(1, 9)) == turns


def test_both_sides_have_their_own_learning_rates():
    algorithm = make("dann", lr=0.1, beta1=0.3)
    for name in ("generator", "discriminator"):
        (group,) = algorithm.optimizers[name].param_groups
        assert (group["lr"], group["weight_decay"], group["betas"]) == (0.1, 0.0, (0.3, 0.9))
    algorithm = make("cdann", lr=0.1, lr_g=0.2, lr_d=0.3, wd_g=0.4, wd_d=0.5)
    for name, lr, decay in (("generator", 0.2, 0.4), ("discriminator", 0.3, 0.5)):
        (group,) = algorithm.optimizers[name].param_groups
        assert (group["lr"], group["weight_decay"]) == (lr, decay)
    held = {id(p) for one in algorithm.optimizers.values() for group in one.param_groups for p in group["params"]}
    assert held == {id(p) for p in algorithm.parameters()}


@pytest.mark.parametrize("name", ["dann", "cdann"])
def test_weight_decay_is_set_per_side(name):
    for given, of_generator, of_discriminator in (({"wd_d": 0.3}, 0, 0.3), ({"wd_g": 0.3}, 0.3, 0)):
        optimizers = make(name, **given).optimizers
        found = [optimizers[side].param_groups[0]["weight_decay"] for side in ("generator", "discriminator")]
        assert found == [of_generator, of_discriminator]
    problems = fill(get_algorithm(name).Hyperparameters, {"weight_decay": 0.1}).problems()
    assert problems == ["weight_decay must be 0, got 0.1: set wd_g and wd_d, one for each side"]
    # The common weight_decay never reaches an optimizer, so wd_g = 0 means 0.
    chosen = fill(get_algorithm(name).Hyperparameters, {"weight_decay": 0.1, "batch_size": 4})
    unchecked = get_algorithm(name)(make("erm").predictor, chosen, RunInfo((1,) * 3))
    assert [one.param_groups[0]["weight_decay"] for one in unchecked.optimizers.values()] == [0, 0]


def test_the_discriminators_shape():
    mlp = Discriminator(7, 3, width=11, depth=4)
    assert [(one.in_features, one.out_features) for one in mlp.layers] == [(7, 11), (11, 11), (11, 11), (11, 3)]
    assert not make("dann", mlp_depth=2).hyperparameters.problems()
    kind = type(make("dann").hyperparameters)
    assert kind(mlp_depth=1).problems() == ["mlp_depth must be a whole number of at least 2, got 1"]
    assert kind(beta1=1.0).problems() == ["beta1 must be a number of at least 0 and below 1, got 1.0"]
    widths = {draw(kind, "PACS", number)["mlp_width"] for number in range(1, 50)}
    assert min(widths) >= 64
    assert max(widths) <= 1024


def test_the_discriminator_stays_in_full_precision_under_bf16():
    algorithm = make("cdann", grad_penalty=1.0)
    seen = []
    algorithm.discriminator.register_forward_hook(lambda module, args, out: seen.append(out.dtype))
    ctx = StepContext(autocast=lambda: torch.autocast("cpu", torch.bfloat16))
    for step in (1, 2):
        assert algorithm.update(batch_for(algorithm, step), noise_for(algorithm, step), ctx).isfinite()
    assert set(seen) == {torch.float32}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dann", "cdann"])
def test_features_become_invariant_to_the_domain_but_not_the_class(name):
    plain = train_points("erm", shifted_classes, steps=300, features=1, lr=0.01)
    options = {"adversary": 3.0, "mlp_width": 16, "d_steps": 3}
    algorithm = train_points(name, shifted_classes, steps=1200, features=1, lr=0.01, **options)
    (apart_before, right_before), (apart_after, right_after) = domain_distance(plain), domain_distance(algorithm)
    assert apart_before > 0.2
    assert apart_after < 0.1
    assert right_before > 0.9
    assert right_after > 0.9
