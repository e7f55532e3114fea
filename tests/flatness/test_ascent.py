"""The worst loss within a ball, against maxima that are known."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from helpers.landscapes import Point, Quadratic, fingerprint, images, network, symmetric, trained
from swad.flatness import image_losses, worst_case


class Bowl(nn.Module):
    """A model whose weights are a vector, and a quadratic loss with a given spectrum and slope in a rotated basis."""

    def __init__(self, spectrum: torch.Tensor, slope: torch.Tensor, seed: int = 0) -> None:
        super().__init__()
        self.spectrum, self.slope = spectrum, slope
        n = len(spectrum)
        self.one, self.two = (nn.Parameter(torch.zeros(k, dtype=torch.float64)) for k in (n // 3, n - n // 3))
        mirror = torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        self.mirror = mirror / mirror.norm()

    def loss(self) -> torch.Tensor:
        vector = torch.cat([self.one, self.two])
        rotated = vector - 2 * self.mirror * (self.mirror @ vector)
        return 0.5 * self.spectrum @ rotated.square() + self.slope @ rotated


def largest(values: torch.Tensor, slope: torch.Tensor, radius: float) -> float:
    """The maximum of 0.5 sum(values x^2) + slope x over a ball: the trust-region problem, solved by bisection.

    The solution is x = slope / (mu - values) with mu >= max(values, 0). In the hard case, where the slope has no part
    along the largest eigenvalue and x is too short, that direction fills the rest of the radius.
    """

    def at(x: torch.Tensor) -> float:
        return (0.5 * values @ x.square() + slope @ x).item()

    def solution(mu: float) -> torch.Tensor:
        return torch.where(slope == 0, 0.0, slope / (mu - values))

    edge = max(values.max().item(), 0.0)
    inside = solution(edge)
    if inside.isfinite().all() and inside.norm() <= radius:
        if edge == values.max():
            inside[values.argmax()] += (radius**2 - inside.square().sum()).clamp(min=0).sqrt()
        return at(inside)
    low, high = edge, edge + slope.norm().item() / radius
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if solution(middle).norm() > radius else (low, middle)
    return at(solution(high))


def spectra(kind: str, n: int, generator: torch.Generator) -> torch.Tensor:
    uniform = torch.rand(n, generator=generator, dtype=torch.float64)
    if kind == "random":
        root = torch.randn(min(n, 200), min(n, 200), generator=generator, dtype=torch.float64)
        return torch.linalg.eigvalsh(root + root.T).repeat(-(-n // len(root)))[:n] / len(root) ** 0.5
    if kind == "low rank":
        return torch.where(torch.arange(n) < 1 + n // 100, -uniform.log(), 0.0)
    if kind == "power law":
        return torch.arange(1, n + 1, dtype=torch.float64) ** -(0.5 + uniform[0])
    if kind == "indefinite":
        return 2 * uniform - 1
    if kind == "similar":
        return torch.where(torch.arange(n) < 1, 1.0 + 0.3 * uniform, 1.0)
    assert kind == "mostly negative"
    return torch.where(torch.arange(n) < 2, 0.02 + 0.5 * uniform, -uniform)


@settings(max_examples=30, deadline=None)
@given(
    kind=st.sampled_from(["random", "low rank", "power law", "indefinite", "similar", "mostly negative"]),
    n=st.one_of(st.integers(3, 30), st.integers(30, 1000), st.just(1000)),
    steepness=st.sampled_from([0.0, 0.01, 0.1, 1.0, 10.0]),
    radius=st.floats(0.03, 10.0),
    seed=st.integers(0, 10_000),
)
@example(kind="mostly negative", n=1000, steepness=0.0, radius=1.0, seed=0)
@example(kind="mostly negative", n=1000, steepness=0.1, radius=1.0, seed=3)
@example(kind="similar", n=1000, steepness=0.0, radius=1.0, seed=0)
@example(kind="similar", n=1000, steepness=0.03, radius=0.05, seed=1)
def test_by_default_a_quadratics_maximum_is_found_within_6_percent_and_never_passed(kind, n, steepness, radius, seed):
    generator = torch.Generator().manual_seed(seed)
    slope = steepness * torch.randn(n, generator=generator, dtype=torch.float64) / n**0.5
    spectrum = spectra(kind, n, generator)
    row = worst_case(Bowl(spectrum, slope, seed), Bowl.loss, radius, seed=seed).rows[0]
    top = largest(spectrum, slope, radius)
    assert 0.94 * top <= row.lower_bound <= top * (1 + 1e-9)
    assert row.distance <= radius * (1 + 1e-12)
    assert row.loss == 0
    assert row.evaluations <= 2 + 4 * 26
    if steepness:
        assert row.sam <= row.lower_bound


def test_spectra_without_a_gap_are_usually_climbed_to_99_percent():
    shares = []
    for kind in ("random", "indefinite"):
        for seed in range(4):
            spectrum, slope = spectra(kind, 1000, torch.Generator().manual_seed(seed)), torch.zeros(1000).double()
            found = worst_case(Bowl(spectrum, slope, seed), Bowl.loss, 1.0, seed=seed).lower_bound
            shares.append(found / largest(spectrum, slope, 1.0))
    assert sum(shares) / len(shares) > 0.99


def test_few_positive_eigenvalues_are_found_among_many_negative_ones():
    for seed in range(3):
        spectrum = spectra("mostly negative", 1000, torch.Generator().manual_seed(seed))
        slope = torch.zeros(1000).double()
        found = worst_case(Bowl(spectrum, slope, seed), Bowl.loss, 1.0, seed=seed).lower_bound
        assert found > 0.999 * largest(spectrum, slope, 1.0)


@settings(max_examples=8, deadline=None)
@given(n=st.integers(3, 30), radius=st.floats(0.1, 10.0), seed=st.integers(0, 10_000))
def test_a_maximum_inside_the_ball_is_approached_and_never_passed(n, radius, seed):
    """All eigenvalues are negative: steps of one radius would jump over the maximum forever."""
    generator = torch.Generator().manual_seed(seed)
    spectrum = -0.2 - torch.rand(n, generator=generator, dtype=torch.float64)
    slope = 0.3 * torch.randn(n, generator=generator, dtype=torch.float64) / n**0.5
    top = largest(spectrum, slope, radius)
    found = worst_case(Bowl(spectrum, slope, seed), Bowl.loss, radius).lower_bound
    assert 0.9 * top <= found <= top * (1 + 1e-9)


def test_the_twin_of_these_tests_against_points_on_the_sphere():
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        spectrum, slope = spectra("indefinite", 3, generator), torch.randn(3, generator=generator, dtype=torch.float64)
        points = torch.randn(200_000, 3, generator=generator, dtype=torch.float64)
        points /= points.norm(dim=1, keepdim=True)
        seen = (0.5 * points.square() @ spectrum + points @ slope).max().item()
        assert 0 <= largest(spectrum, slope, 1.0) - seen < 1e-3


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


def test_a_step_to_a_loss_that_is_not_finite_is_repeated_shorter():
    loss = lambda model: -(1 - model.vector()[0] + Point().vector()[0]).log()  # noqa: E731
    row = worst_case(Point(), loss, 2.0, restarts=0).rows[0]
    assert math.isnan(row.sam)
    assert math.isfinite(row.lower_bound)
    assert row.lower_bound > 1


def test_a_maximum_that_is_not_finite_is_stored_as_text():
    row = worst_case(Point(), lambda model: {"photo": (1e3 * model.vector()).exp().sum()}, 1e6).rows[0].as_dict()
    assert (row["lower_bound"], row["by_domain"]) == ("inf", {"photo": "inf"})


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
    model, x = nn.Linear(3, 2), torch.ones(4, 3)
    with pytest.raises(ValueError, match="a second column must hold 0-1 errors"):
        worst_case(model, lambda model: model(x), 1.0)  # logits of two classes
    with pytest.raises(ValueError, match="gradients need a loss_fn that torch can differentiate"):
        worst_case(model, lambda model: model(x).argmax(1) != 0, 1.0)
