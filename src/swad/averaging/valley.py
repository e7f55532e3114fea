"""Where a loss valley begins and ends: validation losses in, a decision out, no tensors.

SWAD averages every weight between the evaluation at which the validation loss stops improving and the one
at which it starts to overfit. `LossValley` finds the two from the losses alone. Three definitions of "the
two" are in circulation; with L[k] the loss at evaluation k, taken after update u_k, and r = 1 + tolerance_ratio:

========== ========================================= ================================================
semantics  threshold l                               averaged updates
========== ========================================= ================================================
paper      r * mean(L[c..c+N_s-1])                   u_c .. the last evaluation *before* N_e exceedances
text       r * L[c]                                  u_c .. the *first* of those N_e exceedances
reference  r * mean(L[c..c+N_s-1])                   whole segments, some twice, as the published code does
========== ========================================= ================================================

c is the first evaluation that stays the minimum for N_s evaluations (itself included, ties keep the earlier
one). Cha et al., "SWAD: Domain Generalization by Seeking Flat Minima", NeurIPS 2021: Algorithm 1 is `paper`,
section 3.2 is `text`.

**Deciding and doing are two things.** The detector also has to say what whoever holds the tensors must keep,
since a loss that comes later decides whether weights seen now are averaged. It does so with a `Recipe`: how
the kept pieces (sums of weights over stretches of the trajectory) follow from those kept before.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from swad.averaging.semantics import (
    KEEP_OPEN,
    LIVE,
    MEAN,
    OPEN,
    RULES,
    Mix,
    Nonfinite,
    Phase,
    Recipe,
    Rule,
    Semantics,
)


@dataclass(frozen=True)
class Span:
    """The updates `first` to `last`, both included, each counted `times` times.

    Under `semantics="reference"` it is their segments that are counted, and weigh the same whatever their length.
    """

    first: int
    last: int
    times: float = 1

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __str__(self) -> str:
        return f"{self.first}-{self.last}" + (f" x{self.times:g}" if self.times != 1 else "")


@dataclass(frozen=True)
class Status:
    """What the detector knows after an evaluation: the phase, why, and what would be averaged if training ended now."""

    phase: Phase
    reason: str
    threshold: float | None = None
    spans: tuple[Span, ...] = ()

    @property
    def should_stop(self) -> bool:
        """Nothing that comes later can enter the average."""
        return self.phase is Phase.STOPPED

    @property
    def start_step(self) -> int | None:
        """First averaged update, counted from 1."""
        return min((s.first for s in self.spans), default=None)

    @property
    def end_step(self) -> int | None:
        """Last averaged update, counted from 1."""
        return max((s.last for s in self.spans), default=None)

    @property
    def n_averaged(self) -> int:
        """How many updates are averaged; one that counts twice counts twice."""
        return round(sum(len(s) * s.times for s in self.spans))


class LossValley:
    """Detect the start and the end of a loss valley from validation losses alone.

    Call `observe` with the live model's validation loss at every evaluation. `step` is the number of
    updates made so far (from 1); left out, evaluations are counted instead.

    >>> valley = LossValley(n_converge=3, n_tolerance=6, tolerance_ratio=0.3)
    >>> losses = [1.9, .60, .50, .45, .40, .43, .44, .50, .51, .53, .54, .56, .57, .58, .60, .61, .62, .63]
    >>> for k, loss in enumerate(losses):
    ...     status = valley.observe(loss, step=1 + 100 * k)
    ...     if status.should_stop:
    ...         break
    >>> status.start_step, status.end_step, round(status.threshold, 4)
    (401, 1001, 0.5503)
    >>> print(status.reason)
    6 evaluations in a row above the threshold 0.5503: overfitted
    """

    def __init__(
        self,
        n_converge: int = 3,
        n_tolerance: float = 6,
        tolerance_ratio: float = 0.3,
        semantics: Semantics = "paper",
        nonfinite: Nonfinite = "raise",
    ) -> None:
        _check_count("n_converge (N_s)", n_converge)
        if n_tolerance != math.inf:
            _check_count("n_tolerance (N_e)", n_tolerance)
        if not tolerance_ratio >= 0 or math.isinf(tolerance_ratio):
            raise ValueError(
                f"r = 1 + tolerance_ratio must be at least 1, or the threshold lies below the valley floor; "
                f"got tolerance_ratio={tolerance_ratio}: use e.g. 0.3 for the paper's r = 1.3"
            )
        _check_choice("semantics", semantics, get_args(Semantics))
        _check_choice("nonfinite", nonfinite, get_args(Nonfinite))
        if semantics == "reference" and n_tolerance == math.inf:
            raise ValueError("semantics='reference' queues n_tolerance segments, got inf: use 'paper' or 'text'")
        self.n_converge = n_converge = int(n_converge)
        self.n_tolerance = n_tolerance = n_tolerance if n_tolerance == math.inf else int(n_tolerance)
        self.tolerance_ratio = tolerance_ratio
        self.semantics: Semantics = semantics
        self.nonfinite: Nonfinite = nonfinite
        self._rule: Rule = RULES[semantics](n_converge, n_tolerance, 1 + tolerance_ratio)
        self._step = 0  # of the last evaluation
        self._open_first = 1  # first update of the open segment
        self._pieces: dict[str, tuple[Span, ...]] = {}
        self._carried: tuple[Span, ...] = ()  # pieces folded into the open segment
        self.recipe = Recipe()
        self.status = Status(Phase.SEARCHING, "no evaluation yet")

    @property
    def converged(self) -> bool:
        """The start of the valley is confirmed."""
        return self.status.phase is not Phase.SEARCHING

    @property
    def max_buffers(self) -> int:
        """Weight-sized buffers this detector can ask for at worst, the open segment included."""
        return self._rule.max_buffers()

    def observe(self, loss: float, step: int | None = None) -> Status:
        """Take the validation loss after update `step` and say where the trajectory now is.

        Afterwards `recipe` tells whoever keeps weights what to do with them. Observing after the valley has
        stopped changes nothing.
        """
        loss = float(loss)
        step = self._step + 1 if step is None else step
        if step <= self._step:
            raise ValueError(
                f"an evaluation must come after a new update: step {step} is not beyond the last one, "
                f"{self._step}; call observe once per evaluation"
            )
        self.check(loss, step)
        if not math.isfinite(loss):
            # Left out whole: its segment, weights and all, goes on to the next evaluation.
            self.recipe = Recipe({name: {name: 1.0} for name in self._pieces}, KEEP_OPEN)
            self._step = step
            status = self.status
            self.status = Status(status.phase, f"loss {loss} skipped", status.threshold, self.spans())
            return self.status
        if self.status.phase is Phase.STOPPED:
            self._step = step
            self.recipe = Recipe({name: {name: 1.0} for name in self._pieces})
            return self.status
        self.recipe = self._rule.see(loss)
        self._follow(self.recipe, step)
        self._step = step
        self.status = Status(self._rule.phase, self._rule.reason, self._rule.threshold, self.spans())
        return self.status

    def check(self, loss: float, step: int | None = None) -> None:
        """Raise if `observe` would not take this loss."""
        where = "" if step is None else f" at step {step}"
        if loss < 0:
            raise ValueError(
                f"the validation loss must be >= 0, or r * loss is no tolerance; got {loss}{where}: "
                f"pass a cross entropy or another non-negative loss"
            )
        if self.nonfinite == "raise" and not math.isfinite(loss):
            raise ValueError(
                f"the validation loss must be finite, got {loss}{where}: lower the learning rate, "
                f"or pass nonfinite='skip' to leave such evaluations out"
            )

    def result(self) -> Mix:
        """The average as if training ended now: which pieces, and the open segment where it counts."""
        return self._rule.result()

    def spans(self, step: int | None = None) -> tuple[Span, ...]:
        """The updates averaged if training ended at `step`; left out: at the last evaluation."""
        step = self._step if step is None else step
        return _tidy(
            Span(s.first, s.last, s.times * weight)
            for name, weight in self.result().items()
            for s in (self._open(step) if name == OPEN else self._pieces[name])
        )

    def state_dict(self) -> dict[str, Any]:
        """Everything `observe` depends on, as plain numbers, strings, lists and dicts."""
        return {
            "config": self._config(),
            "step": self._step,
            "open_first": self._open_first,
            "pieces": {name: _plain(spans) for name, spans in self._pieces.items()},
            "carried": _plain(self._carried),
            "rule": self._rule.state(),
            "status": [str(self.status.phase), self.status.reason, self.status.threshold],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where `state_dict` was taken; the settings must be the same."""
        differs = [
            f"{key} {theirs!r} there, {self._config()[key]!r} here"
            for key, theirs in state["config"].items()
            if theirs != self._config()[key]
        ]
        if differs:
            raise ValueError(f"a valley resumes only with the settings it was saved with; {', '.join(differs)}")
        self._step = int(state["step"])
        self._open_first = int(state["open_first"])
        self._pieces = {name: _spans(rows) for name, rows in state["pieces"].items()}
        self._carried = _spans(state["carried"])
        self._rule.load(state["rule"])
        phase, reason, threshold = state["status"]
        spans = self.spans() if self._step else ()
        self.status = Status(Phase(phase), str(reason), threshold, spans)
        self.recipe = Recipe({name: {name: 1.0} for name in self._pieces}, KEEP_OPEN)

    def _config(self) -> dict[str, Any]:
        return {
            "n_converge": self.n_converge,
            "n_tolerance": self.n_tolerance,
            "tolerance_ratio": self.tolerance_ratio,
            "semantics": self.semantics,
        }

    def _open(self, step: int) -> tuple[Span, ...]:
        return (*self._carried, Span(self._open_first, step)) if step >= self._open_first else self._carried

    def _follow(self, recipe: Recipe, step: int) -> None:
        """Do with spans of updates what the recipe asks to be done with their weights."""
        sources = {**self._pieces, LIVE: (Span(step, step),), OPEN: self._open(step), MEAN: self._open(step)}

        def mixed(mix: Mix) -> tuple[Span, ...]:
            return _tidy(Span(s.first, s.last, s.times * w) for name, w in mix.items() for s in sources[name])

        self._pieces = {name: mixed(mix) for name, mix in recipe.pieces.items()}
        self._carried = mixed(recipe.open)
        self._open_first = step + 1


def _tidy(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Write a sum of spans as spans that do not overlap, as few as can be."""
    change: dict[int, float] = {}
    for span in spans:
        change[span.first] = change.get(span.first, 0) + span.times
        change[span.last + 1] = change.get(span.last + 1, 0) - span.times
    tidy: list[Span] = []
    times: float = 0
    begun = 0
    for step in sorted(change):
        if change[step] == 0:
            continue
        if times:
            tidy.append(Span(begun, step - 1, times))
        times, begun = times + change[step], step
    return tuple(tidy)


def _plain(spans: Iterable[Span]) -> list[list[float]]:
    return [[s.first, s.last, s.times] for s in spans]


def _spans(rows: Iterable[Iterable[float]]) -> tuple[Span, ...]:
    return tuple(Span(int(first), int(last), times) for first, last, times in rows)


def _check_count(name: str, value: float) -> None:
    if not math.isfinite(value) or value != int(value) or value < 1:
        raise ValueError(f"{name} counts evaluations and must be a whole number of at least 1, got {value!r}")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}; got {value!r}")
