from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers.tiny_algorithms import batch_for, make, noise_for, risks, risks_by_hand, train_points, update
from swad.testbed.algorithms.base import StepContext


def test_weights_follow_the_exponentiated_gradient():
    algorithm = make("group_dro", eta=0.5, lr=1e-2)
    q = np.full(3, 1 / 3)
    for step in range(1, 6):
        batch = batch_for(algorithm, step)
        found = risks_by_hand(algorithm, batch)
        q = q * np.exp(0.5 * found)
        q /= q.sum()
        # The weights sum to 1, and the loss is not divided by the number of domains.
        assert update(algorithm, batch).item() == pytest.approx(q @ found, rel=1e-5)
        assert algorithm.q.tolist() == pytest.approx(q.tolist(), rel=1e-5)
    assert q.max() > 0.34


def test_the_gradient_is_that_of_the_weighted_risks():
    algorithm = make("group_dro", eta=1.0)
    batch = batch_for(algorithm)
    scores = algorithm.predict(batch.images)
    found = torch.nn.functional.cross_entropy(scores, batch.labels, reduction="none").view(3, 4).mean(1)
    q = found.detach().exp() / found.detach().exp().sum()
    parameters = list(algorithm.parameters())
    want = torch.autograd.grad((q * found).sum(), parameters)
    mine = torch.autograd.grad(algorithm.loss(batch, noise_for(algorithm)), parameters)
    for one, other in zip(mine, want, strict=True):
        torch.testing.assert_close(one, other)


def test_weights_stay_finite_for_huge_losses():
    algorithm = make("group_dro", eta=0.1)
    batch = batch_for(algorithm)
    algorithm.update(batch._replace(images=1e6 * batch.images), {}, StepContext())
    assert algorithm.q.isfinite().all()
    assert algorithm.q.sum().item() == pytest.approx(1)


def uneven(generator: torch.Generator, n: int = 256):
    """Two domains in which a sign agrees with the label in 90 % of the images, and one in which it is random."""
    labels = torch.randint(0, 2, (3, n), generator=generator)
    right = torch.rand(3, n, generator=generator) < torch.tensor([0.9, 0.9, 0.4])[:, None]
    return ((2.0 * labels - 1) * (2.0 * right - 1))[..., None], labels


def test_the_worst_domain_improves():
    test = uneven(torch.Generator().manual_seed(1), 4096)
    erm, dro = (risks(one, *test) for one in (train_points("erm", uneven), train_points("group_dro", uneven, eta=0.1)))
    assert dro.max() < erm.max() - 0.1
    assert erm.mean() < dro.mean()
