"""A model and some images in, mean loss and accuracy out.

Sums are kept on the device in double precision and read once an evaluation, so that the number depends neither on the
size of the batches nor on how many processes shared them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from swad.training.distributed import Dist


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


Autocast = Callable[[], AbstractContextManager[object]]


def evaluate(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], dist: Dist, autocast: Autocast = nullcontext
) -> Score:
    """Pass over the batches in evaluation mode. Of several processes each passes over its own; all get the total."""
    return evaluate_all(model, {"": batches}, dist, autocast)[""]


@torch.no_grad()
def evaluate_all(
    model: nn.Module,
    parts: Mapping[str, Iterable[tuple[Tensor, Tensor]]],
    dist: Dist,
    autocast: Autocast = nullcontext,
) -> dict[str, Score]:
    """Scores of several parts by name, read from the device once."""
    sums = torch.zeros(len(parts), 3, dtype=torch.float64, device=dist.device)
    with evaluating(model):
        for row, batches in zip(sums, parts.values(), strict=True):
            for images, labels in batches:
                row += per_image(model, images, labels, autocast).sum(0)
    return read_scores(sums, parts, dist)


def per_image(model: nn.Module, images: Tensor, labels: Tensor, autocast: Autocast) -> Tensor:
    """Loss, whether the class is right, and 1, for every image; a label of -1 makes a row of zeros."""
    with autocast():
        scores = model(images)
    scores = scores.float()
    loss = functional.cross_entropy(scores, labels, reduction="none", ignore_index=-1)
    return torch.stack([loss.double(), (scores.argmax(1) == labels).double(), (labels >= 0).double()], dim=1)


def read_scores(sums: Tensor, names: Iterable[str], dist: Dist) -> dict[str, Score]:
    """Scores from sums on the device, one row a name; the one place of an evaluation that waits for it."""
    found = {}
    for name, (loss_sum, correct, n) in zip(names, dist.sum(sums).tolist(), strict=True):
        if not n:
            raise ValueError("an evaluation needs at least 1 image, got none")
        found[name] = Score(loss_sum, round(correct), round(n))
    return found


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
