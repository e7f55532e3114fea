"""How far apart the features of two domains are."""

from __future__ import annotations

import torch


def apart(generator: torch.Generator, n: int = 64):
    """The label is in the first number; the second is the domain, with a spread of its own."""
    labels = torch.randint(0, 2, (3, n), generator=generator)
    first = 2.0 * labels - 1 + torch.randn(3, n, generator=generator)
    where = torch.tensor([-2.0, 0.0, 3.0])[:, None] + torch.tensor([0.5, 1.0, 2.0])[:, None] * torch.randn(
        3, n, generator=generator
    )
    return torch.stack([first, where], -1), labels


@torch.no_grad()
def features_of(algorithm):
    points, _ = apart(torch.Generator().manual_seed(1), 256)
    features = algorithm.predictor.forward_features(points.flatten(0, 1)).view(3, 256, -1)
    return features / features.flatten(0, 1).std(0).mean()
