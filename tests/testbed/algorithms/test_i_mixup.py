from __future__ import annotations

import pytest
import torch

from helpers.gradients import entropy, require_same_loss
from helpers.mixed_points import confidence
from helpers.tiny_algorithms import batch_for, make, noise_for


@pytest.mark.parametrize(("domains", "dropout"), [(2, 0.0), (3, 0.5), (5, 0.0)])
def test_loss_and_gradients_by_hand(domains, dropout):
    algorithm = make("i_mixup", domains=domains, alpha=1.0, dropout=dropout)
    batch, noise = batch_for(algorithm), noise_for(algorithm)
    shares, partners, labels = noise["share"].tolist(), noise["partner"].tolist(), batch.labels.tolist()
    assert len(set(shares)) == domains
    masks = noise.get("dropout_mask", [None] * len(labels))

    def twin_loss(scores):
        losses = []
        for i in range(len(labels)):
            share, j = shares[i // 4], 4 * partners[i // 4] + i % 4
            mixed = scores(share * batch.images[i] + (1 - share) * batch.images[j], masks[i])
            losses.append(share * entropy(mixed, labels[i]) + (1 - share) * entropy(mixed, labels[j]))
        return sum(losses) / len(losses)

    require_same_loss(algorithm, batch, noise, twin_loss)


@pytest.mark.parametrize("domains", [2, 3, 5])
def test_domains_form_a_ring_in_random_order(domains):
    algorithm = make("i_mixup", domains=domains)
    rings = set()
    for step in range(200):
        partners = noise_for(algorithm, step)["partner"].tolist()
        way, at = [0], partners[0]
        while at != 0:
            way.append(at)
            at = partners[at]
        assert sorted(way) == list(range(domains))
        rings.add(tuple(way))
    assert len(rings) == {2: 1, 3: 2, 5: 24}[domains]


def test_alpha_zero_mixes_nothing():
    algorithm, erm = make("i_mixup", alpha=0.0), make("erm")
    batch = batch_for(algorithm)
    assert algorithm.loss(batch, noise_for(algorithm)).item() == pytest.approx(erm.loss(batch, {}).item(), rel=1e-6)
    assert noise_for(algorithm)["share"].equal(torch.ones(3))


def test_it_is_less_confident_between_classes():
    assert confidence("i_mixup", alpha=1.0) < confidence("erm") - 0.05
