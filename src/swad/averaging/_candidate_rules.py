"""The paper's two definitions of the valley: Algorithm 1 (`paper`) and section 3.2 (`text`)."""

from __future__ import annotations

import math
from collections.abc import Mapping

from swad.averaging.semantics import LIVE, OPEN, KeepPlan, Phase, Rule, Terms, unchanged


class CandidateRule(Rule):
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


class Paper(CandidateRule):
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


class Text(CandidateRule):
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
