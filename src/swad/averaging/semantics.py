"""The three definitions of a loss valley, each as a rule that sees losses and answers with recipes.

A recipe says how the kept pieces (sums of weights over stretches of the trajectory) follow from those kept
before: a loss that comes later decides whether weights seen now are averaged, so they must be kept apart until
it is known. What may be merged early, and why that is exact, is the subject of this file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

Semantics = Literal["paper", "text", "reference"]
Nonfinite = Literal["raise", "skip"]

Mix = dict[str, float]
"""A sum of weighted sources, by name."""

# The sources of a mix that are not pieces. All speak of the moment of the evaluation.
LIVE = "live"  # the weights just evaluated
OPEN = "open"  # the sum of the updates seen since the last piece was closed
MEAN = "mean"  # the same, divided by their number


class Phase(StrEnum):
    """Where a trajectory is in its valley."""

    SEARCHING = "searching"  # the loss may still improve: no start is confirmed
    AVERAGING = "averaging"  # the start is confirmed, the end is not
    STOPPED = "stopped"  # overfitted: nothing later is averaged


@dataclass(frozen=True)
class Recipe:
    """How the kept pieces follow from the pieces before, the open segment and the live weights.

    `pieces` names every piece to keep and what it is the sum of; whatever it does not name is let go.
    `open` is what the open segment starts from: nothing, or itself where the segment simply goes on.
    """

    pieces: Mapping[str, Mix] = field(default_factory=dict)
    open: Mix = field(default_factory=dict)


KEEP_OPEN: Mix = {OPEN: 1.0}


class Rule:
    """One definition of the valley: sees losses, answers with recipes."""

    def __init__(self, n_converge: int, n_tolerance: float, r: float) -> None:
        self.N_s, self.N_e, self.r = n_converge, n_tolerance, r
        self.phase = Phase.SEARCHING
        self.reason = ""
        self.threshold: float | None = None
        self.run = 0  # exceedances in a row, up to now
        self.evaluations = 0

    def see(self, loss: float) -> Recipe:
        """Take the loss of the next evaluation and say what to keep."""
        raise NotImplementedError

    def result(self) -> Mix:
        """The average as if training ended now."""
        raise NotImplementedError

    def max_buffers(self) -> int:
        """Pieces kept at worst, the open segment included (one more where a loss meets a bound to the last digit)."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """All that changes, as plain values."""
        fixed = {"N_s", "N_e", "r"}
        return {k: list(v) if isinstance(v, list) else v for k, v in vars(self).items() if k not in fixed} | {
            "phase": str(self.phase)
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Take what `state` gave."""
        for key, value in state.items():
            setattr(self, key, list(value) if isinstance(value, list) else value)
        self.phase = Phase(self.phase)

    def _say_searching(self, held: int, floor: float) -> None:
        if held == 1:
            self.reason = f"new lowest loss {floor:.4g}; must stay the lowest for {self.N_s} evaluations"
        else:
            self.reason = f"loss {floor:.4g} is the lowest for {held} of {self.N_s} evaluations"

    def _say_averaging(self) -> None:
        above = f"{self.run} of {self.N_e} evaluations in a row above" if self.run else "below"
        self.reason = f"{above} the threshold {self.threshold:.4g}"

    def _stop(self) -> None:
        self.phase = Phase.STOPPED
        self.reason = f"{self.N_e} evaluations in a row above the threshold {self.threshold:.4g}: overfitted"


class _FloorRule(Rule):
    """What `paper` and `text` share: the window opens at the floor's very update and weighs every update once.

    The candidate for the floor is the running strict minimum, so one candidate suffices. Piece `start` begins
    with its weights; a lower loss drops everything kept and begins anew.
    """

    def __init__(self, n_converge: int, n_tolerance: float, r: float) -> None:
        super().__init__(n_converge, n_tolerance, r)
        self.window: list[float] = []  # losses since the candidate, itself first, up to confirmation
        self.kept: list[str] = []  # names of the pieces that hold the window, in order

    def see(self, loss: float) -> Recipe:
        self.evaluations += 1
        if self.phase is Phase.AVERAGING:
            return self._watch(loss)
        if not self.window or loss < self.window[0]:
            self.window, self.kept, self.run = [loss], ["start"], 0
            recipe = self._candidate()
        else:
            self.window.append(loss)
            recipe = self._hold(loss)
        if len(self.window) == self.N_s:
            self.phase = Phase.AVERAGING
            # The end is checked only from the next evaluation on: a longer run reaches no further back.
            self.run = int(min(self.run, self.N_e - 1))
            self._say_averaging()
            return recipe
        self._say_searching(len(self.window), self.window[0])
        return recipe

    def result(self) -> Mix:
        if self.phase is Phase.STOPPED:
            return {"start": 1.0}
        return {**dict.fromkeys(self.kept, 1.0), OPEN: 1.0}

    def _candidate(self) -> Recipe:
        return Recipe({"start": {LIVE: 1.0}})

    def _hold(self, loss: float) -> Recipe:
        """The candidate stays the lowest: what must be kept apart until the threshold is known?"""
        raise NotImplementedError

    def _watch(self, loss: float) -> Recipe:
        """The threshold is known: commit the open segment, leave it open, or stop."""
        assert self.threshold is not None
        self.run = self.run + 1 if loss > self.threshold else 0
        recipe = self._commit() if self._surely_inside(self.run) else Recipe({"start": {"start": 1.0}}, KEEP_OPEN)
        if self.run >= self.N_e:
            self._stop()
            return Recipe(recipe.pieces)
        self._say_averaging()
        return recipe

    def _surely_inside(self, run: int) -> bool:
        """Whatever comes, the segment that ends at an evaluation `run` exceedances deep is averaged."""
        return run == 0

    def _commit(self) -> Recipe:
        everything: Mix = {**dict.fromkeys(self.kept, 1.0), OPEN: 1.0}
        self.kept = ["start"]
        return Recipe({"start": everything})


class _Paper(_FloorRule):
    """Algorithm 1: the threshold is r times the mean over the confirmation window, known only at its end.

    Until then an evaluation may or may not turn out to exceed it, and a run of exceedances ends the average
    *before* its first one. So pieces stay split at every evaluation j at which a run could still begin.
    Such a run must last through the whole window, so with S the sum of the losses seen and m losses to come,
    all above l = r/N_s * (S + theirs): l > r S / (N_s - r m). An evaluation at or below that bound ends every
    run through it, and the pieces up to it are one. At the paper's settings a third buffer is needed only if
    the evaluation after the floor is above 3.25 times its loss.
    """

    def _candidate(self) -> Recipe:
        if self.N_s == 1:
            self.threshold = self.r * self.window[0]
        return super()._candidate()

    def _hold(self, loss: float) -> Recipe:
        now = len(self.window) - 1
        confirmed = len(self.window) == self.N_s
        # Piece `j` holds the updates after the window's evaluation j; the newest begins at the evaluation before.
        starts = [0 if name == "start" else int(name) for name in self.kept]
        pieces = {**dict(zip(self.kept, starts, strict=True)), OPEN: now - 1}
        if confirmed:
            mean = sum(self.window) / self.N_s
            self.threshold = max(self.r * mean, self.window[0])  # rounding must not put the floor above it
            inside = [k for k, value in enumerate(self.window) if value <= self.threshold]
            # The end is checked only from the next evaluation on, so a run of more than N_e reaches no further back.
            end = max(inside[-1], self.N_s - self.N_e)
            self.run = int(now - end)
            pending = [name for name, start in pieces.items() if name != "start" and start >= end]
            committed = {name: 1.0 for name in pieces if name not in pending}
            self.kept = ["start"]
            return Recipe({"start": committed}, dict.fromkeys(pending, 1.0))

        recipe: dict[str, Mix] = {"start": {"start": 1.0}}
        self.kept = ["start"]
        for name, start in pieces.items():
            if name == "start":
                continue
            if self._may_end_at(start):
                self.kept.append(str(start))
                recipe[str(start)] = {}
            recipe[self.kept[-1]][name] = 1.0
        return Recipe(recipe)

    def _may_end_at(self, j: int) -> bool:
        """Could the average end at the window's evaluation j, given the losses seen?"""
        if j < self.N_s - self.N_e or self.N_e == math.inf:
            return False
        room = self.N_s - self.r * (self.N_s - len(self.window))
        # The slack keeps a piece too many rather than one too few when a loss meets the bound but for rounding.
        return room > 0 and min(self.window[j + 1 :]) > self.r * sum(self.window) / room * (1 - 1e-9)

    def max_buffers(self) -> int:
        splits = min(self.N_s - 1, self.N_e - 1, math.ceil(self.N_s / self.r) - 1)
        return int(max(2, 1 + splits))


class _Text(_FloorRule):
    """Section 3.2: the threshold is r times the floor's loss, and the first exceedance of the run is averaged."""

    def _candidate(self) -> Recipe:
        self.threshold = self.r * self.window[0]
        return super()._candidate()

    def _hold(self, loss: float) -> Recipe:
        assert self.threshold is not None
        self.run = self.run + 1 if loss > self.threshold else 0
        now = len(self.window) - 1
        # Checked only after the window, a run of more than N_e begins no earlier than its last N_e evaluations.
        if self._surely_inside(self.run) or now <= self.N_s - self.N_e + 1:
            return self._commit()
        return Recipe({"start": {"start": 1.0}}, KEEP_OPEN)

    def _surely_inside(self, run: int) -> bool:
        return run <= 1

    def max_buffers(self) -> int:
        return 2


class _Reference(Rule):
    """The published code's arithmetic, with its double counts, on whole segments of equal weight.

    A segment is all updates since the previous evaluation. Confirmation looks back over a queue of N_e
    segments; afterwards each is added when it reaches the queue's front at or after the floor. Once the queue
    is full and its front has reached the floor, everything up to the last loss below the threshold is sure to
    be added, and the queue becomes two pieces: `final` and `pending`.
    """

    def __init__(self, n_converge: int, n_tolerance: float, r: float) -> None:
        super().__init__(n_converge, n_tolerance, r)
        self.first = 0  # evaluation at the front of the queue
        self.losses: list[float] = []  # of the queued segments
        self.floor = -1  # c
        self.has_final = False
        self.settled = False
        self.pending = False

    def see(self, loss: float) -> Recipe:
        now = self.evaluations
        self.evaluations += 1
        self.losses.append(loss)
        segments: dict[str, Mix] = {f"segment{k}": {f"segment{k}": 1.0} for k in range(self.first, now)}
        segments[f"segment{now}"] = {MEAN: 1.0}
        if self.settled:
            return self._watch(loss)
        if self.threshold is None:
            self._trim(int(max(self.N_s, self.N_e)), segments)
            window = self.losses[-self.N_s :]
            if len(window) < self.N_s or window[0] > min(window):
                floor = self.losses.index(min(self.losses[-self.N_s :]), max(0, len(self.losses) - self.N_s))
                self._say_searching(len(self.losses) - floor, self.losses[floor])
                return Recipe(segments)
            return self._confirm(now, segments)
        self._trim(int(self.N_e), segments)
        if self.first >= self.floor:  # never dead here: the floor itself is still queued
            front = segments[f"segment{self.first}"]
            segments["final"] = {**({"final": 1.0} if self.has_final else {}), **front}
            self.has_final = True
        elif self.has_final:
            segments["final"] = {"final": 1.0}
        self.run = self.run + 1 if loss > self.threshold else 0
        self._say_averaging()
        return self._settle(segments)

    def _confirm(self, now: int, segments: dict[str, Mix]) -> Recipe:
        N_s, N_e = self.N_s, int(self.N_e)
        window = self.losses[-N_s:]
        self.floor = now - N_s + 1
        mean = sum(window) / N_s
        self.threshold = max(self.r * mean, window[0])
        self.phase = Phase.AVERAGING
        self.run = next((k for k, value in enumerate(reversed(window)) if value <= self.threshold), N_s)
        chosen: list[int] = []
        if N_e < N_s:
            chosen = list(range(self.floor + 1, self.floor + 1 + N_s - N_e))
        elif N_e > N_s:
            back = list(range(self.first, now + 1))[: N_e - N_s + 1]
            above = [k for k in back if self.losses[k - self.first] > self.threshold]
            chosen = [k for k in back if k > (above[-1] + 1 if above else back[0])]
        if chosen:
            final: Mix = {}
            for k in chosen:
                final.update(segments[f"segment{k}"])
            segments["final"] = final
            self.has_final = True
        elif N_e <= N_s:  # an average without an update yet is the floor's segment, until the first overwrites it
            segments["floor"] = segments[f"segment{self.floor}"]
        self._trim(N_e, segments)
        self._say_averaging()
        return self._settle(segments)

    def _settle(self, segments: dict[str, Mix]) -> Recipe:
        if self.first < self.floor or len(self.losses) < self.N_e:
            return Recipe(segments)
        sure = max(len(self.losses) - self.run, 0)  # queued segments up to the last loss below the threshold
        names = [f"segment{k}" for k in range(self.first, self.evaluations)]
        pieces: dict[str, Mix] = {}
        parts = [segments["final"]] if self.has_final else []
        parts += [segments[name] for name in names[1:sure]]  # the front is in `final` already
        if parts:
            pieces["final"] = _sum(parts)
            self.has_final = True
        else:
            pieces["floor"] = segments["floor"]
        waiting = names[max(sure, 1) :]
        self.pending = bool(waiting)
        if waiting:
            pieces["pending"] = _sum([segments[name] for name in waiting])
        self.settled, self.losses = True, []
        return Recipe(pieces)

    def _watch(self, loss: float) -> Recipe:
        assert self.threshold is not None
        self.losses = []
        self.run = self.run + 1 if loss > self.threshold else 0
        final: Mix = {"final": 1.0} if self.has_final else {}
        kept: dict[str, Mix] = {"final": final} if self.has_final else {"floor": {"floor": 1.0}}
        if self.run >= self.N_e:
            self._stop()
            self.pending = False
            return Recipe(kept)
        self._say_averaging()
        waiting: Mix = {**({"pending": 1.0} if self.pending else {}), MEAN: 1.0}
        if self.run:
            self.pending = True
            return Recipe({**kept, "pending": waiting})
        self.pending, self.has_final = False, True
        return Recipe({"final": {**final, **waiting}})

    def result(self) -> Mix:
        if not self.evaluations:
            return {OPEN: 1.0}
        if self.threshold is None:
            return {f"segment{self.evaluations - 1}": 1.0}
        mix: Mix = {"final": 1.0} if self.has_final else {}
        if not self.settled:
            sure = len(self.losses) - self.run
            mix.update({f"segment{self.first + k}": 1.0 for k in range(1, sure)})
        return mix or {"floor" if self.settled else f"segment{self.floor}": 1.0}

    def _trim(self, length: int, segments: dict[str, Mix]) -> None:
        while len(self.losses) > length:
            self.losses.pop(0)
            del segments[f"segment{self.first}"]
            self.first += 1

    def max_buffers(self) -> int:
        return int(max(self.N_s, self.N_e)) + 2


RULES: dict[Semantics, type[Rule]] = {"paper": _Paper, "text": _Text, "reference": _Reference}


def _sum(mixes: Iterable[Mix]) -> Mix:
    total: Mix = {}
    for mix in mixes:
        for name, weight in mix.items():
            total[name] = total.get(name, 0.0) + weight
    return total
