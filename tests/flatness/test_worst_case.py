"""The worst loss within a ball, against maxima that are known."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from helpers.landscapes import Point, Quadratic, fingerprint, images, network, symmetric, trained
from swad.flatness import image_losses, worst_case


def largest(loss: Quadratic, at: torch.Tensor, radius: float) -> float:
    """The maximum of a quadratic over a ball, by the eigendecomposition and bisection (the trust-region problem)."""
    values, vectors = torch.linalg.eigh(loss.hessian)
    gradient = vectors.T @ (loss.hessian @ (at - loss.center) + loss.slope)
    # delta = (lambda - H)^-1 g with lambda above the largest eigenvalue and ||delta|| = radius.
    low, high = max(values[-1].item(), 0.0) + 1e-12, abs(values).max().item() + gradient.norm().item() / radius + 1
    for _ in range(200):
        middle = (low + high) / 2
        if (gradient / (middle - values)).norm() > radius:
            low = middle
        else:
            high = middle
    delta = vectors @ (gradient / (high - values))
    return loss.at(at + delta).item()


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), radius=st.floats(0.1, 5.0))
def test_a_quadratic_s_maximum_is_found_and_never_passed(seed, radius):
    model = Point(seed)
    slope = torch.randn(10, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    loss = Quadratic(symmetric(seed), slope)
    top = largest(loss, model.vector().detach(), radius)
    found = worst_case(model, loss, radius, steps=60, restarts=2, step_size=0.2)
    assert found.lower_bound <= top + 1e-9 * abs(top)
    assert found.rows[0].rise > 0.95 * (top - found.rows[0].loss)
    assert found.rows[0].distance <= radius * (1 + 1e-12)
    assert found.rows[0].sam <= found.lower_bound
    assert found.rows[0].loss <= found.lower_bound


def test_a_linear_function_is_solved_by_sam_s_step():
    direction = torch.arange(10, dtype=torch.float64)
    model = Point()
    found = worst_case(model, lambda model: direction @ model.vector(), [0.5, 2.0], steps=1, restarts=0)
    for row in found.rows:
        wanted = (direction @ model.vector()).item() + row.radius * direction.norm().item()
        assert row.sam == pytest.approx(wanted, rel=1e-12)
        assert row.lower_bound == pytest.approx(wanted, rel=1e-12)


def test_the_first_step_is_sam_s_on_a_network():
    model, data = trained()
    found = worst_case(model, image_losses(data, batch_size=16), 0.1, steps=1, restarts=0)

    def loss(model):
        return sum(functional.cross_entropy(model(x), y) for x, y in data.values()) / 2

    gradient = torch.autograd.grad(loss(model), list(model.parameters()))
    norm = torch.stack([g.square().sum() for g in gradient]).sum().sqrt()
    with torch.no_grad():
        for parameter, g in zip(model.parameters(), gradient, strict=True):
            parameter.add_(0.1 * g / norm)
        assert found.rows[0].sam == pytest.approx(loss(model).item(), rel=1e-5)


def test_it_never_falls_as_the_radius_grows():
    model, data = trained()
    before = fingerprint(model)
    rows = worst_case(model, image_losses(data), [0.4, 0.0, 0.05, 0.1, 0.2], steps=4, restarts=1).rows
    assert [row.radius for row in rows] == [0.0, 0.05, 0.1, 0.2, 0.4]
    bounds = [row.lower_bound for row in rows]
    assert bounds == sorted(bounds)
    assert rows[0].lower_bound == rows[0].loss
    assert rows[-1].rise > rows[1].rise > 0
    assert fingerprint(model) == before


def test_batch_by_batch_is_the_same_as_at_once():
    model, data = trained()
    small = worst_case(model, image_losses(data, batch_size=7), 0.2, steps=3, restarts=1)

    def whole(model):
        return {d: functional.cross_entropy(model(x), y, reduction="none") for d, (x, y) in data.items()}

    assert small.lower_bound == pytest.approx(worst_case(model, whole, 0.2, steps=3, restarts=1).lower_bound, rel=1e-4)
    row = small.rows[0]
    assert sum(row.by_domain.values()) / 2 == pytest.approx(row.lower_bound, rel=1e-9)


def test_one_domain_is_climbed_higher_than_by_their_mean():
    model, data = trained()
    loss = image_losses(data)
    mean = worst_case(model, loss, 0.3, steps=8, restarts=0).rows[0]
    own = worst_case(model, loss, 0.3, steps=8, restarts=0, domain="sketch").rows[0]
    assert own.lower_bound > mean.by_domain["sketch"]
    assert own.lower_bound == own.by_domain["sketch"]
    with pytest.raises(ValueError, match="no domain 'art'"):
        worst_case(model, loss, 0.3, domain="art")


def test_errors_are_estimate_where_the_cross_entropy_climbs():
    model, data = trained(steps=60)
    loss, error = image_losses(data), image_losses(data, measure="error")
    row = worst_case(model, loss, 1.0, steps=6, restarts=1, measure_fn=error).rows[0]
    assert 0 <= row.loss < row.lower_bound <= 1
    assert row.loss == pytest.approx(sum(e.mean().item() for e in error(model).values()) / 2)
    with pytest.raises(ValueError, match="no 0-1 error in it"):
        worst_case(model, error, 1.0)


def test_a_flat_place_is_left_alone():
    row = worst_case(Point(), lambda model: 0 * model.vector().sum(), 1.0).rows[0]
    assert row.lower_bound == row.loss == 0
    assert math.isnan(row.sam)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_on_the_way_changes_nothing(error):
    model, data = network(), images()
    model.train()
    model[0].weight.requires_grad_(False)
    model[5].weight.grad = torch.ones_like(model[5].weight)
    before = fingerprint(model)
    inner = image_losses(data)
    calls = iter(range(100))

    def mortal(model):
        if next(calls) == 4:
            raise error
        return inner(model)

    with pytest.raises(error):
        worst_case(model, mortal, 0.5)
    assert fingerprint(model) == before


def test_refusals():
    with pytest.raises(ValueError, match="steps must be 1 or more"):
        worst_case(Point(), Quadratic(symmetric()), 1.0, steps=0)
    with pytest.raises(ValueError, match="step_size must be above 0"):
        worst_case(Point(), Quadratic(symmetric()), 1.0, step_size=0.0)
    with pytest.raises(ValueError, match="radii must be"):
        worst_case(Point(), Quadratic(symmetric()), -1.0)
