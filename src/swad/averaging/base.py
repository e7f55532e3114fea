"""The base class of all averages of weights along a trajectory.

Every average consists of float32 sums of the weights over stretches of the trajectory, with their total weights. The
open sum, the *segment*, takes one foreach addition per update: no host synchronization, and a CUDA graph can capture
it. It is exact enough because a segment ends at the next evaluation, which makes two levels: sums inside a segment,
segments into a mean. What happens to the sums at an evaluation is up to each average.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from swad.averaging import tensors
from swad.averaging.averager import STATE_VERSION, Averager, read_header, require_unskipped
from swad.averaging.mean import Mean
from swad.averaging.semantics import OPEN
from swad.averaging.sums import FusedUpdate, Segment, WeightSum
from swad.averaging.tensors import Buffers, Patterns, TrackedTensors
from swad.averaging.valley import Status, as_number

CARRYOVER = "carryover"
"""The sum of the part of an open segment that the shared segment of a group no longer has."""


class Average(Averager):
    """The common part of all averages: following a model's tensors, swapping, copying, hooks and exact resume.

    A subclass defines which updates it takes (`_wants`), what it does with a segment at an evaluation (`_evaluated`),
    and which sums its result consists of (`_result`).

    Args:
        model: The model to follow. Build the average after FSDP2 has sharded it.
        buffers: "copy" keeps the buffers of the last averaged update; "average" averages floating-point buffers too.
        offload: Keep all sums but the open segment in pinned host memory.
        include: Name patterns of the tensors to average (shell style), also frozen ones. By default all trainable ones.
        exclude: Name patterns of tensors not to average.
        process_group: The processes that must agree on the observed loss. By default all.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        buffers: Buffers = "copy",
        offload: bool = False,
        include: Patterns = None,
        exclude: Patterns = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        self.tracked = TrackedTensors(model, buffers, include, exclude)
        self._offload = offload
        self._process_group = process_group
        self._sums: dict[str, WeightSum] = {}
        self._resolve_group: Callable[[], None] | None = None  # set where the segment is shared with a group

    # -- during training ----------------------------------------------------------------------------------

    def count_replays(self, n: int = 1) -> None:
        """Count replays of a CUDA graph that captured `update_parameters`.

        Args:
            n: How many replays were made since the last count.
        """
        self._require_no_group("count_replays")
        self.take_replays(n)

    def observe(self, loss: float | Tensor) -> Status:
        """Take the live model's validation loss after an evaluation and return the new status.

        With several processes every rank must call it, with the same loss; the ranks compare it.

        Args:
            loss: One number, not negative: the mean over the validation examples, with the live weights and not with
                the average.
        """
        self._require_no_group("observe")
        self.tracked.require_same_modules()
        self.tracked.require_frozen()
        return self.take_loss(self.agreed_loss(as_number(loss)))

    @property
    def observed_step(self) -> int:
        """The update of the last evaluation."""
        return self._observed

    @property
    def status(self) -> Status:
        """The phase of the trajectory, and what is averaged if training ends now."""
        return self._status_at(self.step)

    def __repr__(self) -> str:
        # Reading a skipped step's count waits for the device: until it is known, show the last evaluation.
        pending = self._skips is not None or not self._segment.count_is_known
        step = self._observed if pending else self._updates
        status = self._status_at(step)
        fields = {
            "phase": status.phase,
            "step": step,
            "start_step": status.start_step,
            "end_step": status.end_step,
            "n_averaged": status.n_averaged,
        }
        if status.threshold is not None:
            fields["threshold"] = f"{status.threshold:.4g}"
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in fields.items())})"

    # -- using the average --------------------------------------------------------------------------------

    def copy_to(self, model: nn.Module | None = None) -> None:
        """Copy the average, as if training ended now, into `model`. The state of the average does not change.

        The model's weights are lost. To evaluate the average and continue training, use `average_parameters`.

        Args:
            model: The model to write to. By default the one that is followed.
        """
        self.tracked.require_same_modules()
        target = self._target(model)
        self._mean().copy_to(target)

    @contextmanager
    def average_parameters(self, model: nn.Module | None = None) -> Iterator[nn.Module]:
        """Swap the average into `model` for the block, and restore the live weights after it, whatever happens.

        Args:
            model: The model to write to. By default the one that is followed.
        """
        self.tracked.require_same_modules()
        target = self._target(model)
        owner = target.model

        def written() -> dict[str, Tensor]:
            # Looked up each time: moving the model in the block replaces its buffers, and a forward may gather shards.
            tensors.reshard(owner)
            excluded = {} if target is self.tracked else target.live_excluded()
            return {
                **dict(zip(target.averaged, target.live(), strict=True)),
                **dict(zip(target.buffers, target.held_buffers(), strict=True)),
                **{name: tensors.local(tensor) for name, tensor in excluded.items()},
            }

        mean = self._mean()
        with tensors.swapped(owner, written):
            mean.copy_to(target)
            yield owner if model is None else model

    def averaged_state(self) -> dict[str, Tensor]:
        """Return the average as if training ended now: a state dict of new tensors in the model's dtypes.

        It contains frozen and excluded parameters, the buffers and the extra state of modules too, so that it loads
        strictly.
        """
        self.tracked.require_same_modules()
        return self._mean().state()

    # -- resume -------------------------------------------------------------------------------------------

    def state_dict(self, clone: bool = True) -> dict[str, Any]:
        """Return everything needed to continue exactly from here: a JSON header and named tensors.

        It holds only tensors, strings and dicts, so `torch.load(weights_only=True)` reads it back, and distributed
        checkpoints reshard it (see `swad.averaging.distributed_checkpoint`).

        Args:
            clone: Copy the tensors, so that later updates do not change the state. False saves memory where the
                state is written to disk at once.
        """
        self._require_no_group("state_dict")
        return self.own_state(clone)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken, with the same settings and a model of the same names.

        Args:
            state: What `state_dict` returned.
        """
        self._require_no_group("load_state_dict")
        self.restore(*self.read_state(state))

    def headers(self) -> dict[str, Any]:
        """Return a state with an empty header, for checkpoints that are read in place."""
        return {"header": ""}

    def prepare_to_load(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Allocate the tensors that the state's header describes and return a state to read them into."""
        header = self.check_state(state)
        sums = {
            name: WeightSum.empty(head, self.tracked, name != OPEN and self._offload)
            for name, head in header["sums"].items()
        }
        allocated = {name: total.named_tensors(self.tracked) for name, total in sums.items()}
        return {"header": state["header"], "tensors": allocated}

    @property
    def n_buffers(self) -> int:
        """Weight-sized buffers allocated now, the open segment included."""
        return len(self._sums) + (not self._shared and self._segment.allocated)

    # -- the interface between a group and its members -----------------------------------------------------
    #
    # `swad.averaging.group` uses these and nothing else of an average. Members that are `dense` share the group's
    # segment; the others are updated by it and keep a segment of their own.

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
        header = self.check_state(state)
        sums = {
            name: WeightSum.from_state(head, state["tensors"][name], self.tracked, name != OPEN and self._offload)
            for name, head in header["sums"].items()
        }
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
                f"update {missed[0]} must be counted alone, got {n} replays from {self._updates}: count up to it first"
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

    def check_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the header of a state, or raise if the state belongs to something else."""
        name = type(self).__name__
        header = read_header(state, name)
        if header.get("class") != name:
            owner = header.get("class", "AverageGroup")
            raise ValueError(f"this state belongs to {owner}, not to {name}: load it into an average of that class")
        expected = {"updates", "observed", "sums", *self._extra_state_names}
        missing = sorted(expected - header.keys())
        if "tensors" in state:  # a distributed checkpoint reads the headers first
            missing += [f"the sum {total}" for total in header.get("sums", ()) if total not in state["tensors"]]
        if missing:
            raise ValueError(
                f"{name} loads what its state_dict() returned, but this state lacks {', '.join(missing)}: "
                f"load the whole state"
            )
        if header.get("shared") and not self._shared:
            raise ValueError(
                "this state is that of a member of an AverageGroup, without the segment that its members share: "
                "load the state of the whole group into a group"
            )
        self._check_extra_state(header)
        return header

    def require_live(self, method: str) -> None:
        """Raise if the model holds an average right now."""
        if tensors.is_swapped(self.tracked.model):
            raise RuntimeError(
                f"{method} needs the live weights, but the model holds an average: leave the average_parameters block"
            )

    # -- for subclasses -----------------------------------------------------------------------------------

    def _wants(self, step: int | Tensor) -> bool | Tensor:
        """Whether the weights after update `step` are averaged; must work for numbers and for tensors."""
        return True

    def _status_at(self, step: int) -> Status:
        """Return the status after `step` updates, without waiting for the device."""
        raise NotImplementedError

    def _evaluated(self, loss: float, step: int) -> Status:
        raise NotImplementedError

    def _result(self) -> list[str]:
        raise NotImplementedError

    def _why_empty(self) -> str:
        """Say why no update is averaged yet, and what to do."""
        return "call update_parameters after an optimizer step"

    _extra_state_names: tuple[str, ...] = ()
    """The keys of `_extra_state`, which a state must have."""

    def _extra_state(self) -> dict[str, Any]:
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

    # -- internals ----------------------------------------------------------------------------------------

    def _resolve_skips(self) -> None:
        if self._resolve_group is not None:
            self._resolve_group()
        else:
            super()._resolve_skips()

    def _mean(self) -> Mean:
        self._resolve_skips()
        opened = list(self._open_sums().values())
        sums = [part for name in self._result() for part in (opened if name == OPEN else [self._sums[name]])]
        if not sum(part.weight for part in sums) > 0:
            raise RuntimeError(f"there is nothing to average yet: {self._why_empty()}")
        return Mean(sums, self.tracked)

    def _target(self, model: nn.Module | None) -> TrackedTensors:
        if model is None or tensors.unwrap(model) is self.tracked.model:
            return self.tracked
        return self.tracked.follow_copy(model)
