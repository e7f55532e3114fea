"""Learning rates for averaging, as PyTorch schedulers: the cycles of SWA, and a decay that ends where they begin."""

from __future__ import annotations

import math

import torch
from torch.optim.lr_scheduler import LambdaLR

LOWEST = 1 / 20
"""The lowest learning rate of a cycle, as a share of the highest."""


class Decay:
    """The factor of the learning rate in a training from scratch: a linear warm-up, then a polynomial decay to `low`.

    The rate stays at `low` after the last update of the decay; with `cycle` it continues in cycles of `cyclic_lr`.

    >>> decay = Decay(warmup=2, end=6, low=0.0)
    >>> [decay(step) for step in range(8)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]

    Args:
        warmup: Updates in which the rate rises to its highest value.
        end: The last update of the decay.
        low: The rate after the decay, as a share of the highest.
        power: The exponent of the decay; 1 is linear.
        cycle: Updates in a cycle after the decay; None for a constant rate.
    """

    def __init__(self, warmup: int, end: int, low: float, power: float = 1.0, cycle: int | None = None) -> None:
        if not 0 <= warmup <= end or not 0 <= low <= 1 or power <= 0:
            raise ValueError(
                "a decay needs 0 <= warmup <= end, 0 <= low <= 1 and power > 0; "
                f"got {warmup=}, {end=}, {low=}, {power=}"
            )
        self.warmup, self.end, self.low, self.power, self.cycle = warmup, end, low, power, cycle

    def __call__(self, step: int) -> float:
        """Return the factor of the update after `step` updates."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        if step < self.end:
            left = 1 - (step - self.warmup) / (self.end - self.warmup)
            return self.low + (1 - self.low) * math.pow(left, self.power)
        return self.low if self.cycle is None else self.low * _Cycle(self.cycle, LOWEST, self.end)(step)


class _Cycle:
    """The factor of the learning rate. An object, not a lambda, so that the scheduler's state dict has its settings."""

    def __init__(self, cycle: int, low: float, start: int) -> None:
        self.cycle, self.low, self.start = cycle, low, start

    def __call__(self, step: int) -> float:
        if step < self.start:
            return 1.0
        return 1.0 + (self.low - 1.0) * ((step - self.start) % self.cycle + 1) / self.cycle


def cyclic_lr(optimizer: torch.optim.Optimizer, cycle: int, low: float = LOWEST, start: int = 0) -> LambdaLR:
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
