"""Learning rate schedules by name, as in `--lr-schedule step:at=0.6,gamma=0.1`.

    constant                    the learning rate of the hyperparameters
    cyclic                      SWA's: over the last 20 % it decays to a twentieth in cycles of 2 %
    step:at=0.6,gamma=0.1       times gamma after a share of the steps
    exponential:gamma=0.99      times gamma after every epoch; needs `epochs`
    decay                       down to zero, in the imagenet recipe (see `swad.testbed.training.recipes`)

A schedule multiplies the learning rate of every parameter group, so that groups keep their ratios.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from swad.util.names import choice_problem
from swad.util.options import Bounds
from swad.util.options import parse as parse_value

SCHEDULES: Mapping[str, Mapping[str, float]] = {
    "constant": {},
    "cyclic": {},
    "step": {"at": 0.6, "gamma": 0.1},
    "exponential": {"gamma": 0.99},
    "decay": {},
}
"""The options of every schedule, with their defaults."""
_SHARE = Bounds(0, 1)

LOWEST = 1 / 20
"""The lowest learning rate of a cycle, as a share of the highest."""


def parse(text: str) -> tuple[str, dict[str, float]]:
    """Return the name and all options of a schedule.

    >>> parse("step:at=0.8")
    ('step', {'at': 0.8, 'gamma': 0.1})
    >>> parse("cosin")
    Traceback (most recent call last):
    ValueError: lr_schedule must be one of constant, cyclic, step, exponential, decay, got 'cosin'
    """
    name, _, listed = text.partition(":")
    if name not in SCHEDULES:
        raise ValueError(choice_problem("lr_schedule", name, SCHEDULES))
    options = dict(SCHEDULES[name])
    for part in filter(None, listed.split(",")):
        option, _, value = part.partition("=")
        if option not in options:
            known = ", ".join(options) or "no options"
            raise ValueError(f"the lr_schedule {name} takes {known}, got {option!r}")
        try:
            options[option] = parse_value(value, float)
        except ValueError as rule:
            raise ValueError(f"{option} of the lr_schedule {name} must be {rule}, got {value!r}") from None
        if _SHARE.broken_by(options[option]):
            raise ValueError(f"{option} of the lr_schedule {name} must be {_SHARE}, got {value}")
    return name, options


def problem(text: object, epochs: float | None) -> str | None:
    """Say what is wrong with a schedule in a run of some epochs; None if nothing is."""
    if not isinstance(text, str):
        return f"lr_schedule must be a text, got {text!r}"
    try:
        name, _ = parse(text)
    except ValueError as error:
        return str(error)
    if name == "exponential" and epochs is None:
        return "the lr_schedule exponential decays after every epoch: set epochs, and also steps for a shorter run"
    return None


def lr_factor(text: str, steps: int, epochs: float | None) -> Callable[[int], float] | None:
    """Return the factor of the learning rate after a number of updates; None if other code changes it, or none.

    Args:
        text: A valid schedule.
        steps: Optimizer steps of the run.
        epochs: Epochs of the run, into which the steps are divided.
    """
    name, options = parse(text)
    if name == "step":
        return StepFactor(options["at"] * steps, options["gamma"])
    if name == "exponential":
        assert epochs is not None
        return ExponentialFactor(options["gamma"], epochs, steps)
    return None


# Objects, not lambdas, so that a scheduler's state dict has their settings.


@dataclass
class StepFactor:
    """1 before update `start`, then `gamma`."""

    start: float
    gamma: float

    def __call__(self, updates: int) -> float:
        """Return the factor after some updates."""
        return 1.0 if updates < self.start else self.gamma


@dataclass
class ExponentialFactor:
    """`gamma` to the number of complete epochs.

    >>> factor = ExponentialFactor(0.5, epochs=3, steps=10)
    >>> [factor(updates) for updates in range(10)]
    [1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25]
    """

    gamma: float
    epochs: float
    steps: int

    def __call__(self, updates: int) -> float:
        """Return the factor after some updates."""
        return float(self.gamma ** (updates * self.epochs // self.steps))


def cycle_steps(steps: int) -> int:
    """Return the steps in one cycle of a cyclic learning rate: 2 % of all."""
    return max(1, steps // 50)


@dataclass
class Cycle:
    """The rate falls linearly from its value to `low` times it in every cycle of updates, after update `start`.

    Izmailov et al. (2018): lr(i) = (1 - t) lr + t low lr with t = ((i - 1) mod cycle + 1) / cycle, so that an SWA whose
    interval is the cycle takes the weights at the lowest rate. The SWAD paper uses a cycle of 2 % of training and gives
    no bounds; 1/20 is our choice.

    >>> [round(Cycle(cycle=4, low=0.2, start=1)(step), 3) for step in range(6)]
    [1.0, 0.8, 0.6, 0.4, 0.2, 0.8]
    """

    cycle: int
    low: float
    start: int

    def __call__(self, step: int) -> float:
        """Return the factor of the update after `step` updates."""
        if step < self.start:
            return 1.0
        return 1.0 + (self.low - 1.0) * ((step - self.start) % self.cycle + 1) / self.cycle


class WarmupDecay:
    """The factor of the learning rate in a training from scratch: a linear warm-up, then a polynomial decay to `low`.

    The rate stays at `low` after the last update of the decay; with `cycle` it continues in the cycles of `Cycle`.

    >>> decay = WarmupDecay(warmup=2, end=6, low=0.0)
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
        return self.low if self.cycle is None else self.low * Cycle(self.cycle, LOWEST, self.end)(step)
