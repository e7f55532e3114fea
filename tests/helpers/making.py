"""Algorithms over small predictors and batches, made by one seed, and small problems with a known answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from swad.algorithms.base import Algorithm, StepContext
from swad.algorithms.hyperparameters import fill
from swad.algorithms.registry import get_algorithm
from swad.data.loaders import Batch
from swad.models import networks

CLASSES = 5
SHAPE = (3, 28, 28)


def make(
    name: str, predictor: nn.Module | None = None, domains: int = 3, shape: tuple[int, int, int] = SHAPE, **given: Any
) -> Algorithm:
    """An algorithm in training over the small network, or another; the same weights every time."""
    torch.manual_seed(0)
    kind = get_algorithm(name)
    own = fill(kind.Hyperparameters, {"batch_size": 4, **given})
    assert not own.problems()
    made = kind(predictor or networks.build(networks.SMALL, CLASSES), own, domains).train()
    made.image_shape = shape
    return made


def batch_for(algorithm: Algorithm, step: int = 1, shape: tuple[int, int, int] = SHAPE) -> Batch:
    """Random images and labels of the size the algorithm wants, in as many views."""
    generator = torch.Generator().manual_seed(step)
    views = (algorithm.views,) if algorithm.views > 1 else ()
    images = torch.randn(*views, algorithm.n_images, *shape, generator=generator)
    return Batch(step, images, torch.randint(0, CLASSES, (algorithm.n_images,), generator=generator))


def noise_for(algorithm: Algorithm, step: int = 1) -> dict[str, Tensor]:
    return algorithm.draw_randomness(torch.Generator().manual_seed(1000 + step), step)


def update(algorithm: Algorithm, batch: Batch, ctx: StepContext | None = None) -> Tensor:
    """One step as a run makes it."""
    phase = algorithm.phase(batch.step)
    if batch.step > 1 and phase != algorithm.phase(batch.step - 1):
        algorithm.on_phase_start(phase)
    return algorithm.update(batch, noise_for(algorithm, batch.step), ctx or StepContext())


class Points(nn.Module):
    """Points of a plane (as images of 1 × 1 × n pixels) through one linear map to features, and a linear head."""

    def __init__(self, inputs: int, features: int | None = None, classes: int = 2) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.body = nn.Identity() if features is None else nn.Linear(inputs, features)
        self.head = nn.Linear(features or inputs, classes)

    def forward_features(self, images: Tensor) -> Tensor:
        return self.body(images.flatten(1))

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        return features if pre_logits else self.head(features)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.forward_features(images))

    def get_classifier(self) -> nn.Linear:
        return self.head


def train_points(
    name: str,
    draw: Callable[[torch.Generator], tuple[Tensor, Tensor]],
    *,
    steps: int = 150,
    features: int | None = None,
    **given: Any,
) -> Algorithm:
    """Train on points, `[domains, images, numbers]`, and labels, `[domains, images]`, drawn anew at every step."""
    points, _ = draw(torch.Generator().manual_seed(0))
    domains, images, numbers = points.shape
    predictor = Points(numbers, features)
    options = {"batch_size": images, "lr": 0.05, **given}
    algorithm = make(name, predictor, domains, (1, 1, numbers), **options)
    for step in range(1, steps + 1):
        points, labels = draw(torch.Generator().manual_seed(step))
        rows = points.reshape(-1, 1, 1, numbers)
        rows = torch.stack([rows] * algorithm.views) if algorithm.views > 1 else rows
        update(algorithm, Batch(step, rows, labels.flatten()))
    return algorithm


def spurious(generator: torch.Generator, agreement: tuple[float, ...] = (0.95, 0.8), n: int = 256) -> Any:
    """A sign that gives the label three times out of four everywhere, and one that does in some domains more often."""
    shape = (len(agreement), n)
    labels = torch.randint(0, 2, shape, generator=generator)
    sign = 2.0 * labels - 1
    one = torch.where(torch.rand(shape, generator=generator) < 0.75, sign, -sign)
    chance = torch.tensor(agreement)[:, None]
    two = torch.where(torch.rand(shape, generator=generator) < chance, sign, -sign)
    return torch.stack([one, two], -1), labels


@torch.no_grad()
def risks(algorithm: Algorithm, points: Tensor, labels: Tensor) -> Tensor:
    """Every domain's cross entropy, in double precision."""
    logs = algorithm.predictor(points.flatten(0, 1)).double().log_softmax(1)
    return -logs.gather(1, labels.reshape(-1, 1)).view(labels.shape).mean(1)


def risks_by_hand(algorithm: Algorithm, batch: Batch) -> Any:
    """Every domain's cross entropy, image by image."""
    scores = algorithm.predictor(batch.images).detach().double().numpy()
    found: list[list[float]] = [[] for _ in range(algorithm.n_domains)]
    for i, (z, y) in enumerate(zip(scores, batch.labels.tolist(), strict=True)):
        found[i * algorithm.n_domains // len(scores)].append(np.log(np.exp(z).sum()) - z[y])
    return np.array([np.mean(one) for one in found])
