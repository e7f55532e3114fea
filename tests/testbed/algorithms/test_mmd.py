from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from helpers.feature_distance import features_of, shifted_domains
from helpers.tiny_algorithms import batch_for, make, noise_for, train_points
from swad.testbed.algorithms.mmd import mmd


def kernel(x, y):
    return sum(
        math.exp(-(10.0**power) * sum((a - b) ** 2 for a, b in zip(x, y, strict=True))) for power in range(-3, 4)
    )


def by_hand(features):
    """Sum the kernels of all pairs of rows, for every pair of domains."""

    def mean(xs, ys):
        return sum(kernel(x, y) for x in xs for y in ys) / (len(xs) * len(ys))

    found = []
    for d in range(len(features)):
        for e in range(d + 1, len(features)):
            x, y = features[d], features[e]
            found.append(mean(x, x) + mean(y, y) - 2 * mean(x, y))
    return sum(found) / len(found)


@settings(deadline=None, max_examples=60)
@given(some.integers(2, 4), some.integers(1, 4), some.integers(1, 5), some.integers(0, 99), some.floats(0.01, 3))
def test_distance_by_hand(domains, images, size, seed, spread):
    features = np.random.RandomState(seed).randn(domains, images, size) * spread + 1
    assert mmd(torch.tensor(features)).item() == pytest.approx(by_hand(features), rel=1e-4, abs=1e-5)


def test_the_gradient_by_finite_differences():
    features = 0.3 * torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    features.requires_grad_()
    (gradient,) = torch.autograd.grad(mmd(features), features)
    for index in ((0, 0, 0), (1, 2, 3), (0, 1, 2)):
        change = torch.zeros_like(features)
        change[index] = 1e-5
        up, down = (by_hand((features + sign * change).tolist()) for sign in (1, -1))
        assert gradient[index].item() == pytest.approx((up - down) / 2e-5, rel=1e-3, abs=1e-5)


def test_one_image_of_every_domain_is_enough():
    """The covariances of CORAL, whose loss it shares, need two."""
    algorithm = make("mmd", batch_size=1)
    assert algorithm.min_per_domain == 1
    assert algorithm.loss(batch_for(algorithm), noise_for(algorithm)).isfinite()


def test_equal_rows_far_from_the_origin_have_distance_0():
    """In single precision their kernel at the finest scale would not be 1."""
    rows = 30 + torch.randn(1, 4, 512, generator=torch.Generator().manual_seed(0))
    features = rows.expand(2, -1, -1).clone().requires_grad_()
    found = mmd(features)
    found.backward()
    assert abs(found.item()) < 1e-6
    assert features.grad.abs().max() < 1e-6


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_loss_is_cross_entropy_plus_distance_of_the_head_inputs(dropout):
    algorithm = make("mmd", gamma=3.0, dropout=dropout, batch_size=2)
    batch, noise = batch_for(algorithm), noise_for(algorithm)
    network = algorithm.predictor
    with torch.no_grad():
        features = network.forward_head(network.forward_features(batch.images), pre_logits=True)
        features = features * noise.get("dropout_mask", 1)
        entropy = torch.nn.functional.cross_entropy(network.head(features), batch.labels).item()
    want = by_hand(features.view(3, 2, -1).tolist())
    assert want > 0.1
    assert algorithm.loss(batch, noise).item() == pytest.approx(entropy + 3 * want, rel=1e-5)


def test_it_reduces_the_distance_between_domains():
    erm, aligned = (
        mmd(features_of(train_points(name, shifted_domains, features=4, lr=0.02))).item() for name in ("erm", "mmd")
    )
    assert aligned < erm / 2
