"""The cyclic learning rate of SWA, as a PyTorch scheduler."""

from __future__ import annotations

import torch
from torch.optim.lr_scheduler import LambdaLR


class _Cycle:
    """The factor of the learning rate. An object, not a lambda, so that the scheduler's state dict has its settings."""

    def __init__(self, cycle: int, low: float, start: int) -> None:
        self.cycle, self.low, self.start = cycle, low, start

    def __call__(self, step: int) -> float:
        if step < self.start:
            return 1.0
        return 1.0 + (self.low - 1.0) * ((step - self.start) % self.cycle + 1) / self.cycle


def cyclic_lr(optimizer: torch.optim.Optimizer, cycle: int, low: float = 1 / 20, start: int = 0) -> LambdaLR:
    """Lower the learning rate linearly to `low` times its value in every cycle of updates.

    Izmailov et al. (2018): lr(i) = (1 - t) lr + t low lr with t = ((i - 1) mod cycle + 1) / cycle, so that an SWA whose
    interval is the cycle takes the weights at the lowest rate. Call `.step()` after every update. The SWAD paper uses a
    cycle of 2 % of training and gives no bounds; 1/20 is our choice.

    >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    >>> scheduler = cyclic_lr(optimizer, cycle=4, low=0.2)
    >>> rates = []
    >>> for _ in range(5):
    ...     rates.append(round(optimizer.param_groups[0]["lr"], 3))
    ...     optimizer.step()
    ...     scheduler.step()
    >>> rates
    [0.8, 0.6, 0.4, 0.2, 0.8]

    Args:
        optimizer: The optimizer, with the highest learning rate set.
        cycle: Updates in a cycle.
        low: The lowest learning rate, as a share of the highest.
        start: Updates before the first cycle.
    """
    if cycle < 1 or start < 0 or not 0 <= low <= 1:
        raise ValueError(f"a cycle needs cycle >= 1, start >= 0, 0 <= low <= 1; got {cycle=}, {start=}, {low=}")
    return LambdaLR(optimizer, _Cycle(cycle, low, start))
