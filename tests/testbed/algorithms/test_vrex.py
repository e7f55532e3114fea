from __future__ import annotations

import pytest
import torch

from helpers.tiny_algorithms import batch_for, make, noise_for, risks, risks_by_hand, spurious, train_points


@pytest.mark.parametrize(("step", "weight"), [(1, 1.0), (500, 1.0), (501, 10.0)])
def test_loss_is_mean_and_variance_of_the_risks(step, weight):
    algorithm = make("vrex")
    batch = batch_for(algorithm)
    found = risks_by_hand(algorithm, batch)
    want = found.mean() + weight * ((found - found.mean()) ** 2).sum() / 3
    assert algorithm.loss(batch, noise_for(algorithm, step)).item() == pytest.approx(want, rel=1e-5)


def test_it_equalizes_the_risks():
    test = spurious(torch.Generator().manual_seed(1), n=4096)
    erm = risks(train_points("erm", spurious), *test)
    assert erm[1] - erm[0] > 0.1
    vrex = risks(train_points("vrex", spurious, anneal=20, penalty=1000), *test)
    assert abs(vrex[1] - vrex[0]) < (erm[1] - erm[0]) / 4
