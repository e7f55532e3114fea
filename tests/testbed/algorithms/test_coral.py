from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from helpers.feature_distance import features_of, shifted_domains
from helpers.tiny_algorithms import batch_for, make, noise_for, train_points
from swad.testbed.algorithms.coral import coral


def by_hand(features):
    """Sum over every entry of every mean and covariance, pair by pair."""
    domains, n, size = features.shape
    means = [[sum(features[d, i, a] for i in range(n)) / n for a in range(size)] for d in range(domains)]
    covariances = [
        [
            [
                sum((features[d, i, a] - means[d][a]) * (features[d, i, b] - means[d][b]) for i in range(n)) / (n - 1)
                for b in range(size)
            ]
            for a in range(size)
        ]
        for d in range(domains)
    ]
    found = []
    for d in range(domains):
        for e in range(d + 1, domains):
            mean = np.mean((np.array(means[d]) - np.array(means[e])) ** 2)
            covariance = np.mean((np.array(covariances[d]) - np.array(covariances[e])) ** 2)
            found.append(mean + covariance)
    return np.mean(found)


@settings(deadline=None, max_examples=60)
@given(some.integers(2, 5), some.integers(2, 5), some.integers(1, 4), some.integers(0, 99))
def test_distance_by_hand(domains, images, size, seed):
    features = np.random.RandomState(seed).randn(domains, images, size) * 3 + 2
    assert coral(torch.tensor(features)).item() == pytest.approx(by_hand(features), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_loss_is_cross_entropy_plus_distance_of_the_head_inputs(dropout):
    algorithm = make("coral", gamma=3.0, dropout=dropout)
    batch, noise = batch_for(algorithm), noise_for(algorithm)
    network = algorithm.predictor
    with torch.no_grad():
        features = network.forward_head(network.forward_features(batch.images), pre_logits=True)
        features = features * noise.get("dropout_mask", 1)
        entropy = torch.nn.functional.cross_entropy(network.head(features), batch.labels).item()
    some_features = features.view(3, 4, -1).double().numpy()
    means = some_features.mean(1)
    covariances = [np.cov(one, rowvar=False) for one in some_features]
    pairs = [(0, 1), (0, 2), (1, 2)]
    want = np.mean(
        [np.mean((means[d] - means[e]) ** 2) + np.mean((covariances[d] - covariances[e]) ** 2) for d, e in pairs]
    )
    assert want > 1e-4
    assert algorithm.loss(batch, noise).item() == pytest.approx(entropy + 3 * want, rel=1e-5)


def test_statistics_are_in_full_precision_under_autocast():
    """The spread of the features is far below the precision of bfloat16."""
    features = 100 + 1e-2 * torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = coral(features).item()
    assert found == pytest.approx(by_hand(features.double().numpy()), rel=1e-2)


def test_it_reduces_the_distance_between_domains():
    erm, aligned = (
        coral(features_of(train_points(name, shifted_domains, features=4, lr=0.02))).item() for name in ("erm", "coral")
    )
    assert aligned < erm / 5
