from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional

from helpers.gradients import entropy, require_same_loss
from helpers.mixed_points import separated_points
from helpers.tiny_algorithms import Points, batch_for, make, noise_for, train_points
from swad.testbed.algorithms.vat import unit


def divergence(p, q):
    """Compute KL image by image and class by class."""
    total = []
    for one, other in zip(p.tolist(), q.tolist(), strict=True):
        logs = [torch.tensor(z, dtype=torch.float64).log_softmax(0).tolist() for z in (one, other)]
        total.append(sum(2.718281828459045**a * (a - b) for a, b in zip(*logs, strict=True)))
    return total


def twin_direction(algorithm, batch, noise, xi):
    """Make the power step in double precision."""
    network = copy.deepcopy(algorithm.predictor).double()
    images = batch.images.double()
    d = noise["direction"].double()
    d = d / d.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    change = (xi * d).requires_grad_()
    p = network(images).softmax(1).detach()
    # With p constant, only the cross term of the divergence has a gradient.
    cross = -(p * network(images + change).log_softmax(1)).sum()
    (gradient,) = torch.autograd.grad(cross, change)
    return gradient / gradient.flatten(1).norm(dim=1).view(-1, 1, 1, 1)


def cosines(one, other):
    return functional.cosine_similarity(one.double().flatten(1), other.double().flatten(1))


def adversary(algorithm, batch, noise):
    return algorithm._adversary(batch.images, noise, None, algorithm.predict(batch.images).detach())


def test_the_direction_matches_double_precision():
    algorithm = make("vat")
    batch, noise = batch_for(algorithm), noise_for(algorithm)
    found = adversary(algorithm, batch, noise)
    assert found.flatten(1).norm(dim=1).tolist() == pytest.approx([1.0] * 12, rel=1e-5)
    assert cosines(found, twin_direction(algorithm, batch, noise, 0.1)).min() > 0.999
    # It is also close to the direction of an infinitely short step.
    assert cosines(found, twin_direction(algorithm, batch, noise, 1e-6)).mean() > 0.99
    # With the paper's ξ, single precision finds a random direction.
    short = make("vat", xi=1e-6)
    assert cosines(adversary(short, batch, noise), twin_direction(short, batch, noise, 1e-6)).min() < 0.9


def test_the_direction_by_finite_differences():
    """Move one pixel at a time, without any automatic derivative."""
    shape = (1, 1, 6)
    algorithm = make("vat", Points(6, 4, classes=5), shape=shape)
    batch, noise = batch_for(algorithm, shape=shape), noise_for(algorithm)
    direction = adversary(algorithm, batch, noise)
    network, step = copy.deepcopy(algorithm.predictor).double(), 1e-5

    @torch.no_grad()
    def logs(image):
        z = network(image[None])[0]
        return z - z.exp().sum().log()

    for image, drawn, unit_vector in zip(batch.images.double(), noise["direction"].double(), direction, strict=True):
        clean, start = logs(image), 0.1 * drawn / drawn.norm()
        slopes = torch.zeros(6, dtype=torch.float64)
        for pixel in range(6):
            change = torch.zeros(shape, dtype=torch.float64)
            change[0, 0, pixel] = step
            above, below = ((clean.exp() * (clean - logs(image + start + sign * change))).sum() for sign in (1, -1))
            slopes[pixel] = (above - below) / (2 * step)
        torch.testing.assert_close(unit_vector.double().flatten(), slopes / slopes.norm(), rtol=0, atol=1e-3)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_loss_and_gradients_by_hand(dropout):
    """The direction and the clean prediction are constants; both terms reach every parameter."""
    algorithm = make("vat", eps=2.0, alpha=3.0, dropout=dropout)
    batch, noise = batch_for(algorithm), noise_for(algorithm)
    labels, masks = batch.labels.tolist(), noise.get("dropout_mask", [None] * 12)

    def twin_loss(scores):
        total = 0
        for i, image in enumerate(batch.images.double()):
            drawn = noise["direction"][i].double()
            change = (0.1 * drawn / drawn.norm()).requires_grad_()
            clean = scores(image, masks[i])
            p = clean.softmax(0).detach()
            (slope,) = torch.autograd.grad(-(p * scores(image + change, masks[i]).log_softmax(0)).sum(), change)
            moved = scores(image + 2 * slope / slope.norm(), masks[i])
            total = total + entropy(clean, labels[i]) + 3 * (p * (p.log() - moved.log_softmax(0))).sum()
        return total / 12

    # VAT divides by a tiny norm, which amplifies float32 rounding: 6e-3 on one CPU. A clean prediction that is not
    # detached shows as 6e-2.
    require_same_loss(algorithm, batch, noise, twin_loss, rtol=1e-2)


def test_the_direction_is_found_in_full_precision_under_autocast():
    algorithm = make("vat")
    batch, noise = batch_for(algorithm), noise_for(algorithm)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = algorithm.predict(batch.images).detach()
        found = algorithm._adversary(batch.images, noise, None, rough)
        assert torch.is_autocast_enabled("cpu")
    assert found.dtype is torch.float32
    assert cosines(found, adversary(algorithm, batch, noise)).min() > 0.9999


def test_predictions_change_most_along_the_direction():
    algorithm = make("vat")
    batch, noise = batch_for(algorithm), noise_for(algorithm)
    found = adversary(algorithm, batch, noise)
    with torch.no_grad():
        clean = algorithm.predict(batch.images)
        along, across = (
            torch.tensor(divergence(clean, algorithm.predict(batch.images + 0.5 * unit(r))))
            for r in (found, noise["direction"])
        )
    assert (along > 3 * across).all()


def test_unit_vectors_of_tiny_and_zero_rows():
    rows = torch.tensor([[3e-30, 4e-30], [0.0, 0.0], [3.0, 4.0]])
    assert unit(rows).tolist() == [pytest.approx([0.6, 0.8]), [0, 0], pytest.approx([0.6, 0.8])]


def test_predictions_become_stable():
    """Points at distance √2 from the line between the classes, which ε = 1 does not cross."""
    points, _ = separated_points(torch.Generator().manual_seed(1000))
    points = points.flatten(0, 1)[:, None, None]
    moves = {}
    for name in ("erm", "vat"):
        network = train_points(name, separated_points, steps=100).predictor
        slope = network.head.weight[1] - network.head.weight[0]
        away = -(slope / slope.norm()).detach() * network(points).diff(dim=1).sign()
        with torch.no_grad():
            moved = network(points + away[:, None, None]).softmax(1)
            moves[name] = (network(points).softmax(1) - moved).abs().amax(1)
    assert moves["vat"].mean() < moves["erm"].mean()
