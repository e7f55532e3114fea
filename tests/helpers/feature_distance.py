"""Points whose domains differ in one coordinate, and what the features of a trained algorithm keep of the domain."""

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


def shifted_classes(generator: torch.Generator, n: int = 64):
    """Draw points of two domains: both coordinates tell the class, the second more clearly but shifted by domain."""
    labels = torch.randint(0, 2, (2, n), generator=generator)
    sign = 2.0 * labels - 1
    first = sign + 0.6 * torch.randn((2, n), generator=generator)
    second = sign + torch.tensor([[-1.0], [1.0]]) + 0.4 * torch.randn((2, n), generator=generator)
    return torch.stack([first, second], -1), labels


@torch.no_grad()
def domain_distance(algorithm):
    """Return the distance between domains relative to that between classes in the only feature, and the accuracy."""
    points, labels = shifted_classes(torch.Generator().manual_seed(999))
    feature = algorithm.predictor.forward_features(points.flatten(0, 1)).view(2, 64)
    middles = torch.stack([torch.stack([feature[d][labels[d] == c].mean() for c in (0, 1)]) for d in (0, 1)])
    between_domains, between_classes = (middles[1] - middles[0]).mean(), (middles[:, 1] - middles[:, 0]).mean()
    right = algorithm.predictor(points.flatten(0, 1)).argmax(1) == labels.flatten()
    return abs(between_domains / between_classes).item(), right.double().mean().item()
