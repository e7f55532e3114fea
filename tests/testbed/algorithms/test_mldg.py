from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch.nn import functional

from helpers.tiny_algorithms import Points, batch_for, make, noise_for, tell
from swad.testbed.algorithms.base import StepContext


def by_copies(algorithm, batch, noise, lr, decay, beta):
    """Compute the gradient as in DomainBed: a copy of the network and a fresh Adam for every pair."""
    network = copy.deepcopy(algorithm.predictor).double()
    n, images, labels = algorithm.n_domains, batch.images.double(), batch.labels
    size = len(labels) // n

    def loss_of(net, domain, keep):
        rows = slice(domain * size, (domain + 1) * size)
        features = net.forward_head(net.forward_features(images[rows]), pre_logits=True)
        if algorithm.hyperparameters.dropout:
            features = features * noise[keep][rows]
        return functional.cross_entropy(net.get_classifier()(features), labels[rows])

    total, value = [torch.zeros_like(p) for p in network.parameters()], 0.0
    for i, j in enumerate(noise["partner"].tolist()):
        inner = copy.deepcopy(network)
        optimizer = torch.optim.Adam(inner.parameters(), lr=lr, weight_decay=decay)
        loss = loss_of(inner, i, "dropout_mask")
        loss.backward()
        first = [p.grad.clone() for p in inner.parameters()]
        optimizer.step()
        meta = loss_of(inner, j, "dropout_mask_after")
        second = torch.autograd.grad(meta, list(inner.parameters()))
        for g, one, other in zip(total, first, second, strict=True):
            g += (one + beta * other) / n
        value += (loss + beta * meta).item() / n
    return total, value


@pytest.mark.parametrize(("domains", "decay", "dropout"), [(3, 0.0, 0.0), (2, 0.1, 0.0), (4, 0.0, 0.5)])
def test_the_gradient_equals_that_of_copies_with_fresh_adams(domains, decay, dropout):
    options = {"lr": 0.01, "beta": 0.7, "weight_decay": decay, "dropout": dropout}
    algorithm = make("mldg", domains=domains, **options)
    batch, noise = batch_for(algorithm), noise_for(algorithm)
    want, value = by_copies(algorithm, batch, noise, 0.01, decay, 0.7)
    before = [p.detach().clone() for p in algorithm.predictor.parameters()]
    seen = []
    algorithm.step = lambda ctx, *names: seen.extend(p.detach().clone() for p in algorithm.predictor.parameters())
    loss = algorithm.update(batch, noise, StepContext())
    assert float(loss) == pytest.approx(value, rel=1e-5)
    for weight, gradient in zip(algorithm.predictor.parameters(), want, strict=True):
        # Rounding decides the sign of gradients near 0, and so their inner step: compare norms.
        assert (weight.grad - gradient).norm() < 2e-3 * gradient.norm() + 1e-7
    assert all(one.equal(other) for one, other in zip(before, seen, strict=True)), "weights must come back"


@pytest.mark.parametrize("fresh", [torch.optim.Adam, torch.optim.SGD])
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_the_inner_step_is_the_first_of_a_fresh_optimizer(decay, fresh):
    algorithm = make("mldg", lr=0.02, weight_decay=decay)
    tell(algorithm, optimizer=fresh.__name__.lower())
    torch.manual_seed(3)
    weights = [torch.nn.Parameter(torch.randn(50, dtype=torch.float64)) for _ in range(2)]
    scale = 10.0 ** torch.arange(-12, 13, 0.5, dtype=torch.float64)[:50]
    found = [torch.randn(50, dtype=torch.float64) * scale, torch.zeros(50, dtype=torch.float64)]
    twins = [torch.nn.Parameter(weight.detach().clone()) for weight in weights]
    for twin, gradient in zip(twins, found, strict=True):
        twin.grad = gradient.clone()
    fresh(twins, lr=0.02, weight_decay=decay).step()
    algorithm._inner_step(weights, found)
    for weight, twin in zip(weights, twins, strict=True):
        torch.testing.assert_close(weight, twin, rtol=1e-12, atol=1e-14)


def test_the_inner_step_uses_the_current_learning_rate():
    algorithm = make("mldg", lr=0.02)
    algorithm.optimizers["main"].param_groups[0]["lr"] = 0.001
    weight = torch.nn.Parameter(torch.zeros(3))
    algorithm._inner_step([weight], [torch.tensor([1.0, -2.0, 5.0])])
    torch.testing.assert_close(weight.detach(), torch.tensor([-0.001, 0.001, -0.001]))


@settings(max_examples=30)
@given(some.integers(2, 6), some.integers(1, 50))
def test_partners_form_a_ring(domains, step):
    partner = noise_for(make("mldg", domains=domains), step)["partner"].tolist()
    assert sorted(partner) == list(range(domains))
    at, met = 0, set()
    for _ in range(domains):
        at = partner[at]
        met.add(at)
    assert met == set(range(domains)), "one ring through all: nobody is its own partner, two give two pairs"


def test_partners_change():
    algorithm = make("mldg", domains=3)
    assert len({tuple(noise_for(algorithm, step)["partner"].tolist()) for step in range(1, 20)}) == 2


def test_weight_zero_is_erm():
    algorithm, plain = make("mldg", beta=0.0, lr=1e-3), make("erm", lr=1e-3)
    batch = batch_for(algorithm)
    algorithm.update(batch, noise_for(algorithm), StepContext())
    plain.update(batch, {}, StepContext())
    for mine, theirs in zip(algorithm.predictor.parameters(), plain.predictor.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-7)


def test_it_converges_to_the_solution_for_two_parabolas():
    """Domains with losses c (w - a)² / 2: ERM converges to the weighted mean of the a, MLDG closer to the steeper one.

    Between the two, inner steps go lr to either side, so that 0 = (1 + β) Σ c (w - a) - β lr (c_2 - c_1).
    """
    (a, b), (c, d), lr, beta = (0.0, 1.0), (1.0, 3.0), 0.1, 2.0
    algorithm = make("mldg", Points(1), domains=2, lr=lr, beta=beta)
    weight = algorithm.predictor.head.weight

    def backward(batch, domain, keep, ctx):
        at, steep = ((a, c), (b, d))[int(domain)]
        algorithm.optimizers["main"].zero_grad()
        loss = steep * (weight[0, 0] - at).square() / 2
        loss.backward()
        return loss.detach()

    algorithm._backward = backward
    weight.data.fill_(0.5)
    for step in range(1, 400):
        algorithm.update(batch_for(algorithm, 1, (1, 1, 1)), noise_for(algorithm, step), StepContext())
    plain = (c * a + d * b) / (c + d)
    assert weight[0, 0].item() == pytest.approx(plain + beta / (1 + beta) * lr * (d - c) / (c + d), abs=1e-4)
