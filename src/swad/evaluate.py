"""A model and some images in, mean loss and accuracy out.

Sums are kept on the device in double precision and read once a split, so that the number depends neither on the
size of the batches nor on how many processes shared them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from swad.processes import Team


@dataclass(frozen=True)
class Score:
    """How a model did on some images: sums, so that the scores of two splits add up to that of both.

    >>> (Score(2.0, 1, 2) + Score(1.0, 2, 2)).accuracy
    0.75
    """

    loss_sum: float
    correct: int
    n: int

    def __add__(self, other: Score) -> Score:
        return Score(self.loss_sum + other.loss_sum, self.correct + other.correct, self.n + other.n)

    @property
    def loss(self) -> float:
        """Mean cross entropy."""
        return self.loss_sum / self.n

    @property
    def accuracy(self) -> float:
        """Share of images whose class has the highest score."""
        return self.correct / self.n


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    team: Team,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Score:
    """Pass over the batches in evaluation mode. Of several processes each passes over its own; all get the total."""
    sums = torch.zeros(3, dtype=torch.float64, device=team.device)
    with evaluating(model):
        for images, labels in batches:
            with autocast():
                scores = model(images)
            scores = scores.float()
            sums[0] += functional.cross_entropy(scores, labels, reduction="none").double().sum()
            sums[1] += (scores.argmax(1) == labels).sum()
            sums[2] += len(labels)
    loss_sum, correct, n = team.sum(sums).tolist()
    if not n:
        raise ValueError("an evaluation needs at least 1 image, got none")
    return Score(loss_sum, round(correct), round(n))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode for the block, and every module's own mode back after it."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
