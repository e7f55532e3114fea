"""SWAD, and its relatives SWA, SMA and EMA behind the same interface: all can ride on one trajectory."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from swad.average import Average
from swad.pieces import Piece
from swad.rules import LIVE, OPEN, Mix, NeverConverged, Nonfinite, Phase, Semantics
from swad.tensors import Buffers, Patterns
from swad.valley import LossValley, Span, Status


class NeverConvergedWarning(UserWarning):
    """The average was read before its valley was confirmed; the text says what was averaged instead."""


class SWAD(Average):
    """Average the weights of every update between the floor of the loss valley and the start of overfitting.

    Cha et al., "SWAD: Domain Generalization by Seeking Flat Minima", NeurIPS 2021 (`swad.valley` has the
    rules). Three lines in a training loop; the learning rate is never touched:

    >>> import torch, swad
    >>> model = torch.nn.Linear(2, 1)
    >>> averager = swad.SWAD(model)                             # 1
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> for step in range(1, 91):
    ...     optimizer.zero_grad()
    ...     model(torch.ones(1, 2)).square().sum().backward()
    ...     optimizer.step()
    ...     averager.update_parameters(model)                   # 2: after every optimiser step
    ...     if step % 10 == 0:
    ...         val_loss = 1.0 + abs(step - 30) / 50            # of the live model
    ...         if averager.observe(val_loss).should_stop:      # 3: after every evaluation
    ...             break
    >>> averager.copy_to(model)
    >>> averager.status.start_step, averager.status.end_step
    (30, 90)

    Memory: two float32 copies of the averaged tensors in steady state (a third for a moment under `paper`
    when the loss jumps right after its floor); `semantics="reference"` needs up to max(N_s, N_e) + 2 until
    its queue has passed the floor. `offload=True` keeps all but the open segment in pinned host memory.

    Trained from scratch, a plateau before the loss first falls can pass for a valley: begin to observe after it.

    Precision: sums inside a segment are float32, so rounding grows with the updates between two evaluations:
    relative errors of about 2e-7 at 100, 1e-6 at 1,000 (weights that hardly move: 1e-6 and 7e-6).

    `interval` > 1 averages every so many updates from the start on only: the ablation "without dense".
    `n_tolerance=math.inf` averages to the end of training: the ablation "without overfit".
    """

    def __init__(
        self,
        model: nn.Module,
        n_converge: int = 3,
        n_tolerance: float = 6,
        tolerance_ratio: float = 0.3,
        semantics: Semantics = "paper",
        never_converged: NeverConverged = "candidate",
        buffers: Buffers = "copy",
        nonfinite: Nonfinite = "raise",
        offload: bool = False,
        include: Patterns = None,
        exclude: Patterns = None,
        interval: int = 1,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__(
            model,
            buffers=buffers,
            offload=offload,
            include=include,
            exclude=exclude,
            process_group=process_group,
        )
        if interval < 1:
            raise ValueError(f"interval counts updates and must be at least 1, got {interval}")
        if interval > 1 and semantics == "reference":
            raise ValueError("semantics='reference' is dense by definition, got interval > 1: use 'paper' or 'text'")
        if interval > 1 and never_converged != "candidate":
            raise ValueError(f"an interval is counted from the candidate, got never_converged={never_converged!r}")
        self.interval = interval
        self.dense, self._sparse = interval == 1, interval > 1
        self.valley = LossValley(n_converge, n_tolerance, tolerance_ratio, semantics, never_converged, nonfinite)
        self._anchor = 0  # the update the interval is counted from: the candidate for the start
        with torch.no_grad():
            self._follow(self.valley.recipe)

    @property
    def status(self) -> Status:
        """Where the trajectory is, and what would be averaged if training ended now."""
        now = self.valley.status
        return Status(now.phase, now.reason, now.threshold, self._spans())

    @property
    def max_buffers(self) -> int:
        """Weight-sized buffers this average can hold at worst."""
        return self.valley.max_buffers

    def copy_to(self, model: nn.Module | None = None) -> None:
        """Write the average, as if training ended now, into `model`. No state of the average changes."""
        self._warn_if_searching()
        super().copy_to(model)

    def averaged_state(self) -> dict[str, Tensor]:
        """The average as if training ended now, by name, as a state dict of new tensors."""
        self._warn_if_searching()
        return super().averaged_state()

    def _check_loss(self, loss: float) -> None:
        self.valley.check(loss)

    def _evaluated(self, loss: float, step: int) -> Status:
        before = self.valley.state_dict()
        self.valley.observe(loss, step)
        try:
            with torch.no_grad():
                self._follow(self.valley.recipe)
        except BaseException:  # no room for a piece, say: losses and tensors must tell the same story
            self.valley.load_state_dict(before)
            raise
        if any(LIVE in mix for mix in self.valley.recipe.pieces.values()):
            self._anchor = step
        return self.status

    def _wants(self, step: int | Tensor) -> bool | Tensor:
        return True if self.interval == 1 else (step - self._anchor) % self.interval == 0

    def _result(self) -> Mix:
        return self.valley.result()

    def _finished(self) -> bool:
        return self.valley.status.phase is Phase.STOPPED

    def _boundary(self, step: int) -> None:
        if self._finished() or not self._segment.weight:
            return
        if self._held is None:
            self._held = Piece.zeros(self._tracked, self._offload)
        self._held.absorb(self._segment, 1.0, self._tracked)

    def _spans(self) -> tuple[Span, ...]:
        spans = self.valley.spans(self.step)
        if self.interval == 1:
            return spans
        every = self.interval
        return tuple(
            Span(i, i, s.times)
            for s in spans
            for i in range(s.first + (self._anchor - s.first) % every, s.last + 1, every)
        )

    def _warn_if_searching(self) -> None:
        if self.valley.converged:
            return
        spans = ", ".join(map(str, self.valley.spans(self.step))) or "there are (none yet)"
        rule = "last" if self.valley.semantics == "reference" else self.valley.never_converged
        warnings.warn(
            f"the validation loss has not converged ({self.valley.status.reason}); "
            f"never_converged={rule!r} averages the updates {spans}",
            NeverConvergedWarning,
            stacklevel=3,
        )

    def _extra_state(self) -> dict[str, Any]:
        return {"valley": self.valley.state_dict(), "interval": self.interval, "anchor": self._anchor}

    def _load_extra_state(self, header: Mapping[str, Any]) -> None:
        if header["interval"] != self.interval:
            raise ValueError(f"a SWAD resumes with its interval: {header['interval']} there, {self.interval} here")
        self.valley.load_state_dict(header["valley"])
        self._anchor = int(header["anchor"])


class SWA(Average):
    """Average the weights of a fixed window of updates, every `interval` of them.

    Izmailov et al., "Averaging Weights Leads to Wider Optima and Better Generalization", UAI 2018. The
    window is (start, end]: `SWA(model, start=4000, end=5000, interval=100)` averages updates 4100, 4200, ...,
    5000, the paper's ten. With interval 1 it is the ablation "without opt-overfit". Train with a constant or
    a cyclic learning rate (`swad.cyclic_lr`); the average never touches it.

    >>> import torch
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> average = SWA(model, start=2, interval=2)
    >>> for value in (1., 2., 3., 4., 5., 6.):
    ...     _ = model.weight.data.fill_(value)
    ...     average.update_parameters(model)
    >>> average.averaged_state()["weight"].item()
    5.0
    """

    FLUSH = 256
    """Updates after which a dense sum joins the mean, so that rounding does not grow with the window."""

    def __init__(
        self,
        model: nn.Module,
        start: int,
        end: int | None = None,
        interval: int = 1,
        buffers: Buffers = "copy",
        offload: bool = False,
        include: Patterns = None,
        exclude: Patterns = None,
    ) -> None:
        super().__init__(model, buffers=buffers, offload=offload, include=include, exclude=exclude)
        if start < 0 or interval < 1 or (end is not None and end <= start):
            raise ValueError(
                f"a window needs 0 <= start < end and interval >= 1; got start={start}, end={end}, interval={interval}"
            )
        self.start, self.end, self.interval = start, end, interval
        self._closed = False
        self.dense, self._sparse = interval == 1, interval > 1

    @property
    def status(self) -> Status:
        """Where the trajectory is, and what would be averaged if training ended now."""
        step, every = self.step, self.interval
        last = step if self.end is None else min(step, self.end)
        if every == 1:
            spans: tuple[Span, ...] = (Span(self.start + 1, last),) if last > self.start else ()
        else:
            spans = tuple(Span(i, i) for i in range(self.start + every, last + 1, every))
        window = f"the window ({self.start}, {'end' if self.end is None else self.end}]"
        if step <= self.start:
            return Status(Phase.SEARCHING, f"update {step} is before {window}")
        if self._finished():
            return Status(Phase.STOPPED, f"update {step} is past {window}", None, spans)
        return Status(Phase.AVERAGING, f"update {step} is in {window}", None, spans)

    def _evaluated(self, loss: float, step: int) -> Status:
        self._boundary(step)
        return self.status

    def _boundary(self, step: int) -> None:
        with torch.no_grad():
            self._flush()

    def _wants(self, step: int | Tensor) -> bool | Tensor:
        inside = (step > self.start) & ((step - self.start) % self.interval == 0)
        return inside if self.end is None else inside & (step <= self.end)

    def _accumulate(self, live: list[Tensor], weight: Tensor | None, counted: bool = True) -> None:
        super()._accumulate(live, weight, counted)
        if self.dense and weight is None and self._segment.upper_bound >= self.FLUSH and counted:
            self._flush()

    def _chooses(self, weight: Tensor | None) -> bool:
        ends = self.end is not None and (weight is not None or self._updates == self.end)
        return self._sparse or ends

    def _require_capturable(self, skipped: Tensor | None) -> None:
        super()._require_capturable(skipped)
        if self.end is not None or self._updates < self.start:
            raise RuntimeError("a captured update cannot see where a window begins or ends: put it into a SegmentFeed")

    def _flush(self) -> None:
        if self.dense and self._segment_inside() and self._segment.weight:
            mean = self._pieces.get("mean")
            if mean is None:
                mean = self._pieces["mean"] = Piece.zeros(self._tracked, self._offload)
            mean.absorb(self._segment, 1.0, self._tracked)
            if not self._shared:
                self._segment.clear()

    def _segment_inside(self) -> bool:
        # A feed closes its segment at both edges, so it is inside the window as a whole or not at all.
        return not self._shared or (
            self._segment.first > self.start and (self.end is None or self._updates <= self.end)
        )

    def _result(self) -> Mix:
        mix: Mix = dict.fromkeys(self._pieces, 1.0)
        return {**mix, OPEN: 1.0} if self._segment_inside() else mix

    def _finished(self) -> bool:
        # For good: a step that a scaler may skip makes the count uncertain again, and must not reopen the window.
        if self.end is not None and self._updates >= self.end and self._skips is None:
            self._closed = True
        return self._closed

    def _edges(self) -> tuple[int, ...]:
        return (self.start,) if self.end is None else (self.start, self.end)

    def _extra_state(self) -> dict[str, Any]:
        return {"window": [self.start, self.end, self.interval]}

    def _load_extra_state(self, header: Mapping[str, Any]) -> None:
        if header["window"] != [self.start, self.end, self.interval]:
            raise ValueError(
                f"an average resumes with its window: (start, end, interval) = {tuple(header['window'])} there, "
                f"{(self.start, self.end, self.interval)} here"
            )
        self._closed = False


class SMA(SWA):
    """Simple moving average: every update after update `start`, to the end of training.

    Arpit et al., "Ensemble of Averages: Improving Model Selection and Boosting Performance in Domain
    Generalization", NeurIPS 2022, start at update 100.
    """

    def __init__(self, model: nn.Module, start: int = 100, **options: Any) -> None:
        super().__init__(model, start=start, **options)


class EMA(Average):
    """Exponential moving average: m <- decay * m + (1 - decay) * theta, beginning with the first update's weights.

    The paper compares with decay 0.99 (Polyak and Juditsky, 1992). Every update weighs differently, so an
    EMA cannot share a segment's sum: it costs a pass of its own.
    """

    dense = False

    def __init__(
        self,
        model: nn.Module,
        decay: float = 0.99,
        buffers: Buffers = "copy",
        include: Patterns = None,
        exclude: Patterns = None,
    ) -> None:
        super().__init__(model, buffers=buffers, include=include, exclude=exclude)
        if not 0 <= decay < 1:
            raise ValueError(f"decay must be at least 0 and below 1, got {decay}; the paper uses 0.99")
        self.decay = decay

    @property
    def status(self) -> Status:
        """Where the trajectory is, and what would be averaged if training ended now."""
        spans = (Span(1, self.step),) if self.step else ()
        return Status(Phase.AVERAGING, f"decay {self.decay}, from the first update on", None, spans)

    def _evaluated(self, loss: float, step: int) -> Status:
        return self.status

    def _update(self, model: nn.Module | None, skipped: Tensor | None) -> None:
        if not self._segment.allocated:
            with torch.no_grad():  # buffers must exist before a capture begins
                self._segment.allocate(self._tracked.live(model))
        super()._update(model, skipped)

    def _accumulate(self, live: list[Tensor], weight: Tensor | None, counted: bool = True) -> None:
        self._segment.last = self._updates
        self._segment.blend(live, 1 - self.decay, weight)
        self._segment.forget_carried()

    def _result(self) -> Mix:
        return {OPEN: 1.0}

    def _extra_state(self) -> dict[str, Any]:
        return {"decay": self.decay}

    def _load_extra_state(self, header: Mapping[str, Any]) -> None:
        if header["decay"] != self.decay:
            raise ValueError(f"an EMA resumes with its decay: {header['decay']} there, {self.decay} here")
