"""LAWA: the mean of the weights at the last evaluations."""

from __future__ import annotations

from torch import nn

from swad.averaging.average import Average
from swad.averaging.latest import Latest
from swad.averaging.tracked import Buffers
from swad.tensors.names import Patterns


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
