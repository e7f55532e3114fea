from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch.nn import functional

from helpers.tiny_algorithms import batch_for, make, noise_for, train_points
from swad.testbed.algorithms.rsc import below


@settings(deadline=None, max_examples=100)
@given(some.lists(some.integers(-9, 9), min_size=1, max_size=40), some.floats(0, 1))
def test_below_matches_numpys_percentile(values, drop):
    rows = np.array(values, dtype=np.float64)
    place = (len(rows) - 1) * (1 - drop)
    if 0 < abs(place - round(place)) < 1e-6:  # at the boundary NumPy's result depends on the last bit
        return
    want = rows < np.percentile(rows, 100 * (1 - drop))
    if place == round(place):
        want = rows < np.sort(rows)[round(place)]
    assert (below(torch.tensor(rows), drop).numpy() == want).all()


def by_hand(algorithm, batch, keep):
    """Compute the masks with automatic differentiation and NumPy's percentiles, image by image."""
    drop = algorithm.hyperparameters
    network = algorithm.predictor
    features = network.forward_head(network.forward_features(batch.images), pre_logits=True)
    features = features if keep is None else features * keep
    labels = batch.labels.tolist()
    masks, falls = [], []
    for row, y in zip(features.detach(), labels, strict=True):
        row = row.clone().requires_grad_()
        scores = network.head(row)
        (gradient,) = torch.autograd.grad(scores[y], row)
        threshold = np.percentile(gradient.numpy(), 100 * (1 - drop.feature_drop))
        mask = torch.tensor([float(g < threshold) for g in gradient.tolist()])
        masks.append(mask)
        before, after = (network.head(one).softmax(0)[y].item() for one in (row, row * mask))
        falls.append(before - after)
    threshold = np.percentile(falls, 100 * (1 - drop.batch_drop))
    masks = [torch.ones_like(mask) if fall < threshold else mask for mask, fall in zip(masks, falls, strict=True)]
    return features, torch.stack(masks)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("drops", [(1 / 3, 1 / 3), (0.5, 0.1), (0.05, 0.45)])
def test_masks_loss_and_gradient_by_hand(drops, dropout):
    algorithm = make("rsc", feature_drop=drops[0], batch_drop=drops[1], dropout=dropout, batch_size=8)
    batch, noise = batch_for(algorithm), noise_for(algorithm)
    features, masks = by_hand(algorithm, batch, noise.get("dropout_mask"))
    assert algorithm._feature_mask(features, batch.labels).equal(masks)
    muted = masks.min(1).values == 0
    assert muted.sum().item() == pytest.approx(24 * drops[1], abs=1)
    assert (1 - masks[muted]).mean().item() == pytest.approx(drops[0], abs=0.01)
    # The masks are constants.
    want = functional.cross_entropy(algorithm.predictor.head(features * masks), batch.labels)
    loss, parameters = algorithm.loss(batch, noise), list(algorithm.parameters())
    assert loss.item() == pytest.approx(want.item(), rel=1e-5)
    pairs = zip(torch.autograd.grad(loss, parameters), torch.autograd.grad(want, parameters), strict=True)
    for gradient, wanted_gradient in pairs:
        torch.testing.assert_close(gradient, wanted_gradient)


def loud(generator: torch.Generator, n: int = 64):
    """Three numbers indicate each class, the first one strongly; none is negative, as after a ReLU."""
    labels = torch.randint(0, 2, (2, n), generator=generator)
    loudness = torch.tensor([[2.0, 1.0, 1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 2.0, 1.0, 1.0]])
    return (torch.randn(2, n, 6, generator=generator) + loudness[labels]).relu(), labels


def test_it_uses_weaker_features_too():
    share = {}
    for name, more in (("erm", {}), ("rsc", {"feature_drop": 0.1, "batch_drop": 0.5})):
        weights = train_points(name, loud, steps=300, **more).predictor.head.weight
        size = (weights[0] - weights[1])[:3]
        share[name] = (size[0] / size.sum()).item()
    print(share)
    assert share["rsc"] < share["erm"] - 0.05
