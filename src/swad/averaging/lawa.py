"""LAWA: the mean of the weights at the last evaluations."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn

from swad.averaging.average import Average
from swad.averaging.checks import check_count
from swad.averaging.rule import Rule
from swad.averaging.spans import Span
from swad.averaging.tracked import Buffers
from swad.tensors.names import Patterns


class Latest(Rule):
    """The weights at the last k evaluations, each with the same weight.

    >>> rule = Latest(k=2)
    >>> for step in (100, 200, 300):
    ...     rule.observe(1.0, step)
    >>> [span.first for span in rule.spans(300)]
    [200, 300]

    Args:
        k: How many.
    """

    dense = False
    settings: ClassVar[tuple[str, ...]] = ("k",)

    def __init__(self, k: int = 5) -> None:
        self.k = check_count("k", k)
        self.steps: list[int] = []

    def observe(self, loss: float, step: int) -> None:
        """Take the weights of an evaluation, and drop the oldest; the loss does not matter."""
        self.steps = [*self.steps, step][-self.k :]

    def spans(self, step: int) -> tuple[Span, ...]:
        """Return the last evaluations."""
        return tuple(Span(each, each) for each in self.steps)

    def needed(self) -> tuple[Span, ...]:
        """Return the last evaluations, each of which will be dropped alone."""
        return self.spans(0)

    def takes(self, step: Any) -> Any:
        """Whether an update between evaluations is averaged: none."""
        return False

    def why_empty(self, step: int) -> str:
        """Say that evaluations are needed."""
        return "call observe after an evaluation, whose weights are averaged"


class LAWA(Average):
    """Latest weight averaging: (theta at the last k evaluations) / k, readable at any time.

    Kaddour, "Stop Wasting My Time! Saving Days of ImageNet and BERT Training with Latest Weight Averaging", 2022. Call
    `observe` where you would save a checkpoint; the loss is not used. It holds k copies of the averaged tensors, which
    `offload=True` keeps in host memory. To average checkpoints that are on disk, use `swad.merge`.

    >>> import torch
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> average = LAWA(model, k=2)
    >>> for value in (1., 2., 4.):
    ...     _ = model.weight.data.fill_(value)
    ...     average.update_parameters(model)
    ...     _ = average.observe(0.0)
    >>> average.averaged_state()["weight"].item()
    3.0

    Args:
        model: The model to follow.
        k: How many evaluations.
        buffers: "copy" keeps the buffers of the last evaluation; "average" averages floating-point buffers too.
        offload: Keep all sums in pinned host memory.
        include: Name patterns of the tensors to average, also frozen ones. By default all trainable ones.
        exclude: Name patterns of tensors not to average.
    """

    def __init__(
        self,
        model: nn.Module,
        k: int = 5,
        *,
        buffers: Buffers = "copy",
        offload: bool = False,
        include: Patterns = None,
        exclude: Patterns = None,
    ) -> None:
        super().__init__(model, Latest(k), buffers=buffers, offload=offload, include=include, exclude=exclude)
