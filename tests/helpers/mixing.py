"""What mixing of images does to predictions."""

from __future__ import annotations

import numpy as np
import torch

from helpers.making import train_points


def entropies(scores, labels):
    """Cross entropy, image by image, in double precision."""
    z = scores.detach().double().numpy()
    return [np.log(np.exp(row).sum()) - row[y] for row, y in zip(z, labels, strict=True)]


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
