"""What every average does with updates, losses and states, alone or as a member of a group.

Every average consists of float32 sums of the weights over stretches of the trajectory, with their total weights. The
open sum, the *segment*, takes one foreach addition per update: no host synchronization, and a CUDA graph can capture
it. It is exact enough because a segment ends at the next evaluation, which makes two levels: sums inside a segment,
segments into a mean. What happens to the sums at an evaluation is up to each average.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from swad.averaging import tensors
from swad.averaging.averager import STATE_VERSION, Averager, read_header, require_unskipped
from swad.averaging.semantics import OPEN
from swad.averaging.sums import FusedUpdate, Segment, WeightSum
from swad.averaging.tensors import TrackedTensors
from swad.averaging.valley import Status

CARRYOVER = "carryover"
"""The sum of the part of an open segment that the shared segment of a group no longer has."""


class Member(Averager):
    """The part of an average that a group uses. `Average` adds what its user calls.

    Members that are `dense` share the group's segment; the others are updated by it and keep a segment of their own.
    """

    def __init__(self, tracked: TrackedTensors, offload: bool, process_group: dist.ProcessGroup | None) -> None:
        super().__init__()
        self.tracked, self._offload, self._process_group = tracked, offload, process_group
        self._sums: dict[str, WeightSum] = {}
        self._resolve_group: Callable[[], None] | None = None  # set where the segment is shared with a group

    dense = True
    """Takes every update of a segment with the same weight, so that the segment's sum is enough."""

    sparse = False
    """Takes only some updates, so it copies their buffers, and a CUDA graph cannot capture it."""

    fusible = False
    """Blends the weights into a mean, which a `FusedUpdate` can do together with the group's addition."""

    writes_files = False
    """Writes files at evaluations, which may fail. A group calls such members first."""

    def join_group(self, model: nn.Module, fused: FusedUpdate | None = None) -> None:
        """Follow the group's model. From now on only the group updates this average."""
        self._in_group = True
        self.tracked.follow(model)
        self._segment.fused = fused

    def share_segment(self, segment: Segment, tracked: TrackedTensors, resolve_skips: Callable[[], None]) -> None:
        """Use the group's segment and its tracked tensors, which the group looks up once for all members.

        Args:
            segment: The group adds to it, counts it, and clears it when all members have taken it.
            tracked: The tensors of the group's model.
            resolve_skips: Makes the group read how many steps a GradScaler skipped, and call `set_step`.
        """
        self._in_group = True
        self._segment, self.tracked, self._resolve_group = segment, tracked, resolve_skips

    @property
    def can_join_group(self) -> bool:
        """Whether the average is in no group, follows no optimizer and has made no update yet."""
        return not self._in_group and not self._attached and not self.step

    def set_step(self, updates: int) -> None:
        """Set the number of updates; the group counts them for members that share its segment."""
        self._updates = updates

    # -- updates and losses ---------------------------------------------------------------------------------

    @torch.no_grad()
    def take_update(self, model: nn.Module | None, skipped: Tensor | None) -> None:
        """Take the weights after a step; `skipped`, on the device, is positive where a GradScaler skipped it."""
        live = self.tracked.live(model)
        self.require_live("update_parameters")
        finished = self.finished()
        capturing = live[0].is_cuda and torch.cuda.is_current_stream_capturing()
        if capturing:
            self._require_capturable(skipped)
            self._segment.captured = True
        else:
            self._updates += 1
        if finished and not self._segment.captured:
            if skipped is not None:
                self._count_skip(skipped)
            return
        if skipped is not None or self._skips is not None:
            skip = self._count_skip(skipped) if skipped is not None else torch.zeros((), device=live[0].device)
            assert self._skips is not None
            wanted = self._wants(self._updates - self._skips)
            self._accumulate(live, (1 - skip) * wanted)
        elif self._wants(self._updates):
            self._accumulate(live, None, counted=not capturing)

    def take_replays(self, n: int) -> None:
        """Count `n` replays of a CUDA graph. A sparse average, which is not in it, takes the weights now."""
        if n < 1:
            raise ValueError(f"the number of replays must be at least 1, got {n}")
        if not self.sparse:
            self._updates += n
            self._segment.last = self._updates
            if self.dense:  # an EMA is a mean already, and its weight is one
                self._segment.count(n)
            return
        missed = [step for step in range(self._updates + 1, self._updates + n) if self._wants(step)]
        if missed:
            raise ValueError(
                f"a count of replays must end at update {missed[0]}, which is averaged; "
                f"got {n} replays after update {self._updates}: count up to it first"
            )
        self._updates += n - 1
        self.take_update(None, skipped=None)

    def take_loss(self, loss: float) -> Status:
        """Take the validation loss, which all ranks agree on, and return the new status."""
        self.require_live("observe")
        self._resolve_skips()
        self._require_new_update()
        status = self._evaluated(loss, self._updates)
        self._observed = self._updates
        return status

    def agreed_loss(self, loss: float) -> float:
        """Return the loss if every rank has the same one; ranks that decide differently would average differently."""
        if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size(self._process_group) == 1:
            return loss
        on_cpu = "gloo" in dist.get_backend(self._process_group)
        device = torch.device("cpu") if on_cpu else self.tracked.live()[0].device
        key = loss if math.isfinite(loss) else math.inf
        bounds = torch.tensor([key, -key], dtype=torch.float64, device=device)
        dist.all_reduce(bounds, dist.ReduceOp.MAX, group=self._process_group)
        high, low = bounds[0].item(), -bounds[1].item()
        if high != low:
            raise ValueError(
                f"every rank must observe the same validation loss, got {low:.6g} to {high:.6g}: "
                f"all_reduce it before observe (Lightning: self.log(..., sync_dist=True))"
            )
        return loss

    def check_loss(self, loss: float) -> None:
        """Raise if the average would refuse the loss."""

    def finished(self) -> bool:
        """Whether the average is complete: no later update can enter it."""
        return False

    def window_edges(self) -> tuple[int, ...]:
        """Return the updates after which the group must close its segment for this average, besides evaluations."""
        return ()

    def close_segment(self) -> None:
        """Take the group's segment, which ends here without an evaluation."""
        raise NotImplementedError

    def require_live(self, method: str) -> None:
        """Raise if the model holds an average right now."""
        if tensors.is_swapped(self.tracked.model):
            raise RuntimeError(
                f"{method} needs the live weights, but the model holds an average: leave the average_parameters block"
            )

    @property
    def n_buffers(self) -> int:
        """Weight-sized buffers allocated now, the open segment included."""
        return len(self._sums) + (not self._shared and self._segment.allocated)

    # -- the state, without a segment that is shared -------------------------------------------------------

    def own_state(self, clone: bool) -> dict[str, Any]:
        """Return the state of this average, without the segment that it shares with its group."""
        self._resolve_skips()
        sums = dict(self._sums)
        if not self._shared and self._segment.allocated:
            sums[OPEN] = self._segment
        header = {
            "version": STATE_VERSION,
            "class": type(self).__name__,
            "updates": self._updates,
            "observed": self._observed,
            "shared": self._shared,
            "sums": {name: total.header() for name, total in sums.items()},
            **self._extra_state(),
        }
        return {
            "header": json.dumps(header),
            "tensors": {name: total.named_tensors(self.tracked, clone) for name, total in sums.items()},
        }

    def read_state(self, state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, WeightSum]]:
        """Return the header and the sums of what `own_state` returned, or raise. Nothing changes."""
        try:
            header = self.check_state(state)
            sums = {
                name: WeightSum.from_state(head, state["tensors"][name], self.tracked, name != OPEN and self._offload)
                for name, head in header["sums"].items()
            }
        except KeyError as error:
            name = type(self).__name__
            raise ValueError(
                f"{name} loads what its state_dict() returned, but this state lacks {error}: load the whole state"
            ) from None
        return header, sums

    def restore(self, header: Mapping[str, Any], sums: dict[str, WeightSum]) -> None:
        """Continue from what `read_state` returned; the group restores the segment."""
        self._load_extra_state(header)
        opened = sums.pop(OPEN, None)
        if not self._shared:
            self._segment.clear()
            if opened is not None:
                self._segment.load(opened)
        self._sums = sums
        self._skips = None
        self._updates, self._observed = int(header["updates"]), int(header["observed"])

    def check_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the header of a state, or raise if the state belongs to something else."""
        name = type(self).__name__
        header = read_header(state, name)
        if header.get("class") != name:
            owner = header.get("class", "AverageGroup")
            raise ValueError(f"this state belongs to {owner}, not to {name}: load it into an average of that class")
        if header.get("shared") and not self._shared:
            raise ValueError(
                "this state is that of a member of an AverageGroup, without the segment that its members share: "
                "load the state of the whole group into a group"
            )
        self._check_extra_state(header)
        return header

    def prepare_to_load(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Allocate the tensors that the state's header describes and return a state to read them into."""
        header = self.check_state(state)
        sums = {
            name: WeightSum.empty(head, self.tracked, name != OPEN and self._offload)
            for name, head in header["sums"].items()
        }
        allocated = {name: total.named_tensors(self.tracked) for name, total in sums.items()}
        return {"header": state["header"], "tensors": allocated}

    # -- for subclasses -----------------------------------------------------------------------------------

    def _wants(self, step: int | Tensor) -> bool | Tensor:
        """Whether the weights after update `step` are averaged; must work for numbers and for tensors."""
        return True

    def _evaluated(self, loss: float, step: int) -> Status:
        """Do with the sums and the segment what this loss after update `step` asks for, and return the new status."""
        raise NotImplementedError

    def _status_at(self, step: int) -> Status:
        """Return the status after `step` updates, without waiting for the device."""
        raise NotImplementedError

    def _result(self) -> list[str]:
        """Return the names of the sums that are the average if training ends now; `OPEN` is the segment."""
        raise NotImplementedError

    def _why_empty(self) -> str:
        """Say why no update is averaged yet, and what to do."""
        return "call update_parameters after an optimizer step"

    def _extra_state(self) -> dict[str, Any]:
        """Return what the header of a state has besides the sums and counts, as plain values."""
        return {}

    def _check_extra_state(self, header: Mapping[str, Any]) -> None:
        """Raise if `_load_extra_state` cannot load this, e.g. because it was saved with other settings."""

    def _load_extra_state(self, header: Mapping[str, Any]) -> None:
        pass

    def _accumulate(self, live: list[Tensor], weight: Tensor | None, counted: bool = True) -> None:
        self._segment.last = self._updates
        self._segment.add_live(live, weight, counted=counted)
        if self._must_keep_buffers(weight):
            self._segment.keep_buffers(self.tracked, weight)
        else:
            self._segment.use_live_buffers()

    def _must_keep_buffers(self, weight: Tensor | None) -> bool:
        """Whether a later update may be left out, so that the buffers of this one must be copied."""
        return self.sparse

    def _require_capturable(self, skipped: Tensor | None) -> None:
        if self.sparse:
            raise RuntimeError(f"a CUDA graph cannot skip updates: update this {type(self).__name__} outside the graph")
        require_unskipped(skipped)
        if not self._segment.allocated or (not self.dense and not self._segment.weight):
            raise RuntimeError("a CUDA graph needs allocated buffers: make one update before capturing")

    # -- internals ----------------------------------------------------------------------------------------

    @property
    def _shared(self) -> bool:
        return self._resolve_group is not None

    def _open_sums(self) -> dict[str, WeightSum]:
        """Return the sums that together are the open segment of this average, by name."""
        both = {CARRYOVER: self._sums.get(CARRYOVER), OPEN: self._segment}
        return {name: total for name, total in both.items() if total is not None and total.weight}

    def _carry_over(self) -> None:
        """Keep a shared segment that the group closes, for an average whose own segment continues."""
        if self._segment.weight:
            if CARRYOVER not in self._sums:
                self._sums[CARRYOVER] = WeightSum.zeros(self.tracked, self._offload)
            self._sums[CARRYOVER].add_(self._segment, 1.0, self.tracked)

    def _resolve_skips(self) -> None:
        if self._resolve_group is not None:
            self._resolve_group()
        else:
            super()._resolve_skips()
