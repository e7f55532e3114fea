"""Learning rate schedules by name, as in `--lr-schedule step:at=0.6,gamma=0.1`.

    constant                    the learning rate of the hyperparameters
    cyclic                      SWA's: over the last 20 % it decays to a twentieth in cycles of 2 %
    step:at=0.6,gamma=0.1       times gamma after a share of the steps
    exponential:gamma=0.99      times gamma after every epoch; needs `epochs`
    decay                       down to zero, in the imagenet recipe (see `swad.testbed.training.recipe`)

A schedule multiplies the learning rate of every parameter group, so that groups keep their ratios.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from swad.util.names import choice_problem

SCHEDULES: Mapping[str, Mapping[str, float]] = {
    "constant": {},
    "cyclic": {},
    "step": {"at": 0.6, "gamma": 0.1},
    "exponential": {"gamma": 0.99},
    "decay": {},
}
"""The options of every schedule, with their defaults."""


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
            options[option] = float(value)
        except ValueError:
            raise ValueError(f"{option} of the lr_schedule {name} must be a number, got {value!r}") from None
        if not 0 <= options[option] <= 1:
            raise ValueError(f"{option} of the lr_schedule {name} must be from 0 to 1, got {value}")
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
