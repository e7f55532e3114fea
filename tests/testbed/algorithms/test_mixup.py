from __future__ import annotations

import pytest
import torch

from helpers.gradients import entropy, require_same_loss
from helpers.mixed_points import confidence
from helpers.tiny_algorithms import batch_for, make, noise_for


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_loss_and_gradients_by_hand(dropout):
    algorithm = make("mixup", alpha=1.0, dropout=dropout)
    batch, noise = batch_for(algorithm), noise_for(algorithm)
    share, labels = noise["share"].item(), batch.labels.tolist()
    assert 0 < share < 1
    assert sorted(noise["partner"].tolist()) == list(range(12))
    masks = noise.get("dropout_mask", [None] * 12)

    def twin_loss(scores):
        losses = []
        for i, j in enumerate(noise["partner"].tolist()):
            mixed = scores(share * batch.images[i] + (1 - share) * batch.images[j], masks[i])
            losses.append(share * entropy(mixed, labels[i]) + (1 - share) * entropy(mixed, labels[j]))
        return sum(losses) / 12

    require_same_loss(algorithm, batch, noise, twin_loss)


def test_alpha_zero_mixes_nothing():
    algorithm, erm = make("mixup", alpha=0.0), make("erm")
    batch = batch_for(algorithm)
    assert algorithm.loss(batch, noise_for(algorithm)).item() == pytest.approx(erm.loss(batch, {}).item(), rel=1e-6)


def test_randomness_depends_on_seed_and_step():
    algorithm = make("mixup")

    def shares(seed):
        return [
            algorithm.draw_randomness(torch.Generator().manual_seed(seed), step)["share"].item() for step in range(20)
        ]

    assert shares(1) == shares(1)
    assert len({*shares(1), *shares(2)}) == 40
    one, two = (algorithm.draw_randomness(torch.Generator().manual_seed(seed), 1)["partner"] for seed in (1, 2))
    assert not one.equal(two)


def test_it_is_less_confident_between_classes():
    assert confidence("mixup", alpha=1.0) < confidence("erm") - 0.05
