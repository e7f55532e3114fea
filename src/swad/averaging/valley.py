"""Where a loss valley begins and ends: validation losses in, a decision out, no tensors.

SWAD averages every weight between the evaluation at which the validation loss stops improving and the one at which the
model starts to overfit. `LossValley` finds both from the losses alone, by one of three definitions:

========== ========================================= ================================================
semantics  threshold l                               averaged updates
========== ========================================= ================================================
paper      r * mean(L[c..c+N_s-1])                   u_c .. the last evaluation *before* N_e exceedances
text       r * L[c]                                  u_c .. the *first* of those N_e exceedances
reference  r * mean(L[c..c+N_s-1])                   whole segments, some twice, as the published code does
========== ========================================= ================================================

`swad.averaging.algorithm1` is the first two, `swad.averaging.published_code` the third.

**A worked example.** Ten updates between evaluations, N_s = 2, N_e = 3, r = 1.5. The loss is lowest at update 30, and
stays lowest for N_s evaluations at update 40.

    update       10    20    30    40    50    60    70    80    90    100
    loss         4.0   1.5   1.0   1.2   1.4   1.7   1.6   1.9   2.0   2.1
    > 1.65                                     yes         yes   yes   yes     paper, reference: 1.5 * mean(1.0, 1.2)
    > 1.5                                      yes   yes   yes                 text: 1.5 * 1.0

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
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

from swad.averaging.algorithm1 import Algorithm1
from swad.averaging.checks import as_number, check_count
from swad.averaging.published_code import PublishedCode
from swad.averaging.rule import FalseStartWarning, NeverConvergedWarning, Rule
from swad.averaging.spans import Phase, Span, Status, every_nth
from swad.util.names import require_choice
from swad.util.warn import warn_caller

Semantics = Literal["paper", "text", "reference"]
Mode = Literal["min", "max"]
Nonfinite = Literal["raise", "skip"]

MUCH_LOWER = 0.8
"""A loss below this share of the mean that gave the threshold speaks against the start. Of 24 trainings with a real
valley, none ended with more than 41 % of such losses; two that began on a plateau had 75 % and 88 %."""
_LARGEST_RATIO = 10
"""A ratio from here on is a percentage by mistake: no loss would ever exceed such a threshold."""

_RISING = 4
"""Losses that only rise from the first one on, in [0, 1], until they are taken for accuracies."""


class LossValley(Rule):
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
        tolerance_ratio: r - 1, by how much the threshold exceeds the loss at the start: 0.3 for the paper's r = 1.3.
        semantics: The definition to follow: "paper", "text" or "reference".
        mode: "min" for losses, or "max" for scores of at most 1 (accuracy, AUC, Dice), each of which counts as the
            loss 1 - score.
        tolerance: By how much the threshold exceeds the loss at the start, in its own unit; replaces `tolerance_ratio`.
            Losses may then be negative, and scores above 1. Use it where even the best loss is large: a language model
            at 6 never reaches 1.3 times that.
        start: Evaluations before this update are not observed (without update numbers: this many minus one). Under
            "reference", segments are counted from the first evaluation at or after it.
        restart: Drop the average and search again when `n_converge` losses in a row are far below those at the start
            (below 0.8 of their mean, or lower by more than `tolerance`): then it was no valley. The new search begins
            with the weights at the evaluation that decides, because earlier ones are gone and belong to a higher loss.
            Not with "reference".
        nonfinite: "raise" on a loss that is not finite, or "skip" that evaluation.
        interval: Average only every `interval`-th update from the start on: the ablation "without dense".
    """

    settings = (
        "n_converge",
        "n_tolerance",
        "tolerance_ratio",
        "semantics",
        "mode",
        "tolerance",
        "start",
        "restart",
        "interval",
    )
    state_defaults: ClassVar = {
        "mode": "min",
        "tolerance": None,
        "start": 0,
        "restart": False,
        "rising": None,
        "doubts": {},
    }

    def __init__(
        self,
        n_converge: int = 3,
        n_tolerance: float = 6,
        tolerance_ratio: float = 0.3,
        semantics: Semantics = "paper",
        *,
        mode: Mode = "min",
        tolerance: float | None = None,
        start: int = 0,
        restart: bool = False,
        nonfinite: Nonfinite = "raise",
        interval: int = 1,
    ) -> None:
        if not isinstance(n_converge, str) and not hasattr(n_converge, "__float__"):
            raise TypeError(
                f"swad.LossValley is the detector and takes numbers, got a {type(n_converge).__name__} as n_converge: "
                f"the published class, which takes an evaluator, is swad.compat.LossValley"
            )
        self.n_converge = check_count("n_converge (N_s)", n_converge)
        self.n_tolerance = n_tolerance if n_tolerance == math.inf else check_count("n_tolerance (N_e)", n_tolerance)
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
        if tolerance_ratio > 1:
            warn_caller(
                f"tolerance_ratio is r - 1, so tolerance_ratio={tolerance_ratio:g} allows losses up to "
                f"{1 + tolerance_ratio:g} times the lowest one: for the paper's r = 1.3 pass 0.3"
            )
        if tolerance is not None and not 0 <= tolerance < math.inf:
            raise ValueError(
                f"tolerance must be at least 0 and finite, got {tolerance}: pass e.g. 0.05, or leave it out"
            )
        require_choice("semantics", semantics, get_args(Semantics))
        require_choice("mode", mode, get_args(Mode))
        require_choice("nonfinite", nonfinite, get_args(Nonfinite))
        self.start = check_count("start", start, "updates", 0)
        if restart and semantics == "reference":
            raise ValueError(
                "semantics='reference' averages whole segments, so it cannot begin again at an evaluation: "
                "use 'paper' or 'text', or leave restart out"
            )
        if semantics == "reference" and n_tolerance == math.inf:
            raise ValueError("semantics='reference' queues n_tolerance segments, got inf: use 'paper' or 'text'")
        self.interval = check_count("interval", interval, "updates")
        if interval > 1 and semantics == "reference":
            raise ValueError("semantics='reference' is dense by definition, got interval > 1: use 'paper' or 'text'")
        self.tolerance_ratio = tolerance_ratio
        self.semantics: Semantics = semantics
        self.nonfinite: Nonfinite = nonfinite
        self.mode: Mode = mode
        self.tolerance, self.restart = tolerance, restart
        self.dense = interval == 1
        self._search()
        self.weighs_segments = self.detector.weighs_segments
        self._step = 0  # of the last evaluation
        self._skipped = ""  # the loss of the last evaluation, if it was skipped
        self._rising: list[float] | None = []  # the first losses, as long as they rise

    def _search(self) -> None:
        """Begin to search for a valley."""
        r, plus = (1 + self.tolerance_ratio, 0.0) if self.tolerance is None else (1.0, self.tolerance)
        self.detector: Algorithm1 | PublishedCode
        if self.semantics == "reference":
            self.detector = PublishedCode(self.n_converge, self.n_tolerance, r, plus)
        else:
            self.detector = Algorithm1(self.n_converge, self.n_tolerance, r, self.semantics == "text", plus)
        self._doubts = FalseStart(self.n_converge)

    @property
    def phase(self) -> Phase:
        """Where the trajectory is in its valley."""
        return self.detector.phase

    @property
    def converged(self) -> bool:
        """Whether the start of the valley is confirmed."""
        return self.phase is not Phase.SEARCHING

    @property
    def status(self) -> Status:
        """The state after the last evaluation."""
        return self.status_at(self._step)

    def status_at(self, step: int) -> Status:
        """Return the status, with the updates that are averaged if training ends at `step`."""
        threshold = None if self.detector.threshold is None else self._as_observed(self.detector.threshold)
        return Status(self.phase, self._reason(), threshold, self.spans(step), self._false_start(step))

    def observe(self, loss: float, step: int | None = None) -> Status:
        """Take the validation loss after update `step` and return the new status.

        Once the valley has ended, nothing changes.

        Args:
            loss: The live model's validation loss, or its score with `mode="max"`.
            step: Number of updates so far, counted from 1. Without it, evaluations are counted instead.
        """
        loss = as_number(loss)
        step = self._step + 1 if step is None else step
        if step <= self._step:
            raise ValueError(
                f"each evaluation must come at a later step than the last one, which was at step {self._step}; "
                f"got step {step}: call observe once per evaluation"
            )
        self.check(loss)
        finite = math.isfinite(loss)
        if finite and self.phase is not Phase.STOPPED:  # without the evaluation, its segment continues to the next one
            self._take(1 - loss if self.mode == "max" else loss, step)
        self._step, self._skipped = step, "" if finite else f"{loss}"
        return self.status

    def _take(self, loss: float, step: int) -> None:
        if step < self.start or (isinstance(self.detector, PublishedCode) and self.detector.end < self.start):
            if isinstance(self.detector, PublishedCode):
                self.detector.end = step  # where the first segment begins
            return
        self._warn_of_accuracies(loss)
        if self.converged:
            self._doubts.take(loss < self._much_lower_than_start)
            if self.restart and self._doubts.is_certain:
                self._search()
        self.detector.observe(loss, step)

    @property
    def _much_lower_than_start(self) -> float:
        """The loss below which the start of the valley was none."""
        threshold = self.detector.threshold
        assert threshold is not None
        if self.tolerance is not None:
            return threshold - 2 * self.tolerance
        return MUCH_LOWER * threshold / (1 + self.tolerance_ratio)

    def _warn_of_accuracies(self, loss: float) -> None:
        if self.mode == "max" or self._rising is None:
            return
        rises = 0 <= loss <= 1 and loss > max(self._rising, default=-1)
        self._rising = [*self._rising, loss] if rises else None
        if self._rising is not None and len(self._rising) == _RISING:
            warn_caller(
                f"the first {_RISING} validation losses rise from {self._rising[0]:.3g} to {loss:.3g}: "
                f"if they are accuracies or other scores, pass mode='max'"
            )
            self._rising = None

    def check(self, loss: float) -> None:
        """Raise if `observe` would refuse this loss."""
        if self.tolerance is None and self.mode == "min" and loss < 0:
            raise ValueError(
                f"the validation loss must be >= 0, because the threshold is a multiple of it; got {loss}: "
                f"pass a cross entropy or another non-negative loss, or an absolute tolerance"
            )
        if self.tolerance is None and self.mode == "max" and loss > 1:
            raise ValueError(
                f"a score must be at most 1, because the threshold is a multiple of 1 - score; got {loss}: "
                f"divide percents by 100, or pass an absolute tolerance"
            )
        if self.nonfinite == "raise" and not math.isfinite(loss):
            raise ValueError(
                f"the validation loss must be finite, got {loss}: lower the learning rate, "
                f"or pass nonfinite='skip' to skip such evaluations"
            )

    def spans(self, step: int | None = None) -> tuple[Span, ...]:
        """Return the updates that are averaged if training ends at `step`, by default the last evaluation."""
        spans = () if self._waits else self.detector.spans(self._step if step is None else step)
        if self.interval == 1:
            return spans
        return tuple(taken for span in spans for taken in every_nth(span, self._anchor, self.interval))

    def needed(self) -> tuple[Span, ...]:
        """Return the updates that may still be averaged, cut where the valley may still begin or end."""
        waits_for_segment = isinstance(self.detector, PublishedCode) and self.detector.end >= self.start
        return () if self._waits and not waits_for_segment else self.detector.needed()

    @property
    def _waits(self) -> bool:
        """Whether no loss since update `start` was observed."""
        return self.start > 0 and not self.detector.has_losses

    def takes(self, step: Any) -> Any:
        """Whether the update is a whole number of intervals after the start."""
        return (step - self._anchor) % self.interval == 0

    @property
    def _anchor(self) -> int:
        return self.detector.start or 0

    def finished(self, step: int) -> bool:
        """Whether the valley has ended."""
        return self.phase is Phase.STOPPED

    def why_empty(self, step: int) -> str:
        """Say why no update up to `step` is averaged."""
        if self._waits:
            return f"the average begins at the first evaluation from update {self.start} on, and this is update {step}"
        if not step or self.interval == 1:
            return super().why_empty(step)
        return f"with interval={self.interval} the first averaged update is {self.interval}, but this is {step}"

    def caveat(self, step: int) -> Warning | None:
        """Return what is averaged instead of a valley, if none is confirmed, or why it was probably none."""
        if self.converged:
            text = self._false_start(step)
            return FalseStartWarning(text) if text else None
        return NeverConvergedWarning(self._instead(step))

    def _false_start(self, step: int) -> str:
        if not self._doubts.is_probable:
            return ""
        start = min((span.first for span in self.spans(step)), default=0)
        again = "" if self.restart or self.semantics == "reference" else ", or restart=True"
        return (
            f"the average began at update {start}, but {self._doubts.much_lower} of the {self._doubts.since} losses "
            f"since are far below those there, so it was probably no valley: pass a later start{again}"
        )

    def _instead(self, step: int) -> str:
        """Say what is averaged as long as no valley is confirmed."""
        updates = ", ".join(map(str, self.spans(step)))
        if not self._step:
            return (
                f"no validation loss was observed, so the average holds all updates, {updates}: "
                f"evaluate during training, and pass each loss to observe"
            )
        reference = self.semantics == "reference"
        rule = "the last segment, as in the published code" if reference else "everything since the best evaluation"
        return (
            f"the validation loss has not converged ({self._reason()}): the average holds the updates "
            f"{updates}, {rule}. Train longer or evaluate more often"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return everything `observe` depends on, as plain numbers, strings, lists and dicts."""
        return {
            **{name: getattr(self, name) for name in self.settings},
            "step": self._step,
            "skipped": self._skipped,
            "rising": self._rising,
            "doubts": dict(vars(self._doubts)),
            "detector": self.detector.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken; the settings must be the same.

        Args:
            state: What `state_dict` returned.
        """
        self.check_state(state, "a valley")
        state = {**self.state_defaults, **state}
        self._step, self._skipped = int(state["step"]), str(state["skipped"])
        self._rising = state["rising"]
        vars(self._doubts).update(state["doubts"])
        self.detector.load_state_dict(state["detector"])

    def _as_observed(self, loss: float) -> float:
        return 1 - loss if self.mode == "max" else loss

    def _reason(self) -> str:
        detector, above = self.detector, self.detector.n_above
        outside, inside = ("above", "below") if self.mode == "min" else ("below", "above")
        if self._skipped and self.phase is not Phase.STOPPED:
            return f"loss {self._skipped} skipped"
        if detector.threshold is not None:
            threshold = f"the threshold {self._as_observed(detector.threshold):.4g}"
            if self.phase is Phase.STOPPED:
                return f"{self.n_tolerance} evaluations in a row {outside} {threshold}: overfitted"
            if self.n_tolerance == math.inf:
                return f"averages to the end of training, whatever is {outside} {threshold}"
            where = f"{above} of {self.n_tolerance} evaluations in a row {outside}" if above else inside
            return f"{where} {threshold}"
        if not self._step:
            return "no evaluation yet"
        if self._waits:
            return f"evaluations before update {self.start} are not observed"
        evaluations, lowest = detector.lowest
        best = f"{self._as_observed(lowest):.4g}"
        what, most = ("loss", "lowest") if self.mode == "min" else ("score", "highest")
        if evaluations == 1:
            return f"new {most} {what} {best}; must stay the {most} for {self.n_converge} evaluations"
        return f"{what} {best} is the {most} for {evaluations} of {self.n_converge} evaluations"


class FalseStart:
    """Counts the losses since a valley was confirmed that are far below those at its start.

    One such loss is noise as often as not: 15 of those 24 trainings have one.

    Args:
        enough: Losses that must speak against the start, and in a row to be sure.
    """

    def __init__(self, enough: int) -> None:
        self.enough = enough
        self.since = self.much_lower = self.in_a_row = 0

    def take(self, is_much_lower: bool) -> None:
        """Count a loss."""
        self.since += 1
        self.much_lower += is_much_lower
        self.in_a_row = self.in_a_row + 1 if is_much_lower else 0

    @property
    def is_probable(self) -> bool:
        """Whether most losses speak against the start."""
        return self.since >= self.enough and 2 * self.much_lower > self.since

    @property
    def is_certain(self) -> bool:
        """Whether the last losses all do."""
        return self.in_a_row >= self.enough
