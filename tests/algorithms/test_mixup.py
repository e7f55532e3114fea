from __future__ import annotations

import numpy as np
import pytest
import torch
from making import batch_for, make, noise_for, train_points

from swad.algorithms import _host


def entropies(scores, labels):
    """Cross entropy, image by image, in double precision."""
    z = scores.detach().double().numpy()
    return [np.log(np.exp(row).sum()) - row[y] for row, y in zip(z, labels, strict=True)]


def test_loss_by_hand():
    algorithm = make("mixup", alpha=1.0)
    for step in (1, 2, 3):
        batch, noise = batch_for(algorithm, step), noise_for(algorithm, step)
        share, partner = noise["share"].item(), noise["partner"].tolist()
        assert sorted(partner) == list(range(12))
        assert 0 < share < 1
        labels, total = batch.labels.tolist(), 0.0
        for i, j in enumerate(partner):
            image = share * batch.images[i].double() + (1 - share) * batch.images[j].double()
            scores = algorithm.predictor(image.float()[None])
            total += share * entropies(scores, [labels[i]])[0] + (1 - share) * entropies(scores, [labels[j]])[0]
        assert algorithm.loss(batch, noise).item() == pytest.approx(total / 12, rel=1e-5)


def test_without_alpha_nothing_is_mixed():
    algorithm, erm = make("mixup", alpha=0.0), make("erm")
    batch = batch_for(algorithm)
    assert algorithm.loss(batch, noise_for(algorithm)).item() == pytest.approx(erm.loss(batch, {}).item(), rel=1e-6)


@pytest.mark.parametrize("alpha", [0.1, 0.2, 1.0, 10.0])
def test_shares_have_the_moments_of_the_beta_distribution(alpha):
    random = _host.stream(torch.Generator().manual_seed(0), 1)
    shares = np.array(_host.beta(random, alpha, 20_000))
    variance = 1 / (4 * (2 * alpha + 1))
    assert shares.mean() == pytest.approx(0.5, abs=4 * (variance / 20_000) ** 0.5)
    assert shares.var() == pytest.approx(variance, rel=0.05)


def test_chance_follows_from_seed_and_step():
    algorithm = make("mixup")

    def shares(seed):
        return [algorithm.noise(torch.Generator().manual_seed(seed), step)["share"].item() for step in range(20)]

    assert shares(1) == shares(1)
    assert len({*shares(1), *shares(2)}) == 40
    one, two = (algorithm.noise(torch.Generator().manual_seed(seed), 1)["partner"] for seed in (1, 2))
    assert not one.equal(two)


def clear(generator: torch.Generator, n: int = 32):
    """Two classes with room between them, in three domains."""
    labels = torch.randint(0, 2, (3, n), generator=generator)
    points = torch.randn(3, n, 2, generator=generator) * 0.1
    return points + (2.0 * labels - 1)[..., None], labels


def sureness(name, **given):
    """How sure a trained classifier is of points a little off the middle between the classes."""
    algorithm = train_points(name, clear, steps=100, **given)
    points, labels = clear(torch.Generator().manual_seed(1000))
    points = points.flatten(0, 1)
    assert (algorithm.predictor(points).argmax(1) == labels.flatten()).all()
    return algorithm.predictor(0.2 * points).softmax(1).amax(1).mean().item()


def test_between_the_classes_it_is_less_sure():
    assert sureness("mixup", alpha=1.0) < sureness("erm") - 0.05
