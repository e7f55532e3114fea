from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch.nn import functional

from helpers.sharpness import Spy, coral, entropy, gradient_of, gradients
from helpers.tiny_algorithms import CLASSES, Points, batch_for, make, noise_for
from swad.tensors.batch_norms import batch_norms
from swad.testbed.algorithms.base import Algorithm, StepContext
from swad.testbed.algorithms.erm import ERM
from swad.testbed.algorithms.registry import (
    SHARPNESS_AWARE,
    AlgorithmError,
    canonical_name,
    get_algorithm,
    list_algorithms,
)
from swad.testbed.algorithms.sam import SAM, SAMUpdate
from swad.testbed.models import networks


@pytest.mark.parametrize("rho", [0.05, 0.5])
def test_the_gradient_is_that_at_the_ascended_point(rho):
    algorithm = make("sam", rho=rho)
    batch = batch_for(algorithm)
    _, want, point = gradients(algorithm.predictor, entropy(batch), rho)
    spy = Spy(algorithm)
    before = copy.deepcopy(algorithm.predictor)
    loss = algorithm.update(batch, {}, StepContext())
    here, there = spy.points
    torch.testing.assert_close(there.double(), point, rtol=0, atol=1e-6)
    assert float((there - here).norm()) == pytest.approx(rho, rel=1e-4)
    found = torch.cat([p.grad.flatten() for p in algorithm.predictor.parameters()])
    torch.testing.assert_close(found.double(), want, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(loss, functional.cross_entropy(before(batch.images), batch.labels))
    # The step is Adam's, from the original weights, with that gradient.
    optimizer = torch.optim.Adam(before.parameters(), lr=algorithm.hyperparameters.lr)
    for weight, other in zip(before.parameters(), algorithm.predictor.parameters(), strict=True):
        weight.grad = other.grad.clone()
    optimizer.step()
    for mine, theirs in zip(algorithm.predictor.parameters(), before.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-7)


def test_weights_are_restored_to_the_last_bit():
    algorithm = make("sam", rho=1.0)
    for parameter in algorithm.predictor.parameters():
        parameter.data.mul_(1e-3)  # small relative to the ascent: adding and subtracting would lose bits
    before = [p.detach().clone() for p in algorithm.predictor.parameters()]
    seen = []
    algorithm.step = lambda ctx, *names: seen.extend(p.detach().clone() for p in algorithm.predictor.parameters())
    algorithm.update(batch_for(algorithm), {}, StepContext())
    assert all(one.equal(other) for one, other in zip(before, seen, strict=True))


@pytest.mark.parametrize("name", ["sam", "sagm"])
def test_a_zero_gradient_moves_nothing(name):
    algorithm = make(name)
    algorithm.loss = lambda batch, noise: 0 * algorithm.predict(batch.images).sum()
    before = [p.detach().clone() for p in algorithm.predictor.parameters()]
    algorithm.update(batch_for(algorithm), {}, StepContext())
    assert all(one.equal(other) for one, other in zip(before, algorithm.predictor.parameters(), strict=True))


def test_nothing_is_added_to_the_norm():
    """The ascent has length rho, however small the gradient is."""
    algorithm = make("sam", rho=0.05)
    plain = ERM.loss
    algorithm.loss = lambda batch, noise: 1e-12 * plain(algorithm, batch, noise)
    spy = Spy(algorithm)
    algorithm.update(batch_for(algorithm), {}, StepContext())
    assert float((spy.points[1] - spy.points[0]).norm()) == pytest.approx(0.05, rel=1e-3)


def test_only_the_second_gradient_is_clipped():
    algorithm, free = make("sam", rho=0.5), make("sam", rho=0.5)
    batch, spy = batch_for(algorithm), Spy(algorithm)
    algorithm.update(batch, {}, StepContext(clip=1e-3))
    free.update(batch, {}, StepContext())
    assert float((spy.points[1] - spy.points[0]).norm()) == pytest.approx(0.5, rel=1e-4)
    cut, whole = (torch.cat([p.grad.flatten() for p in one.predictor.parameters()]) for one in (algorithm, free))
    torch.testing.assert_close(cut, whole / whole.norm() * 1e-3, rtol=1e-3, atol=1e-8)


@pytest.mark.parametrize("name", ["sam", "sagm", "mixup+sam", "pi_model+sagm"])
def test_both_passes_see_the_same_noise_but_a_dropout_mask_of_their_own(name):
    algorithm, seen = make(name, dropout=0.5), []
    inner = algorithm.loss
    algorithm.loss = lambda batch, noise: (seen.append(dict(noise)), inner(batch, noise))[1]
    noise = noise_for(algorithm)
    algorithm.update(batch_for(algorithm), noise, StepContext())
    first, second = seen
    assert all(first[key].equal(noise[key]) for key in noise)
    masks = {key for key in noise if f"{key}_after" in noise}
    assert masks == {key for key in first if not first[key].equal(second[key])} != set()
    assert all(second[key].equal(noise[f"{key}_after"]) for key in masks)


@pytest.mark.parametrize("name", ["sam", "coral+sam"])
def test_dropout_before_the_ascent_is_that_of_the_algorithm_alone(name):
    alone = make(name.removesuffix("+sam") if "+" in name else "erm", dropout=0.5)
    mask = "dropout_mask"
    assert noise_for(make(name, dropout=0.5))[mask].equal(noise_for(alone)[mask])


def test_works_under_bf16():
    algorithm = make("sam")
    ctx = StepContext(autocast=lambda: torch.autocast("cpu", torch.bfloat16))
    batch = batch_for(algorithm)
    _, want, _ = gradients(algorithm.predictor, entropy(batch), 0.05)
    algorithm.update(batch, {}, ctx)
    found = torch.cat([p.grad.flatten() for p in algorithm.predictor.parameters()]).double()
    assert found.dtype == torch.float64
    assert torch.cosine_similarity(found, want, dim=0) > 0.99


# --- combinations -----------------------------------------------------------------------------------------------


def test_combinations_have_one_class_and_both_credits():
    assert get_algorithm("sam") is SAM
    assert get_algorithm("erm+sam") is SAM
    kind = get_algorithm("CORAL + SAM")
    assert kind is get_algorithm("sam+coral") is get_algorithm("coral+sam")
    assert issubclass(kind, get_algorithm("coral"))
    assert issubclass(kind, SAMUpdate)
    assert canonical_name("Coral+SAM") == "coral+sam"
    assert not any("+" in name for name in list_algorithms())
    own = [field.name for field in dataclasses.fields(kind.Hyperparameters)]
    assert own == [*(field.name for field in dataclasses.fields(get_algorithm("coral").Hyperparameters)), "rho"]
    assert kind.Hyperparameters().rho == 0.05
    assert "Sun and Saenko" in kind.paper
    assert "Foret" in kind.paper
    assert kind.all_needs() == ("domain labels", "two passes")


@pytest.mark.parametrize("name", ["dann", "cdann", "mldg", "sagnet"])
def test_algorithms_with_their_own_update_cannot_be_combined(name):
    with pytest.raises(
        AlgorithmError, match=r"SAM needs an algorithm that steps on one loss, .* use it without \+sam"
    ) as caught:
        get_algorithm(f"{name}+sam")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("step", SHARPNESS_AWARE)
def test_all_algorithms_that_step_on_one_loss_can_be_combined(step):
    combined = 0
    for name in set(list_algorithms()) - set(SHARPNESS_AWARE):
        if get_algorithm(name).update is not Algorithm.update:
            with pytest.raises(AlgorithmError, match="steps on one loss"):
                get_algorithm(f"{name}+{step}")
            continue
        kind = get_algorithm(f"{name}+{step}")
        assert kind.wrap_predictor.__func__ is get_algorithm(name).wrap_predictor.__func__
        assert issubclass(kind, SAMUpdate)
        combined += 1
    assert combined > 15


def test_coral_with_sam_by_hand():
    algorithm = make("coral+sam", gamma=2.0, rho=0.3)
    batch = batch_for(algorithm)

    _, want, _ = gradients(algorithm.predictor, coral(batch, 2.0), 0.3)
    algorithm.update(batch, {}, StepContext())
    torch.testing.assert_close(gradient_of(algorithm), want, rtol=1e-3, atol=1e-6)


def test_buffers_keep_the_values_of_the_first_pass():
    """GroupDRO's weights follow the losses at the weights themselves, not at the perturbed weights."""
    algorithm, plain = make("group_dro+sam", rho=2.0), make("group_dro")
    batch = batch_for(algorithm)
    algorithm.update(batch, {}, StepContext())
    plain.update(batch, {}, StepContext())
    own = dict(plain.named_buffers())
    assert own
    for name, tensor in own.items():
        torch.testing.assert_close(algorithm.get_buffer(name), tensor, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", ["sam", "sagm"])
def test_trained_batch_norms_see_both_passes(name):
    network = networks.build("test_resnet", CLASSES, freeze_bn=False)
    algorithm = make(name, network, shape=(3, 32, 32))
    algorithm.update(batch_for(algorithm, shape=(3, 32, 32)), {}, StepContext())
    assert {norm.num_batches_tracked.item() for norm in batch_norms(network)} == {2}


def test_it_leaves_a_narrow_minimum():
    """ERM stays in a dip of width .1 on the slope of a wide valley; SAM, whose neighborhood is wider, leaves it."""

    def end(name, **given):
        algorithm = make(name, Points(1), lr=0.02, **given)
        weight = algorithm.predictor.head.weight  # the only one the loss reaches

        def loss(batch, noise):
            w = weight[0, 0]
            return (w - 2).square() / 10 - 0.5 * torch.exp(-((w / 0.1) ** 2))

        algorithm.loss = loss
        weight.data.fill_(-0.1)
        for _ in range(300):
            algorithm.update(batch_for(algorithm), {}, StepContext())
        return weight[0, 0].item()

    assert end("erm") == pytest.approx(0, abs=0.05)
    assert end("sam", rho=0.5) > 0.4
