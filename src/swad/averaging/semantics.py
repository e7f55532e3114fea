"""What the three definitions of a loss valley have in common: rules that turn losses into plans for sums of weights.

**A worked example.** Ten updates between evaluations, N_s = 2, N_e = 3, r = 1.5 (`swad.averaging.valley` has the
definitions). The loss is lowest at update 30, and stays lowest for N_s evaluations at update 40.

    update       10    20    30    40    50    60    70    80    90    100
    loss         4.0   1.5   1.0   1.2   1.4   1.7   1.6   1.9   2.0   2.1
    > 1.65                                     yes         yes   yes   yes     paper, reference: 1.5 * mean(1.0, 1.2)
    > 1.5                                      yes   yes   yes                 text: 1.5 * 1.0

>>> from swad.averaging.valley import LossValley
>>> losses = [4.0, 1.5, 1.0, 1.2, 1.4, 1.7, 1.6, 1.9, 2.0, 2.1]
>>> for semantics in ("paper", "text", "reference"):
...     valley = LossValley(n_converge=2, n_tolerance=3, tolerance_ratio=0.5, semantics=semantics)
...     for step, loss in zip(range(10, 101, 10), losses):
...         status = valley.observe(loss, step)
...         if status.should_stop:
...             break
...     spans = ", ".join(map(str, status.spans))
...     print(f"{semantics:9}  l = {status.threshold:.2f}  averages {spans}; stops at {step}")
paper      l = 1.65  averages 30-70; stops at 100
text       l = 1.50  averages 30-60; stops at 80
reference  l = 1.65  averages 21-30 x2, 31-70; stops at 100

`paper` ends at the last evaluation before the three exceedances (70), `text` at the first of its three (60).
`reference` counts whole segments, so it begins at update 21, and it counts the segment of the lowest loss twice.

**Which sums must be kept apart.** A later loss decides whether the weights of now are averaged, so they cannot always
join the average at once. After each evaluation a rule returns a `KeepPlan`: which sums to keep, and which of the sums
kept before each consists of. `_candidate_rules` has the rules of `paper` and `text`, `_reference_rule` that of the
published code; their comments show where sums may be merged early and why that is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

Semantics = Literal["paper", "text", "reference"]
Nonfinite = Literal["raise", "skip"]

Terms = dict[str, float]
"""A linear combination: the factor of each term, by name. A term is a kept sum or one of the following."""

LIVE = "live"  # the weights just evaluated
OPEN = "open"  # the sum of the weights since the open segment began
MEAN = "mean"  # the same, divided by their number


class Phase(StrEnum):
    """Where a trajectory is in its valley.

    - searching: the loss may still improve, so no start is confirmed.
    - averaging: the start is confirmed, the end is not.
    - stopped: the model overfits, and no later update is averaged.
    """

    SEARCHING = "searching"
    AVERAGING = "averaging"
    STOPPED = "stopped"


@dataclass(frozen=True)
class KeepPlan:
    """Which sums to keep after an evaluation, in terms of the sums kept before.

    Args:
        sums: The terms of every sum to keep. A sum that is not named is dropped.
        open: The terms that the open segment starts from: none, or `OPEN` itself where the segment continues.
    """

    sums: Mapping[str, Terms] = field(default_factory=dict)
    open: Terms = field(default_factory=dict)


def unchanged(names: Iterable[str], continue_open: bool) -> KeepPlan:
    """Keep the named sums as they are, and continue the open segment or drop it."""
    return KeepPlan({name: {name: 1.0} for name in names}, {OPEN: 1.0} if continue_open else {})


class Rule:
    """One definition of the valley. It observes losses and returns plans; it never sees a tensor."""

    def __init__(self, n_converge: int, n_tolerance: float, r: float) -> None:
        self.N_s, self.N_e, self.r = n_converge, n_tolerance, r
        self.phase = Phase.SEARCHING
        self.reason = "no evaluation yet"
        self.threshold: float | None = None
        self.run = 0  # exceedances in a row, up to the last evaluation
        self.evaluations = 0

    def observe(self, loss: float) -> KeepPlan:
        """Take the loss of the next evaluation and return which sums to keep."""
        raise NotImplementedError

    def result(self) -> list[str]:
        """Return the names of the sums that are the average if training ends now."""
        raise NotImplementedError

    def max_buffers(self) -> int:
        """Return how many sums are kept at worst, the open segment included.

        One more may be needed where a loss meets a bound to the last digit.
        """
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """Return everything that changes, as plain values."""
        fixed = {"N_s", "N_e", "r"}
        return {k: list(v) if isinstance(v, list) else v for k, v in vars(self).items() if k not in fixed} | {
            "phase": str(self.phase)
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        for key, value in state.items():
            setattr(self, key, list(value) if isinstance(value, list) else value)
        self.phase = Phase(self.phase)

    def _count_exceedances(self, loss: float) -> None:
        assert self.threshold is not None
        self.run = self.run + 1 if loss > self.threshold else 0

    def _set_reason_searching(self, evaluations: int, lowest: float) -> None:
        """Say for how many evaluations the lowest loss has been the lowest."""
        if evaluations == 1:
            self.reason = f"new lowest loss {lowest:.4g}; must stay the lowest for {self.N_s} evaluations"
        else:
            self.reason = f"loss {lowest:.4g} is the lowest for {evaluations} of {self.N_s} evaluations"

    def _set_reason_averaging(self) -> None:
        above = f"{self.run} of {self.N_e} evaluations in a row above" if self.run else "below"
        self.reason = f"{above} the threshold {self.threshold:.4g}"

    def _stop(self) -> None:
        self.phase = Phase.STOPPED
        self.reason = f"{self.N_e} evaluations in a row above the threshold {self.threshold:.4g}: overfitted"
