"""Points whose domains differ in one coordinate, and the features of a trained algorithm for them."""

from __future__ import annotations

import torch


def shifted_domains(generator: torch.Generator, n: int = 64):
    """Draw points whose first coordinate tells the label and whose second has a mean and a spread for each domain."""
    labels = torch.randint(0, 2, (3, n), generator=generator)
    first = 2.0 * labels - 1 + torch.randn(3, n, generator=generator)
    second = torch.tensor([-2.0, 0.0, 3.0])[:, None] + torch.tensor([0.5, 1.0, 2.0])[:, None] * torch.randn(
        3, n, generator=generator
    )
    return torch.stack([first, second], -1), labels


@torch.no_grad()
def features_of(algorithm):
    """Return the features of 256 points of each domain, scaled to unit deviation."""
    points, _ = shifted_domains(torch.Generator().manual_seed(1), 256)
    features = algorithm.predictor.forward_features(points.flatten(0, 1)).view(3, 256, -1)
    return features / features.flatten(0, 1).std(0).mean()
