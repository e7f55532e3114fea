"""How mixing images changes the confidence of predictions between classes."""

from __future__ import annotations

import torch

from helpers.tiny_algorithms import train_points


def separated_points(generator: torch.Generator, n: int = 32):
    """Draw points of two separated classes in three domains."""
    labels = torch.randint(0, 2, (3, n), generator=generator)
    points = torch.randn(3, n, 2, generator=generator) * 0.1
    return points + (2.0 * labels - 1)[..., None], labels


def confidence(name, **hyperparameters):
    """Return the confidence of a trained classifier near the middle between the classes."""
    algorithm = train_points(name, separated_points, steps=100, **hyperparameters)
    points, labels = separated_points(torch.Generator().manual_seed(1000))
    points = points.flatten(0, 1)
    assert (algorithm.predictor(points).argmax(1) == labels.flatten()).all()
    return algorithm.predictor(0.2 * points).softmax(1).amax(1).mean().item()
