from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch.nn import functional

from helpers.tiny_algorithms import batch_for, make, noise_for, risks, spurious, train_points, update
from swad.testbed.algorithms.base import StepContext
from swad.testbed.algorithms.irm import slope
from swad.testbed.data.loaders import Batch


def published(algorithm, batch, weight):
    """Compute the penalty with an explicit multiplier and automatic differentiation, in double precision."""
    scores = algorithm.predictor(batch.images).double()
    total = torch.zeros((), dtype=torch.float64)
    for z, y in zip(scores.chunk(3), batch.labels.chunk(3), strict=True):
        w = torch.ones((), dtype=torch.float64, requires_grad=True)
        halves = [functional.cross_entropy(w * z[start::2], y[start::2]) for start in (0, 1)]
        one, two = (torch.autograd.grad(half, w, create_graph=True)[0] for half in halves)
        total = total + (functional.cross_entropy(z, y) + weight * one * two) / 3
    return total


@pytest.mark.parametrize("batch_size", [2, 5, 8])
def test_loss_and_gradient_are_those_by_automatic_differentiation(batch_size):
    algorithm = make("irm", batch_size=batch_size)
    batch = batch_for(algorithm)
    for step, weight in ((500, 1.0), (501, 100.0)):
        loss = algorithm.loss(batch, noise_for(algorithm, step))
        want = published(algorithm, batch, weight)
        torch.testing.assert_close(loss.double(), want, rtol=1e-5, atol=1e-6)
        parameters = list(algorithm.predictor.parameters())
        mine, theirs = torch.autograd.grad(loss, parameters), torch.autograd.grad(want, parameters)
        for one, other in zip(mine, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@settings(deadline=None, max_examples=60)
@given(some.lists(some.floats(-8, 8), min_size=3, max_size=3), some.integers(0, 2))
def test_the_slope_is_a_finite_difference(scores, label):
    z, y = torch.tensor([scores], dtype=torch.float64), torch.tensor([label])
    step = 1e-5
    up, down = (functional.cross_entropy(w * z, y) for w in (1 + step, 1 - step))
    assert slope(z, y).item() == pytest.approx(((up - down) / (2 * step)).item(), abs=1e-6)


def test_the_penalty_can_be_negative():
    algorithm = make("irm", batch_size=2, domains=2)
    batch = batch_for(algorithm)
    # The first image of each domain is right and the second wrong, so the two derivatives have opposite signs.
    scores = algorithm.predict(batch.images)
    labels = torch.stack([scores[::2].argmax(1), scores[1::2].argmin(1)], 1).flatten()
    batch = batch._replace(labels=labels)
    light, full = (algorithm.loss(batch, {"weight": torch.tensor(w)}) for w in (0.0, 100.0))
    assert full < light


def test_adam_is_reset_in_place():
    algorithm, fresh = make("irm", anneal=2, lr=1e-2), make("irm", anneal=2, lr=1e-2)
    assert [algorithm.phase(step) for step in (1, 2, 3, 4)] == ["light", "light", "full", "full"]
    for step in (1, 2):
        update(algorithm, batch_for(algorithm, step))
    fresh.load_state_dict(algorithm.state_dict())
    held = [value for state in algorithm.optimizers["main"].state.values() for value in state.values()]
    assert any(value.any() for value in held)
    algorithm.on_phase_start("full")
    again = [value for state in algorithm.optimizers["main"].state.values() for value in state.values()]
    assert all(one is other and not one.any() for one, other in zip(held, again, strict=True))
    for step in (3, 4):
        for one in (algorithm, fresh):
            one.update(batch_for(one, step), noise_for(one, step), StepContext())
    for mine, theirs in zip(algorithm.predictor.parameters(), fresh.predictor.parameters(), strict=True):
        assert mine.equal(theirs)


def test_without_annealing_the_weight_is_full_from_the_start():
    algorithm = make("irm", anneal=0)
    assert algorithm.phase(1) == "full"
    assert noise_for(algorithm, 1)["weight"] == 100


def test_it_ignores_a_feature_that_works_in_some_domains_only():
    erm = train_points("erm", spurious)
    irm = train_points("irm", spurious, anneal=50, penalty=1000)
    reversed_ = spurious(torch.Generator().manual_seed(1), (0.1,))
    assert risks(erm, *reversed_) > 1
    assert risks(irm, *reversed_) < 0.75
    share = {}
    for algorithm in (erm, irm):
        good, bad = (algorithm.predictor.head.weight[1] - algorithm.predictor.head.weight[0]).tolist()
        assert good > 0.2
        share[algorithm] = abs(bad) / (good + abs(bad))
    assert share[irm] < share[erm] / 2


def test_the_two_halves_are_interchangeable():
    """With two images per domain each is a half: their order does not matter, but their domain does."""
    algorithm = make("irm", batch_size=2)
    batch, noise = batch_for(algorithm), noise_for(algorithm, 501)

    def at(*order):
        return algorithm.loss(Batch(1, batch.images[list(order)], batch.labels[list(order)]), noise)

    torch.testing.assert_close(at(0, 1, 2, 3, 4, 5), at(1, 0, 3, 2, 5, 4))
    assert abs(at(0, 1, 2, 3, 4, 5) - at(0, 2, 1, 3, 4, 5)) > 1e-4
