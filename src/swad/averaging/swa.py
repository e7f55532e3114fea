"""SWA and SMA: averages over a fixed window of updates (`swad.averaging.window`)."""

from __future__ import annotations

from torch import nn

from swad.averaging.average import Average
from swad.averaging.tracked import Buffers
from swad.averaging.window import Window
from swad.tensors.names import Patterns


class SWA(Average):
    """Average the weights of a fixed window of updates, every `interval` of them.

    Izmailov et al., "Averaging Weights Leads to Wider Optima and Better Generalization", UAI 2018. The window is
    (start, end]: `SWA(model, start=4000, end=5000, interval=100)` averages the ten updates 4100, 4200, ..., 5000 of the
    SWAD paper. Train with a constant or a cyclic learning rate, which the average never touches.

    >>> import torch
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> average = SWA(model, start=2, interval=2)
    >>> for value in (1., 2., 3., 4., 5., 6.):
    ...     _ = model.weight.data.fill_(value)
    ...     average.update_parameters(model)
    >>> average.averaged_state()["weight"].item()
    5.0

    Args:
        model: The model to follow.
        start: The last update before the window.
        end: The last update of the window. By default the end of training.
        interval: Average every `interval`-th update after `start`. 1 is the ablation "without opt-overfit".
        buffers: "copy" keeps the buffers of the last averaged update; "average" averages floating-point buffers too.
        offload: Keep all sums but the open segment in pinned host memory.
        include: Name patterns of the tensors to average, also frozen ones. By default all trainable ones.
        exclude: Name patterns of tensors not to average.
    """

    def __init__(
        self,
        model: nn.Module,
        start: int,
        end: int | None = None,
        interval: int = 1,
        *,
        buffers: Buffers = "copy",
        offload: bool = False,
        include: Patterns = None,
        exclude: Patterns = None,
    ) -> None:
        rule = Window(start, end, interval)
        super().__init__(model, rule, buffers=buffers, offload=offload, include=include, exclude=exclude)


class SMA(SWA):
    """Simple moving average: every update after update `start`, to the end of training.

    Arpit et al., "Ensemble of Averages: Improving Model Selection and Boosting Performance in Domain Generalization",
    NeurIPS 2022, start at update 100.

    Args:
        model: The model to follow.
        start: The last update before the average begins.
        buffers: "copy" keeps the buffers of the last averaged update; "average" averages floating-point buffers too.
        offload: Keep all sums but the open segment in pinned host memory.
        include: Name patterns of the tensors to average, also frozen ones. By default all trainable ones.
        exclude: Name patterns of tensors not to average.
    """

    def __init__(
        self,
        model: nn.Module,
        start: int = 100,
        *,
        buffers: Buffers = "copy",
        offload: bool = False,
        include: Patterns = None,
        exclude: Patterns = None,
    ) -> None:
        super().__init__(model, start, buffers=buffers, offload=offload, include=include, exclude=exclude)
