from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from helpers.gradients import entropy, require_same_loss
from helpers.tiny_algorithms import Points, batch_for, make, noise_for, update
from swad.testbed.algorithms.cutmix import box
from swad.testbed.data.loaders import Batch


def corners(side, center, size):
    """Return the first and last pixel of the box along one side, as in the paper's code."""
    cut, middle = int(size * side), int(size * center)
    return max(0, middle - cut // 2), min(size, middle + cut // 2)


@settings(deadline=None, max_examples=60)
@given(some.integers(0, 64), some.integers(0, 63), some.integers(0, 63), some.integers(1, 40), some.integers(1, 40))
def test_the_box_pixel_by_pixel(side, row, column, height, width):
    # Divisions by a power of 2 are exact in every precision.
    drawn = [side / 64, row / 64, column / 64]
    inside = box(torch.tensor(drawn), height, width)
    top, bottom = corners(drawn[0], drawn[1], height)
    left, right = corners(drawn[0], drawn[2], width)
    want = np.zeros((height, width), dtype=bool)
    for i in range(height):
        for j in range(width):
            want[i, j] = top <= i < bottom and left <= j < right
    assert (inside.numpy() == want).all()


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_loss_and_gradients_by_hand(dropout):
    algorithm = make("cutmix", p=1.0, dropout=dropout)
    batch, noise = batch_for(algorithm), noise_for(algorithm)
    side, row, column = noise["box"].tolist()
    (top, bottom), (left, right) = corners(side, row, 28), corners(side, column, 28)
    area = (bottom - top) * (right - left) / 28**2
    assert 0.05 < area < 0.95
    labels, masks = batch.labels.tolist(), noise.get("dropout_mask", [None] * 12)

    def twin_loss(scores):
        losses = []
        for i, j in enumerate(noise["partner"].tolist()):
            image = batch.images[i].clone()
            image[:, top:bottom, left:right] = batch.images[j][:, top:bottom, left:right]
            mixed = scores(image, masks[i])
            losses.append((1 - area) * entropy(mixed, labels[i]) + area * entropy(mixed, labels[j]))
        return sum(losses) / 12

    require_same_loss(algorithm, batch, noise, twin_loss)


def test_half_of_the_steps_have_a_box():
    algorithm, erm = make("cutmix"), make("erm")
    sides = [noise_for(algorithm, step)["box"][0].item() for step in range(400)]
    assert 160 < sum(side == 0 for side in sides) < 240
    # For α = 1 the fraction of pixels outside the box is uniform.
    stays = [1 - side**2 for side in sides if side]
    assert np.mean(stays) == pytest.approx(0.5, abs=0.08)
    assert np.var(stays) == pytest.approx(1 / 12, rel=0.25)
    whole = next(step for step, side in enumerate(sides) if side == 0)
    batch = batch_for(algorithm)
    loss = algorithm.loss(batch, noise_for(algorithm, whole))
    assert loss.item() == pytest.approx(erm.loss(batch, {}).item(), rel=1e-6)


def test_every_part_of_an_image_becomes_relevant():
    """A corner shows the label clearly and the rest weakly; when the box hides the corner, the rest must do."""

    def draw(step, n=24):
        generator = torch.Generator().manual_seed(step)
        labels = torch.randint(0, 2, (n,), generator=generator)
        images = torch.randn(n, 1, 8, 8, generator=generator)
        sign = (2.0 * labels - 1)[:, None, None]
        images[:, 0, :2, :2] += 3 * sign
        images[:, 0, 4:, 4:] += 0.3 * sign
        return Batch(step, images, labels)

    share = {}
    for name, more in (("erm", {}), ("cutmix", {"p": 1.0})):
        algorithm = make(name, Points(64), 3, (1, 8, 8), batch_size=8, lr=0.02, **more)
        for step in range(1, 201):
            update(algorithm, draw(step))
        weights = (algorithm.predictor.head.weight[1] - algorithm.predictor.head.weight[0]).view(8, 8).detach()
        share[name] = (weights[4:, 4:].mean() / weights[:2, :2].mean()).item()
    assert share["cutmix"] > 1.3 * share["erm"]
