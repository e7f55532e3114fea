from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch.nn import functional

from helpers.tiny_algorithms import Points, batch_for, make, noise_for, update
from swad.testbed.algorithms.base import StepContext
from swad.testbed.algorithms.sagnet import EPS, other_content, other_style
from swad.testbed.data.loaders import Batch


@settings(max_examples=30)
@given(some.integers(2, 6), some.integers(2, 9), some.integers(0, 99))
def test_styles_and_contents_row_by_row(n, size, seed):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn((n, size), generator=generator, dtype=torch.float64) * 3 + 1
    partner = torch.randperm(n, generator=generator)
    mix = torch.rand((n, 1), generator=generator, dtype=torch.float64)
    styled, swapped = other_style(rows, partner, mix), other_content(rows, partner)
    for k in range(n):
        own, other, a = rows[k], rows[partner[k]], mix[k, 0]
        content = (own - own.mean()) / (own.var() + EPS).sqrt()
        mean, variance = a * own.mean() + (1 - a) * other.mean(), a * own.var() + (1 - a) * other.var()
        torch.testing.assert_close(styled[k], content * (variance + EPS).sqrt() + mean)
        content = (other - other.mean()) / (other.var() + EPS).sqrt()
        torch.testing.assert_close(swapped[k], content * (own.var() + EPS).sqrt() + own.mean())


def test_foreign_content_carries_no_gradient():
    rows = torch.randn(2, 5, requires_grad=True)
    (gradient,) = torch.autograd.grad(other_content(rows, torch.tensor([1, 0]))[0].sum(), rows)
    assert gradient[0].any()
    assert not gradient[1].any()


def published(algorithm, batch, noise, lr, w_adv):
    """Make the step in three passes, as in the published code, in double precision."""
    twin = copy.deepcopy(algorithm).double()
    images, labels = batch.images.double(), batch.labels
    network, head, style = twin.predictor, twin.predictor.head, twin.style
    own = {id(p) for p in head.parameters()}
    parts = [[p for p in network.parameters() if id(p) not in own], list(head.parameters()), list(style.parameters())]
    features, content, against = (torch.optim.Adam(part, lr=lr) for part in parts)

    def seen(keep):
        z = network.forward_head(network.forward_features(images), pre_logits=True)
        return z * noise[keep].double() if keep in noise else z

    partner, mix = noise["partner"], noise["mix"].double()
    features.zero_grad()
    content.zero_grad()
    loss = functional.cross_entropy(head(other_style(seen("dropout_mask"), partner[0], mix)), labels)
    loss.backward()
    features.step()
    content.step()
    against.zero_grad()
    functional.cross_entropy(style(other_content(seen("dropout_mask_style"), partner[1])), labels).backward()
    against.step()
    features.zero_grad()
    scores = style(other_content(seen("dropout_mask_adversary"), partner[2]))
    (-w_adv * functional.log_softmax(scores, 1).mean(1).mean()).backward()
    features.step()
    return loss.item(), twin


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_two_passes_give_what_three_give(dropout):
    # A large eps, so that Adam does not turn the rounding of small gradients into steps.
    algorithm = make("sagnet", lr=0.1, w_adv=5.0, dropout=dropout)
    batch, noise = batch_for(algorithm), noise_for(algorithm)
    with pytest.MonkeyPatch.context() as patch:
        real = torch.optim.Adam
        patch.setattr(torch.optim, "Adam", lambda *args, **options: real(*args, **options, eps=1.0))
        want, twin = published(algorithm, batch, noise, 0.1, 5.0)
        loss = algorithm.update(batch, noise, StepContext())
    assert loss.item() == pytest.approx(want, rel=1e-5)
    for name, tensor in algorithm.state_dict().items():
        torch.testing.assert_close(tensor.double(), twin.state_dict()[name], rtol=1e-3, atol=1e-5, msg=name)


def test_a_step_takes_two_passes():
    algorithm = make("sagnet")
    calls = []
    algorithm.predictor.stem.register_forward_hook(lambda *_: calls.append(1))
    algorithm.update(batch_for(algorithm), noise_for(algorithm), StepContext())
    assert len(calls) == 2


def test_every_parameter_has_exactly_one_optimizer():
    algorithm = make("sagnet")
    held = [id(p) for one in algorithm.optimizers.values() for group in one.param_groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in algorithm.parameters())
    assert set(algorithm.optimizers) == {"features", "content", "style"}
    assert not any("style" in name for name in algorithm.predictor.state_dict())


@pytest.mark.slow
def test_the_style_loses_the_class():
    """At first the mean of the features, which is style, tells the class: ERM keeps it, the adversary removes it."""

    def draw(step):
        generator = torch.Generator().manual_seed(step)
        labels = torch.randint(0, 2, (128,), generator=generator)
        numbers = 2.0 * labels - 1 + 0.7 * torch.randn(128, generator=generator)
        return Batch(step, numbers.view(-1, 1, 1, 1), labels)

    def in_style(name, **options):
        network = Points(1, 4)
        network.body.weight.data.abs_()
        algorithm = make(name, network, 2, (1, 1, 1), batch_size=64, lr=0.01, **options)
        for step in range(1, 401):
            update(algorithm, draw(step))
        fresh = draw(999)
        with torch.no_grad():
            assert (network(fresh.images).argmax(1) == fresh.labels).double().mean() > 0.9
            rows = network.forward_features(fresh.images)
        gap = rows[fresh.labels == 1].mean(0) - rows[fresh.labels == 0].mean(0)
        return (gap.mean().abs() / gap.norm()).item()

    assert in_style("erm") > 0.4
    assert in_style("sagnet", w_adv=0.0) > 0.2
    assert in_style("sagnet", w_adv=1.0) < 0.05
