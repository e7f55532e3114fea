"""Where a loss valley begins and ends: validation losses in, a decision out, no tensors.

SWAD averages every weight between the evaluation at which the validation loss stops improving and the one at which
the model starts to overfit. `LossValley` finds both from the losses alone. Three definitions are in circulation. With
L[k] the loss at evaluation k, taken after update u_k, and r = 1 + tolerance_ratio:

========== ========================================= ================================================
semantics  threshold l                               averaged updates
========== ========================================= ================================================
paper      r * mean(L[c..c+N_s-1])                   u_c .. the last evaluation *before* N_e exceedances
text       r * L[c]                                  u_c .. the *first* of those N_e exceedances
reference  r * mean(L[c..c+N_s-1])                   whole segments, some twice, as the published code does
========== ========================================= ================================================

c is the first evaluation that stays the minimum for N_s evaluations (itself included; a tie keeps the earlier one).
Cha et al., "SWAD: Domain Generalization by Seeking Flat Minima", NeurIPS 2021: Algorithm 1 is `paper`, section 3.2 is
`text`. `swad.averaging.semantics` has a worked example of all three.

**Deciding and averaging are separate.** The detector decides from losses and holds no tensor. A loss that comes later
decides whether the weights of now are averaged, so the detector also says which sums of weights to keep until then: a
`KeepPlan` after every evaluation, which the average carries out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from swad.averaging._candidate_rules import Paper, Text
from swad.averaging._reference_rule import Reference
from swad.averaging.semantics import LIVE, MEAN, OPEN, KeepPlan, Nonfinite, Phase, Rule, Semantics, Terms, unchanged
from swad.util.names import require_choice

_RULES: dict[Semantics, type[Rule]] = {"paper": Paper, "text": Text, "reference": Reference}

_LARGEST_RATIO = 10
"""A ratio from here on is a percentage by mistake: no loss would ever exceed such a threshold."""


@dataclass(frozen=True)
class Span:
    """The updates `first` to `last`, both included, each counted `times` times; with an interval, one in `every`.

    Under `semantics="reference"` the segments are counted, and each weighs the same whatever its length.

    >>> print(Span(4100, 5000, every=100), len(Span(4100, 5000, every=100)))
    4100-5000 every 100 10
    """

    first: int
    last: int
    times: float = 1
    every: int = 1

    @property
    def updates(self) -> range:
        """The updates in it."""
        return range(self.first, self.last + 1, self.every)

    def __len__(self) -> int:
        return len(self.updates)

    def __str__(self) -> str:
        every = f" every {self.every}" if self.every != 1 else ""
        return f"{self.first}-{self.last}{every}" + (f" x{self.times:g}" if self.times != 1 else "")


@dataclass(frozen=True)
class Status:
    """The state after an evaluation: the phase, the reason for it, and what is averaged if training ends now.

    Args:
        phase: "searching", "averaging" or "stopped"; see `Phase`.
        reason: Why, in words.
        threshold: The loss above which evaluations count toward the end; None while searching.
        spans: The averaged updates.
    """

    phase: Phase
    reason: str
    threshold: float | None = None
    spans: tuple[Span, ...] = ()

    @property
    def should_stop(self) -> bool:
        """Whether the average is complete: later updates cannot enter it."""
        return self.phase is Phase.STOPPED

    @property
    def start_step(self) -> int | None:
        """First averaged update, counted from 1."""
        return min((span.first for span in self.spans), default=None)

    @property
    def end_step(self) -> int | None:
        """Last averaged update, counted from 1."""
        return max((span.last for span in self.spans), default=None)

    @property
    def n_averaged(self) -> int:
        """Number of averaged updates; one that is averaged twice counts twice."""
        return round(sum(len(span) * span.times for span in self.spans))


def every_nth(span: Span, anchor: int, every: int) -> tuple[Span, ...]:
    """Return the updates of `span` that are a multiple of `every` away from `anchor`: one span, or none.

    >>> every_nth(Span(5, 12), anchor=1, every=3)
    (Span(first=7, last=10, times=1, every=3),)
    """
    first = span.first + (anchor - span.first) % every
    last = span.last - (span.last - anchor) % every
    if first > last:
        return ()
    return (Span(first, last, span.times, every if first < last else 1),)


def as_number(loss: Any) -> float:
    """Return a validation loss as a number.

    >>> as_number([0.3, 0.4])
    Traceback (most recent call last):
    TypeError: a validation loss must be one number, got a list: average it over the examples first
    """
    try:
        return float(loss)
    except (TypeError, ValueError, RuntimeError):
        shape = getattr(loss, "shape", None)
        got = f"a {type(loss).__name__}" if shape is None else f"a {type(loss).__name__} of shape {tuple(shape)}"
        raise TypeError(
            f"a validation loss must be one number, got {got}: average it over the examples first"
        ) from None


class LossValley:
    """Detect the start and the end of a loss valley from validation losses alone.

    Call `observe` with the live model's validation loss at every evaluation.

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

    Args:
        n_converge: N_s, the evaluations for which a loss must stay the lowest to be the start.
        n_tolerance: N_e, the evaluations in a row above the threshold that end the valley; `math.inf` for no end.
        tolerance_ratio: r - 1, by how much the threshold exceeds the loss at the start.
        semantics: The definition to follow: "paper", "text" or "reference".
        nonfinite: "raise" on a loss that is not finite, or "skip" that evaluation.
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
                f"r = 1 + tolerance_ratio must be at least 1, or the threshold is below the lowest loss; "
                f"got tolerance_ratio={tolerance_ratio}: use e.g. 0.3 for the paper's r = 1.3"
            )
        if tolerance_ratio >= _LARGEST_RATIO:
            raise ValueError(
                f"tolerance_ratio is relative and must be below {_LARGEST_RATIO}, got {tolerance_ratio:g}: "
                f"0.3 allows losses 30 % above the lowest one, and n_tolerance=math.inf averages to the end"
            )
        require_choice("semantics", semantics, get_args(Semantics))
        require_choice("nonfinite", nonfinite, get_args(Nonfinite))
        if semantics == "reference" and n_tolerance == math.inf:
            raise ValueError("semantics='reference' queues n_tolerance segments, got inf: use 'paper' or 'text'")
        self.n_converge = n_converge = int(n_converge)
        self.n_tolerance = n_tolerance = n_tolerance if n_tolerance == math.inf else int(n_tolerance)
        self.tolerance_ratio = tolerance_ratio
        self.semantics: Semantics = semantics
        self.nonfinite: Nonfinite = nonfinite
        self._rule: Rule = _RULES[semantics](n_converge, n_tolerance, 1 + tolerance_ratio)
        self._step = 0  # of the last evaluation
        self._open_first = 1  # first update of the open segment since the last evaluation
        self._open_before: tuple[Span, ...] = ()  # updates before it that the open segment contains as well
        self._sums: dict[str, tuple[Span, ...]] = {}  # the updates in each kept sum
        self.keep_plan = KeepPlan()

    @property
    def status(self) -> Status:
        """The state after the last evaluation."""
        return Status(self._rule.phase, self._rule.reason, self._rule.threshold, self.spans())

    @property
    def phase(self) -> Phase:
        """Where the trajectory is in its valley."""
        return self._rule.phase

    @property
    def converged(self) -> bool:
        """Whether the start of the valley is confirmed."""
        return self.phase is not Phase.SEARCHING

    @property
    def max_buffers(self) -> int:
        """Weight-sized buffers the plans need at worst, the open segment included."""
        return self._rule.max_buffers()

    def observe(self, loss: float, step: int | None = None) -> Status:
        """Take the validation loss after update `step` and return the new status.

        Afterwards `keep_plan` says which sums of weights to keep. Once the valley has ended, nothing changes.

        Args:
            loss: The live model's validation loss.
            step: Number of updates so far, counted from 1. Without it, evaluations are counted instead.
        """
        loss = as_number(loss)
        step = self._step + 1 if step is None else step
        if step <= self._step:
            raise ValueError(
                f"each evaluation must come at a later step than the last one, which was at step {self._step}; "
                f"got step {step}: call observe once per evaluation"
            )
        self.check(loss, step)
        if not math.isfinite(loss):
            # Skip the evaluation as a whole: its segment continues to the next one.
            self.keep_plan = unchanged(self._sums, continue_open=True)
            self._rule.reason = f"loss {loss} skipped"
        elif self.phase is Phase.STOPPED:
            self.keep_plan = unchanged(self._sums, continue_open=False)
        else:
            self.keep_plan = self._rule.observe(loss)
            self._apply(self.keep_plan, step)
        self._step = step
        return self.status

    def check(self, loss: float, step: int | None = None) -> None:
        """Raise if `observe` would refuse this loss."""
        where = "" if step is None else f" at step {step}"
        if loss < 0:
            raise ValueError(
                f"the validation loss must be >= 0, because the threshold is a multiple of it; got {loss}{where}: "
                f"pass a cross entropy or another non-negative loss"
            )
        if self.nonfinite == "raise" and not math.isfinite(loss):
            raise ValueError(
                f"the validation loss must be finite, got {loss}{where}: lower the learning rate, "
                f"or pass nonfinite='skip' to skip such evaluations"
            )

    def result(self) -> list[str]:
        """Return the names of the sums that are the average if training ends now."""
        return self._rule.result()

    def spans(self, step: int | None = None) -> tuple[Span, ...]:
        """Return the updates that are averaged if training ends at `step`, by default the last evaluation."""
        step = self._step if step is None else step
        return _tidy(
            span for name in self.result() for span in (self._open(step) if name == OPEN else self._sums[name])
        )

    def state_dict(self) -> dict[str, Any]:
        """Return everything `observe` depends on, as plain numbers, strings, lists and dicts."""
        return {
            "config": self._config(),
            "step": self._step,
            "open_first": self._open_first,
            "open_before": _plain(self._open_before),
            "sums": {name: _plain(spans) for name, spans in self._sums.items()},
            "rule": self._rule.state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken; the settings must be the same.

        Args:
            state: What `state_dict` returned.
        """
        self.check_state(state)
        self._step = int(state["step"])
        self._open_first = int(state["open_first"])
        self._open_before = _spans(state["open_before"])
        self._sums = {name: _spans(rows) for name, rows in state["sums"].items()}
        self._rule.load(state["rule"])
        self.keep_plan = unchanged(self._sums, continue_open=True)

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise if `load_state_dict` would refuse this state."""
        missing = [key for key in self.state_dict() if key not in state]
        if missing:
            raise ValueError(
                f"a valley loads what its state_dict() returned, but this state lacks {', '.join(missing)}: "
                f"pass the state of a LossValley"
            )
        differs = [
            f"{key} {saved!r} in the state, {self._config()[key]!r} here"
            for key, saved in state["config"].items()
            if saved != self._config()[key]
        ]
        if differs:
            raise ValueError(f"a valley must resume with the settings it was saved with: {', '.join(differs)}")

    def _config(self) -> dict[str, Any]:
        return {
            "n_converge": self.n_converge,
            "n_tolerance": self.n_tolerance,
            "tolerance_ratio": self.tolerance_ratio,
            "semantics": self.semantics,
        }

    def _open(self, step: int) -> tuple[Span, ...]:
        return (*self._open_before, Span(self._open_first, step)) if step >= self._open_first else self._open_before

    def _apply(self, plan: KeepPlan, step: int) -> None:
        """Do with spans of updates what the plan asks to be done with their weights."""
        sources = {**self._sums, LIVE: (Span(step, step),), OPEN: self._open(step), MEAN: self._open(step)}

        def combined(terms: Terms) -> tuple[Span, ...]:
            return _tidy(
                Span(span.first, span.last, span.times * factor)
                for name, factor in terms.items()
                for span in sources[name]
            )

        self._sums = {name: combined(terms) for name, terms in plan.sums.items()}
        self._open_before = combined(plan.open)
        self._open_first = step + 1


def _tidy(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Write a sum of spans as the fewest spans that do not overlap."""
    change: dict[int, float] = {}
    for span in spans:
        change[span.first] = change.get(span.first, 0) + span.times
        change[span.last + 1] = change.get(span.last + 1, 0) - span.times
    tidy: list[Span] = []
    times: float = 0
    first = 0
    for step in sorted(change):
        if change[step] == 0:
            continue
        if times:
            tidy.append(Span(first, step - 1, times))
        times, first = times + change[step], step
    return tuple(tidy)


def _plain(spans: Iterable[Span]) -> list[list[float]]:
    return [[span.first, span.last, span.times] for span in spans]


def _spans(rows: Iterable[Iterable[float]]) -> tuple[Span, ...]:
    return tuple(Span(int(first), int(last), times) for first, last, times in rows)


def is_whole(number: Any, least: int) -> bool:
    """Whether a value is a whole number and not below `least`; 3.0 is one, "3" is not."""
    try:
        return bool(int(number) == number >= least)
    except (TypeError, ValueError, OverflowError):
        return False


def _check_count(name: str, value: float) -> None:
    if not is_whole(value, 1):
        raise ValueError(f"{name} counts evaluations and must be a whole number of at least 1, got {value!r}")
