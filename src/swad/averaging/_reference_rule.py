"""The published code's definition of the valley (`reference`)."""

from __future__ import annotations

from collections.abc import Iterable

from swad.averaging.semantics import MEAN, OPEN, KeepPlan, Phase, Rule, Terms


class Reference(Rule):
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


def _add(combinations: Iterable[Terms]) -> Terms:
    total: Terms = {}
    for terms in combinations:
        for name, factor in terms.items():
            total[name] = total.get(name, 0.0) + factor
    return total
