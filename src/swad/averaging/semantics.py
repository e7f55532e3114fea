"""The three definitions of a loss valley, as rules that turn losses into decisions about sums of weights.

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
kept before each consists of. The comments in this file show where sums may be merged early and why that is exact.
"""

from __future__ import annotations

import math
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


CONTINUE_OPEN: Terms = {OPEN: 1.0}


def unchanged(names: Iterable[str], continue_open: bool) -> KeepPlan:
    """Keep the named sums as they are, and continue the open segment or drop it."""
    return KeepPlan({name: {name: 1.0} for name in names}, CONTINUE_OPEN if continue_open else {})


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


class _CandidateRule(Rule):
    """The common part of `paper` and `text`: the average begins at one update, and every update counts once.

    The candidate for the start is the evaluation with the lowest loss so far, so one candidate suffices. The sum
    `start` begins with its weights; a lower loss drops every sum and makes a new candidate.
    """

    def __init__(self, n_converge: int, n_tolerance: float, r: float) -> None:
        super().__init__(n_converge, n_tolerance, r)
        self.window: list[float] = []  # losses from the candidate's on, until it is confirmed
        self.kept: list[str] = []  # names of the sums of the window's weights, in order

    def observe(self, loss: float) -> KeepPlan:
        self.evaluations += 1
        if self.phase is Phase.AVERAGING:
            return self._observe_averaging(loss)
        if not self.window or loss < self.window[0]:
            self.window, self.kept, self.run = [loss], ["start"], 0
            plan = self._new_candidate()
        else:
            self.window.append(loss)
            plan = self._extend_window(loss)
        if len(self.window) == self.N_s:
            self.phase = Phase.AVERAGING
            # The end is checked only from the next evaluation on, so a longer run reaches no further back.
            self.run = int(min(self.run, self.N_e - 1))
            self._set_reason_averaging()
        else:
            self._set_reason_searching(len(self.window), self.window[0])
        return plan

    def result(self) -> list[str]:
        return ["start"] if self.phase is Phase.STOPPED else [*self.kept, OPEN]

    def _new_candidate(self) -> KeepPlan:
        return KeepPlan({"start": {LIVE: 1.0}})

    def _extend_window(self, loss: float) -> KeepPlan:
        """Plan for a candidate that is still the lowest: keep apart what the threshold will decide."""
        raise NotImplementedError

    def _observe_averaging(self, loss: float) -> KeepPlan:
        """Plan for a known threshold: commit the open segment, leave it open, or stop."""
        self._count_exceedances(loss)
        plan = self._commit() if self._is_inside(self.run) else unchanged(["start"], continue_open=True)
        if self.run >= self.N_e:
            self._stop()
            return KeepPlan(plan.sums)
        self._set_reason_averaging()
        return plan

    def _is_inside(self, run: int) -> bool:
        """Whether a segment that ends with `run` exceedances in a row is averaged whatever comes later."""
        return run == 0

    def _commit(self) -> KeepPlan:
        terms: Terms = {**dict.fromkeys(self.kept, 1.0), OPEN: 1.0}
        self.kept = ["start"]
        return KeepPlan({"start": terms})


class _Paper(_CandidateRule):
    """Algorithm 1: the threshold is r times the mean over the confirmation window, known only at its end.

    Until then any evaluation may turn out to exceed it, and a run of exceedances ends the average *before* its first
    one. So the sums stay split at every evaluation j after which such a run could still begin. The run must last
    through the whole window. With S the sum of the losses so far and m losses to come, all of them above
    l = r / N_s * (S + sum of the m losses), it follows that l > r S / (N_s - r m). An evaluation at or below this
    bound ends every run through it, and the sums up to it can be merged. At the paper's settings a third buffer is
    needed only if the evaluation after the candidate is above 3.25 times its loss.
    """

    def _new_candidate(self) -> KeepPlan:
        if self.N_s == 1:
            self.threshold = self.r * self.window[0]
        return super()._new_candidate()

    def _extend_window(self, loss: float) -> KeepPlan:
        now = len(self.window) - 1
        # The evaluation of the window after which each sum begins; its number is the sum's name.
        begins = {name: 0 if name == "start" else int(name) for name in self.kept} | {OPEN: now - 1}
        if len(self.window) == self.N_s:
            return self._confirm(now, begins)
        sums: dict[str, Terms] = {"start": {"start": 1.0}}
        self.kept = ["start"]
        for name, begin in begins.items():
            if name == "start":
                continue
            if self._may_end_at(begin):
                self.kept.append(str(begin))
                sums[str(begin)] = {}
            sums[self.kept[-1]][name] = 1.0
        return KeepPlan(sums)

    def _confirm(self, now: int, begins: Mapping[str, int]) -> KeepPlan:
        mean = sum(self.window) / self.N_s
        self.threshold = max(self.r * mean, self.window[0])  # rounding must not put the candidate above it
        inside = [k for k, loss in enumerate(self.window) if loss <= self.threshold]
        # The end is checked only from the next evaluation on, so a run of more than N_e reaches no further back.
        end = max(inside[-1], self.N_s - self.N_e)
        self.run = int(now - end)
        pending = [name for name, begin in begins.items() if name != "start" and begin >= end]
        committed = {name: 1.0 for name in begins if name not in pending}
        self.kept = ["start"]
        return KeepPlan({"start": committed}, dict.fromkeys(pending, 1.0))

    def _may_end_at(self, j: int) -> bool:
        """Whether the average could end at the window's evaluation j, given the losses so far."""
        if j < self.N_s - self.N_e or self.N_e == math.inf:
            return False
        room = self.N_s - self.r * (self.N_s - len(self.window))
        # Where a loss meets the bound but for rounding, the slack keeps one sum too many rather than one too few.
        return room > 0 and min(self.window[j + 1 :]) > self.r * sum(self.window) / room * (1 - 1e-9)

    def max_buffers(self) -> int:
        splits = min(self.N_s - 1, self.N_e - 1, math.ceil(self.N_s / self.r) - 1)
        return int(max(2, 1 + splits))


class _Text(_CandidateRule):
    """Section 3.2: the threshold is r times the candidate's loss, and the first exceedance of the run is averaged."""

    def _new_candidate(self) -> KeepPlan:
        self.threshold = self.r * self.window[0]
        return super()._new_candidate()

    def _extend_window(self, loss: float) -> KeepPlan:
        self._count_exceedances(loss)
        now = len(self.window) - 1
        # The end is checked only after the window, so a run of more than N_e counts its last N_e evaluations.
        if self._is_inside(self.run) or now <= self.N_s - self.N_e + 1:
            return self._commit()
        return unchanged(["start"], continue_open=True)

    def _is_inside(self, run: int) -> bool:
        return run <= 1

    def max_buffers(self) -> int:
        return 2


class _Reference(Rule):
    """The published code's arithmetic, with its double counts, on whole segments of equal weight.

    A segment is all updates since the previous evaluation. Confirmation looks back over a queue of N_e segments;
    afterwards each segment is added when it reaches the front of the queue at or after the segment of the lowest loss
    (`lowest`). Once the queue is full and its front has reached that segment, everything up to the last loss below the
    threshold is sure to be added, and two sums replace the queue: `final` and `pending`.
    """

    def __init__(self, n_converge: int, n_tolerance: float, r: float) -> None:
        super().__init__(n_converge, n_tolerance, r)
        self.first = 0  # evaluation at the front of the queue
        self.losses: list[float] = []  # of the queued segments
        self.lowest = -1  # evaluation of the lowest loss, c in the definitions
        self.has_final = False
        self.settled = False  # two sums have replaced the queue
        self.pending = False  # there is a sum `pending`

    def observe(self, loss: float) -> KeepPlan:
        now = self.evaluations
        self.evaluations += 1
        if self.settled:
            return self._observe_settled(loss)
        self.losses.append(loss)
        sums: dict[str, Terms] = {f"segment{k}": {f"segment{k}": 1.0} for k in range(self.first, now)}
        sums[f"segment{now}"] = {MEAN: 1.0}
        if self.threshold is None:
            return self._observe_searching(now, sums)
        self._trim(int(self.N_e), sums)
        if self.first >= self.lowest:  # the queue cannot all exceed here: it still holds the lowest loss
            front = sums[f"segment{self.first}"]
            sums["final"] = {**({"final": 1.0} if self.has_final else {}), **front}
            self.has_final = True
        elif self.has_final:
            sums["final"] = {"final": 1.0}
        self._count_exceedances(loss)
        self._set_reason_averaging()
        return self._settle(sums)

    def _observe_searching(self, now: int, sums: dict[str, Terms]) -> KeepPlan:
        self._trim(int(max(self.N_s, self.N_e)), sums)
        window = self.losses[-self.N_s :]
        if len(window) == self.N_s and window[0] <= min(window):
            return self._confirm(now, sums)
        lowest = self.losses.index(min(window), max(0, len(self.losses) - self.N_s))
        self._set_reason_searching(len(self.losses) - lowest, self.losses[lowest])
        return KeepPlan(sums)

    def _confirm(self, now: int, sums: dict[str, Terms]) -> KeepPlan:
        N_s, N_e = self.N_s, int(self.N_e)
        window = self.losses[-N_s:]
        self.lowest = now - N_s + 1
        mean = sum(window) / N_s
        self.threshold = max(self.r * mean, window[0])
        self.phase = Phase.AVERAGING
        self.run = next((k for k, loss in enumerate(reversed(window)) if loss <= self.threshold), N_s)
        chosen: list[int] = []
        if N_e < N_s:
            chosen = list(range(self.lowest + 1, self.lowest + 1 + N_s - N_e))
        elif N_e > N_s:
            back = list(range(self.first, now + 1))[: N_e - N_s + 1]
            above = [k for k in back if self.losses[k - self.first] > self.threshold]
            chosen = [k for k in back if k > (above[-1] + 1 if above else back[0])]
        if chosen:
            sums["final"] = _add(sums[f"segment{k}"] for k in chosen)
            self.has_final = True
        elif N_e <= N_s:  # the average is this segment until its first update overwrites it, as published
            sums["lowest"] = sums[f"segment{self.lowest}"]
        self._trim(N_e, sums)
        self._set_reason_averaging()
        return self._settle(sums)

    def _settle(self, sums: dict[str, Terms]) -> KeepPlan:
        """Replace the queue by two sums, once its front has reached the lowest loss."""
        if self.first < self.lowest or len(self.losses) < self.N_e:
            return KeepPlan(sums)
        inside = max(len(self.losses) - self.run, 0)  # queued segments up to the last loss below the threshold
        queue = [f"segment{k}" for k in range(self.first, self.evaluations)]
        settled: dict[str, Terms] = {}
        final = [sums["final"]] if self.has_final else []
        final += [sums[name] for name in queue[1:inside]]  # `final` contains the front already
        if final:
            settled["final"] = _add(final)
            self.has_final = True
        else:
            settled["lowest"] = sums["lowest"]
        waiting = queue[max(inside, 1) :]
        self.pending = bool(waiting)
        if waiting:
            settled["pending"] = _add(sums[name] for name in waiting)
        self.settled, self.losses = True, []
        return KeepPlan(settled)

    def _observe_settled(self, loss: float) -> KeepPlan:
        self._count_exceedances(loss)
        final: Terms = {"final": 1.0} if self.has_final else {}
        kept: dict[str, Terms] = {"final": final} if self.has_final else {"lowest": {"lowest": 1.0}}
        if self.run >= self.N_e:
            self._stop()
            self.pending = False
            return KeepPlan(kept)
        self._set_reason_averaging()
        waiting: Terms = {**({"pending": 1.0} if self.pending else {}), MEAN: 1.0}
        if self.run:
            self.pending = True
            return KeepPlan({**kept, "pending": waiting})
        self.pending, self.has_final = False, True
        return KeepPlan({"final": {**final, **waiting}})

    def result(self) -> list[str]:
        if not self.evaluations:
            return [OPEN]
        if self.threshold is None:
            return [f"segment{self.evaluations - 1}"]
        names = ["final"] if self.has_final else []
        if not self.settled:
            names += [f"segment{self.first + k}" for k in range(1, len(self.losses) - self.run)]
        return names or ["lowest" if self.settled else f"segment{self.lowest}"]

    def _trim(self, length: int, sums: dict[str, Terms]) -> None:
        """Drop segments from the front of the queue until it has the given length."""
        while len(self.losses) > length:
            self.losses.pop(0)
            del sums[f"segment{self.first}"]
            self.first += 1

    def max_buffers(self) -> int:
        return int(max(self.N_s, self.N_e)) + 2


RULES: dict[Semantics, type[Rule]] = {"paper": _Paper, "text": _Text, "reference": _Reference}


def _add(combinations: Iterable[Terms]) -> Terms:
    total: Terms = {}
    for terms in combinations:
        for name, factor in terms.items():
            total[name] = total.get(name, 0.0) + factor
    return total
