"""Evaluate a model: mean loss and accuracy over the images of one or several splits.

Sums are kept on the device in double precision and read once per evaluation, so the result depends neither on the
batch size nor on the number of processes.
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
    """The result of an evaluation, stored as sums so that the scores of two splits add up to the score of both.

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
        """Fraction of images that are classified correctly."""
        return self.correct / self.n


Autocast = Callable[[], AbstractContextManager[object]]


def evaluate(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], dist: Dist, autocast: Autocast = nullcontext
) -> Score:
    """Evaluate the model on the batches. Each process passes its own batches, and all get the score of all of them."""
    return evaluate_splits(model, {"": batches}, dist, autocast)[""]


@torch.no_grad()
def evaluate_splits(
    model: nn.Module,
    splits: Mapping[str, Iterable[tuple[Tensor, Tensor]]],
    dist: Dist,
    autocast: Autocast = nullcontext,
) -> dict[str, Score]:
    """Evaluate the model on several splits and return their scores by name, read from the device once."""
    sums = torch.zeros(len(splits), 3, dtype=torch.float64, device=dist.device)
    with eval_mode(model):
        for row, batches in zip(sums, splits.values(), strict=True):
            for images, labels in batches:
                row += per_image(model, images, labels, autocast).sum(0)
    return read_scores(sums, splits, dist)


def per_image(model: nn.Module, images: Tensor, labels: Tensor, autocast: Autocast) -> Tensor:
    """Return one row per image: its loss, 1 if it is classified correctly, and 1; zeros where the label is -1."""
    with autocast():
        logits = model(images)
    logits = logits.float()
    loss = functional.cross_entropy(logits, labels, reduction="none", ignore_index=-1)
    return torch.stack([loss.double(), (logits.argmax(1) == labels).double(), (labels >= 0).double()], dim=1)


def read_scores(sums: Tensor, names: Iterable[str], dist: Dist) -> dict[str, Score]:
    """Read scores from sums on the device, one row per name. Only this call of an evaluation waits for the device."""
    scores = {}
    for name, (loss_sum, correct, n) in zip(names, dist.sum(sums).tolist(), strict=True):
        if not n:
            raise ValueError("an evaluation needs at least 1 image, got none")
        scores[name] = Score(loss_sum, round(correct), round(n))
    return scores


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode for the block, then restore the mode of every module."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
