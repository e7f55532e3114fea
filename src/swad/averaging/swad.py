"""SWAD: the dense average of the weights inside the loss valley."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from swad.averaging.base import Average
from swad.averaging.mean import Mean
from swad.averaging.member import CARRYOVER
from swad.averaging.semantics import LIVE, MEAN, OPEN, KeepPlan, Nonfinite, Phase, Semantics, Terms
from swad.averaging.sums import WeightSum
from swad.averaging.tensors import Buffers, Patterns
from swad.averaging.valley import LossValley, Status, every_nth, is_whole


class NeverConvergedWarning(UserWarning):
    """The average was read before its valley was confirmed; the text says what was averaged instead."""


class SWAD(Average):
    """Average the weights of every update between the lowest validation loss and the start of overfitting.

    Cha et al., "SWAD: Domain Generalization by Seeking Flat Minima", NeurIPS 2021 (`swad.averaging.valley` has the
    definitions). Three lines in a training loop; the learning rate is never touched:

    >>> import torch, swad
    >>> model = torch.nn.Linear(2, 1)
    >>> averager = swad.SWAD(model)                             # 1
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> for step in range(1, 91):
    ...     optimizer.zero_grad()
    ...     model(torch.ones(1, 2)).square().sum().backward()
    ...     optimizer.step()
    ...     averager.update_parameters(model)                   # 2: after every optimizer step
    ...     if step % 10 == 0:
    ...         val_loss = 1.0 + abs(step - 30) / 50            # of the live model
    ...         if averager.observe(val_loss).should_stop:      # 3: after every evaluation
    ...             break
    >>> averager.copy_to(model)
    >>> averager.status.start_step, averager.status.end_step
    (30, 90)

    How often to evaluate: the start and the end are found only at evaluations. The defaults look at 3 of them to
    confirm the start and at 6 to detect the end, so a training needs several times as many. The paper evaluates every
    100 of 5,000 updates (VLCS: every 50).

    Batch norm: if it was in training mode, its running statistics belong to one update and not to the average. Call
    `swad.update_bn(train_loader, model)` after `copy_to`. Frozen statistics, as in the paper, and networks without
    batch norm need nothing.

    Memory: two float32 copies of the averaged tensors in steady state (a third for a moment under `paper` when the
    loss jumps right after its lowest value). `semantics="reference"` needs up to max(N_s, N_e) + 2 until its queue has
    passed the lowest loss.

    Precision: sums inside a segment are float32, so rounding grows with the updates between two evaluations: relative
    errors of about 2e-7 at 100 updates, 1e-6 at 1,000 (weights that hardly move: 1e-6 and 7e-6).

    If the loss never converges, the average is everything since the best evaluation (`reference`: the last segment),
    and reading it warns (`NeverConvergedWarning`). When a model is trained from scratch, a plateau before the loss
    first falls can look like a valley: start to observe after it.

    Args:
        model: The model to follow.
        n_converge: N_s, the evaluations for which a loss must stay the lowest to be the start.
        n_tolerance: N_e, the evaluations in a row above the threshold that end the average. `math.inf` averages to the
            end of training: the ablation "without overfit".
        tolerance_ratio: r - 1, by how much the threshold exceeds the loss at the start.
        semantics: The definition to follow: "paper" (Algorithm 1), "text" (section 3.2) or "reference" (the published
            code).
        buffers: "copy" keeps the buffers of the last averaged update; "average" averages floating-point buffers too.
        nonfinite: "raise" on a loss that is not finite, or "skip" that evaluation.
        offload: Keep all sums but the open segment in pinned host memory.
        include: Name patterns of the tensors to average, also frozen ones. By default all trainable ones.
        exclude: Name patterns of tensors not to average.
        interval: Average only every `interval`-th update from the start on: the ablation "without dense".
        process_group: The processes that must agree on the observed loss. By default all.
    """

    def __init__(
        self,
        model: nn.Module,
        n_converge: int = 3,
        n_tolerance: float = 6,
        tolerance_ratio: float = 0.3,
        semantics: Semantics = "paper",
        buffers: Buffers = "copy",
        nonfinite: Nonfinite = "raise",
        offload: bool = False,
        include: Patterns = None,
        exclude: Patterns = None,
        interval: int = 1,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__(
            model, buffers=buffers, offload=offload, include=include, exclude=exclude, process_group=process_group
        )
        if not is_whole(interval, 1):
            raise ValueError(f"interval counts updates and must be a whole number of at least 1, got {interval!r}")
        if interval > 1 and semantics == "reference":
            raise ValueError("semantics='reference' is dense by definition, got interval > 1: use 'paper' or 'text'")
        self.interval = int(interval)
        self.dense, self.sparse = interval == 1, interval > 1
        self.valley = LossValley(n_converge, n_tolerance, tolerance_ratio, semantics, nonfinite)
        self._anchor = 0  # the update the interval is counted from: the candidate for the start

    @property
    def max_buffers(self) -> int:
        """Weight-sized buffers this average allocates at worst."""
        return self.valley.max_buffers

    def check_loss(self, loss: float) -> None:
        """Raise if the valley would refuse the loss."""
        self.valley.check(loss)

    def _evaluated(self, loss: float, step: int) -> Status:
        before = self.valley.state_dict()
        self.valley.observe(loss, step)
        plan = self.valley.keep_plan
        try:
            self._apply(plan)
        except BaseException:  # e.g. out of memory: roll the detector back so that it matches the sums
            self.valley.load_state_dict(before)
            raise
        if any(LIVE in terms for terms in plan.sums.values()):
            self._anchor = step
        return self.status

    def _wants(self, step: int | Tensor) -> bool | Tensor:
        return True if self.interval == 1 else (step - self._anchor) % self.interval == 0

    def _result(self) -> list[str]:
        return self.valley.result()

    def _why_empty(self) -> str:
        if not self.step:
            return super()._why_empty()
        return f"with interval={self.interval} the first averaged update is {self.interval}, but this is {self.step}"

    def finished(self) -> bool:
        """Whether the valley has ended."""
        return self.valley.phase is Phase.STOPPED

    def close_segment(self) -> None:
        """Keep the group's segment until the next evaluation."""
        if not self.finished():
            self._carry_over()

    # -- carrying out the valley's plan ---------------------------------------------------------------------
    #
    # The valley decides from the losses and holds no tensor; the plan that it returns is carried out here.

    @torch.no_grad()
    def _apply(self, plan: KeepPlan) -> None:
        """Replace the sums by those of the plan."""
        sums = {name: self._expanded(terms) for name, terms in plan.sums.items()}
        opened = self._expanded(plan.open)
        if self._shared:  # the group clears its segment, so what stays open becomes a kept sum
            self._sums = self._built({**sums, CARRYOVER: opened} if opened else sums)
            return
        # Alone, it stays in the segment. With an interval, a sum or the segment may contain no update, and the segment
        # may have no memory yet.
        joined = [self._sums[name] for name in opened if name != OPEN and self._sums[name].weight]
        if joined and not self._segment.allocated:
            self._segment.allocate(self.tracked.live())  # first: it may run out of memory
        self._sums = self._built(sums, also_used=opened)
        if not plan.open:
            self._segment.clear()
        empty = not self._segment.weight
        for total in joined:
            self._segment.add_(total, 1.0, self.tracked)
        if joined and empty:
            self._segment.take_buffers(max(joined, key=lambda total: total.last), self.tracked)
        if self.finished():
            self._segment.release()

    def _expanded(self, terms: Terms) -> Terms:
        """Write the open segment of a combination, or its mean, as the sums that it consists of."""
        opened = self._open_sums()
        expanded: Terms = {}
        for name, factor in terms.items():
            divisor = sum(part.weight for part in opened.values()) if name == MEAN else 1
            names = opened if name in (OPEN, MEAN) else [name]
            expanded.update(dict.fromkeys(names, factor / divisor))
        return expanded

    def _built(self, sums: Mapping[str, Terms], also_used: Terms | None = None) -> dict[str, WeightSum]:
        """Build sums out of those kept so far, with as little memory as possible.

        A sum that only one of the new sums needs is extended in place, and dropped sums give their memory to new ones.
        All further memory is allocated before anything is changed, so that running out of it leaves the state intact.
        """
        uses = Counter(name for terms in (*sums.values(), also_used or {}) for name in terms)
        extended = {
            name: next((t for t, factor in terms.items() if t in self._sums and uses[t] == 1 and factor == 1), None)
            for name, terms in sums.items()
        }
        dropped = [total for name, total in self._sums.items() if not uses[name]]
        n_new = list(extended.values()).count(None) - len(dropped)
        free = [WeightSum.zeros(self.tracked, self._offload) for _ in range(n_new)]
        free += [total.zeroed() for total in dropped]
        sources = {**self._sums, OPEN: self._segment, LIVE: WeightSum.of_live(self.tracked, self._updates)}
        built = {}
        for name, terms in sums.items():
            reused = extended[name]
            built[name] = free.pop(0) if reused is None else self._sums[reused]
            for term, factor in terms.items():
                if term != reused:
                    built[name].add_(sources[term], factor, self.tracked)
        return built

    # -- status ---------------------------------------------------------------------------------------------

    def _status_at(self, step: int) -> Status:
        spans = self.valley.spans(step)
        if self.interval > 1:
            spans = tuple(taken for span in spans for taken in every_nth(span, self._anchor, self.interval))
        return replace(self.valley.status, spans=spans)

    def _mean(self) -> Mean:
        mean = super()._mean()
        if not self.valley.converged:
            warnings.warn(self._unconverged(), NeverConvergedWarning, stacklevel=_caller_level())
        return mean

    def _unconverged(self) -> str:
        """Say what is averaged instead of a valley."""
        updates = ", ".join(map(str, self.status.spans))
        if not self.observed_step:
            return (
                f"no validation loss was observed, so the average holds all updates, {updates}: "
                f"evaluate during training, and pass each loss to observe"
            )
        reference = self.valley.semantics == "reference"
        rule = "the last segment, as in the published code" if reference else "everything since the best evaluation"
        return (
            f"the validation loss has not converged ({self.valley.status.reason}): the average holds the updates "
            f"{updates}, {rule}. Train longer or evaluate more often"
        )

    def _extra_state(self) -> dict[str, Any]:
        return {"valley": self.valley.state_dict(), "interval": self.interval, "anchor": self._anchor}

    def _check_extra_state(self, header: Mapping[str, Any]) -> None:
        if header["interval"] != self.interval:
            raise ValueError(
                f"a SWAD must resume with its interval: {header['interval']} in the state, {self.interval} here"
            )
        self.valley.check_state(header["valley"])

    def _load_extra_state(self, header: Mapping[str, Any]) -> None:
        self.valley.load_state_dict(header["valley"])
        self._anchor = int(header["anchor"])


def _caller_level() -> int:
    """Return the `stacklevel` of the caller outside this package, whose line a warning shows."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("swad.", "contextlib")):
        level, frame = level + 1, frame.f_back
    return level
