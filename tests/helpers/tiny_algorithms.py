"""Algorithms with tiny predictors and seeded batches, and toy problems whose solution is known."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from swad.testbed.algorithms.base import Algorithm, RunInfo, StepContext
from swad.testbed.algorithms.hyperparameters import fill
from swad.testbed.algorithms.registry import get_algorithm
from swad.testbed.data.loaders import Batch
from swad.testbed.models import networks

CLASSES = 5
SHAPE = (3, 28, 28)


QUICK: dict[str, dict[str, Any]] = {
    "arm": {"context_width": 4},
    "eisnet": {"whole": 0.5},
    "er": {"mlp_width": 8},
    "padain": {"p": 0.5},
}
"""Hyperparameters for the tests of all algorithms: parts that are fast, and draws that show within a few steps."""


def quick(name: str) -> dict[str, Any]:
    """Return those of an algorithm, alone or combined with another."""
    return QUICK.get(name.partition("+")[0], {})


def make(
    name: str,
    predictor: nn.Module | None = None,
    domains: int = 3,
    shape: tuple[int, int, int] = SHAPE,
    **hyperparameters: Any,
) -> Algorithm:
    """Build an algorithm in training mode, on the small network by default, with the same weights every time."""
    torch.manual_seed(0)
    cls = get_algorithm(name)
    filled = fill(cls.Hyperparameters, {"batch_size": 4, **hyperparameters})
    assert not filled.problems()
    run_info = RunInfo((1,) * domains, image_shape=shape, n_preparation=cls.preparation_steps(filled, 10))
    return cls(predictor or networks.build(networks.SMALL, CLASSES), filled, run_info).train()


def tell(algorithm: Algorithm, **changes: Any) -> None:
    """Change what an algorithm knows of its run."""
    algorithm.run_info = dataclasses.replace(algorithm.run_info, **changes)


def batch_for(algorithm: Algorithm, step: int = 1, shape: tuple[int, int, int] = SHAPE) -> Batch:
    """Return random images and labels for a step, with the number of images and views that the algorithm needs."""
    generator = torch.Generator().manual_seed(step)
    views = (algorithm.views,) if algorithm.views > 1 else ()
    images = torch.randn(*views, algorithm.n_images, *shape, generator=generator)
    return Batch(step, images, torch.randint(0, CLASSES, (algorithm.n_images,), generator=generator))


def noise_for(algorithm: Algorithm, step: int = 1) -> dict[str, Tensor]:
    """Return the random numbers of a step."""
    return algorithm.draw_randomness(torch.Generator().manual_seed(1000 + step), step)


def update(algorithm: Algorithm, batch: Batch, ctx: StepContext | None = None) -> Tensor:
    """Make one step as a run does."""
    phase = algorithm.phase(batch.step)
    if batch.step > 1 and phase != algorithm.phase(batch.step - 1):
        algorithm.on_phase_start(phase)
    return algorithm.update(batch, noise_for(algorithm, batch.step), ctx or StepContext())


class Points(nn.Module):
    """A network for points, given as images of 1 × 1 × n pixels: a linear map to features and a linear head."""

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
    **hyperparameters: Any,
) -> Algorithm:
    """Train on points `[domains, images, numbers]` and labels `[domains, images]`, drawn anew for every step."""
    points, _ = draw(torch.Generator().manual_seed(0))
    domains, images, numbers = points.shape
    predictor = Points(numbers, features)
    options = {"batch_size": images, "lr": 0.05, **hyperparameters}
    algorithm = make(name, predictor, domains, (1, 1, numbers), **options)
    for step in range(1, steps + 1):
        points, labels = draw(torch.Generator().manual_seed(step))
        rows = points.reshape(-1, 1, 1, numbers)
        rows = torch.stack([rows] * algorithm.views) if algorithm.views > 1 else rows
        update(algorithm, Batch(step, rows, labels.flatten()))
    return algorithm


def spurious(generator: torch.Generator, agreement: tuple[float, ...] = (0.95, 0.8), n: int = 256) -> Any:
    """Draw two signs: one agrees with the label in 3 of 4 images, the other in a fraction that varies by domain."""
    shape = (len(agreement), n)
    labels = torch.randint(0, 2, shape, generator=generator)
    sign = 2.0 * labels - 1
    stable = torch.where(torch.rand(shape, generator=generator) < 0.75, sign, -sign)
    probability = torch.tensor(agreement)[:, None]
    unstable = torch.where(torch.rand(shape, generator=generator) < probability, sign, -sign)
    return torch.stack([stable, unstable], -1), labels


@torch.no_grad()
def risks(algorithm: Algorithm, points: Tensor, labels: Tensor) -> Tensor:
    """Return the cross entropy of every domain, in double precision."""
    logs = algorithm.predictor(points.flatten(0, 1)).double().log_softmax(1)
    return -logs.gather(1, labels.reshape(-1, 1)).view(labels.shape).mean(1)


def risks_by_hand(algorithm: Algorithm, batch: Batch) -> Any:
    """Return the cross entropy of every domain, computed image by image."""
    scores = algorithm.predictor(batch.images).detach().double().numpy()
    losses: list[list[float]] = [[] for _ in range(algorithm.n_domains)]
    for i, (z, y) in enumerate(zip(scores, batch.labels.tolist(), strict=True)):
        losses[i * algorithm.n_domains // len(scores)].append(np.log(np.exp(z).sum()) - z[y])
    return np.array([np.mean(domain_losses) for domain_losses in losses])
