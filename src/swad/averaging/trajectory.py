"""A training as its averages see it: the weights after every update, and a validation loss at some of them.

A *segment* is the updates since the sums were last closed: at an evaluation, or where a fixed window begins or ends.
Every dense average takes the segment's sum as a whole, so that any number of them costs one addition per update. Each
has sums of its own, so memory grows with their number.
An average that is used alone is a trajectory with one member.

An addition does not wait for the device, and a CUDA graph can capture it. It is exact enough because a segment ends at
the next evaluation, which makes two levels: sums inside a segment, segments into a mean.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from swad.averaging import state
from swad.averaging.checks import as_number
from swad.averaging.span_sums import SpanSums
from swad.averaging.spans import FOREVER, Span, Status
from swad.averaging.state import Saved, State, Sums
from swad.averaging.sums import OpenSum, WeightSum
from swad.averaging.tracked import TrackedTensors
from swad.tensors import swapping


class Listener(Saved):
    """Sees every segment before the averages take it. If it fails, no average has changed."""

    @abstractmethod
    def take(self, segment: WeightSum, step: int, loss: float | None) -> None:
        """Take the segment that ends at update `step`: at an evaluation with its loss, or without one."""


class Trajectory(Saved):
    """Follows a model and its optimizer: counts the updates, adds up a segment, hands it to the averages when it ends.

    Args:
        owner: The class that users hold, for errors.
        members: The sums of each average by name, without updates so far.
        listeners: What else takes each segment, by name.
        process_group: The processes that must agree on the observed loss. By default all.
    """

    def __init__(
        self,
        owner: str,
        members: Mapping[str, SpanSums],
        listeners: Mapping[str, Listener] | None = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        self.owner, self.process_group = owner, process_group
        self.members, self.listeners = dict(members), dict(listeners or {})
        self.segment = OpenSum()
        self._updates = 0  # calls so far; `step` subtracts those that a GradScaler skipped
        self._skips: Tensor | None = None  # how many it skipped, still on the device
        self._observed = 0  # the update of the last evaluation
        self._broken = False
        self._hook: RemovableHandle | None = None  # at the optimizer whose steps are the updates
        self._sort()
        self._unused = {part: saved.header() for part, saved in self._parts().items()}

    def _sort(self) -> None:
        """Find out who shares the segment, and where a window begins or ends before the next evaluation."""
        self._sharing = [member for member in self.members.values() if member.own is None]
        self._separate = [member for member in self.members.values() if member.own is not None]
        edges = {edge for member in self._sharing for edge in _edges(member)}
        self._edges = {edge for edge in edges if self._updates < edge < FOREVER}
        self._max_segment = min((member.rule.max_segment for member in self._sharing), default=FOREVER)

    @property
    def tracked(self) -> TrackedTensors:  # type: ignore[override]
        """The tensors whose sum is the segment."""
        return [*self._sharing, *self.listeners.values(), *self._separate][0].tracked

    @property
    def step(self) -> int:
        """Updates so far."""
        self._resolve_skips()
        return self._updates

    @property
    def known_step(self) -> int:
        """Updates so far if that is known on the host, else those at the last evaluation."""
        return self._updates if self._skips is None else self._observed

    @property
    def observed_step(self) -> int:
        """The update of the last evaluation."""
        return self._observed

    @property
    def should_stop(self) -> bool:
        """Whether nothing would change any more."""
        finished = (member.rule.finished(self.known_step) for member in self.members.values())
        return not self.listeners and all(finished)

    # -- updates ------------------------------------------------------------------------------------------

    def attach(self, optimizer: torch.optim.Optimizer) -> RemovableHandle:
        """Take an update after every step of an optimizer; see `Averager.attach`."""
        if self.is_attached:
            raise RuntimeError(
                "this average is already attached to an optimizer: call .remove() on that handle before attaching again"
            )
        self.require_same_modules()
        while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
            optimizer = inner  # accelerate and others wrap optimizers, and only the hooks of the inner one fire
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(
                f"attach needs a torch optimizer, got a {type(optimizer).__name__}: "
                f"pass the optimizer that trains the model"
            )
        self.tracked.live()  # looks tensors up again that were replaced, e.g. by load_state_dict(assign=True)
        stepped = {id(param) for group in optimizer.param_groups for param in group["params"]}
        if not any(id(tensor) in stepped for tensor in self.tracked.averaged.values()):
            raise ValueError(
                "the optimizer steps none of the averaged parameters: attach the one that trains the model"
            )

        def hook(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            # `found_inf` exists only while a GradScaler steps an optimizer that unscales by itself (a fused one).
            self.take_update(None, getattr(optimizer, "found_inf", None))

        self._hook = optimizer.register_step_post_hook(hook)
        return self._hook

    @property
    def is_attached(self) -> bool:
        """Whether an optimizer's steps are the updates."""
        return self._hook is not None and self._hook.id in (self._hook.hooks_dict_ref() or ())

    @torch.no_grad()
    def take_update(self, model: nn.Module | None, skipped: Tensor | None = None) -> None:
        """Take the weights after a step; `skipped`, on the device, is positive where a GradScaler skipped it."""
        self._require_intact()
        live = self.tracked.live(model)
        self._require_live("update_parameters")
        capturing = live[0].is_cuda and torch.cuda.is_current_stream_capturing()
        if capturing:
            self._require_capturable(skipped)
        if skipped is not None and self._edges:
            self._separate_windows()
        separate = [member for member in self._separate if not member.rule.finished(self.known_step)]
        # A graph adds at every replay, also when no average needs the segment any more.
        adds = self.segment.captured or self._is_needed()
        self._updates += not capturing
        keep = self._count_skip(skipped, live[0].device)
        number = self._updates + capturing  # a graph holds updates to come, none of which is the first
        step = number if self._skips is None else number - self._skips
        for member in separate:
            if not capturing or member.rule.capturable:
                member.take(member.tracked.live(model), step, keep)
        if adds:
            self.segment.captured |= capturing
            self.segment.add_live(live, keep)
        if not capturing:
            self._close_at_edge()

    def take_replays(self, n: int) -> None:
        """Count `n` replays of a CUDA graph that captured an update; see `Averager.count_replays`."""
        if n < 1:
            raise ValueError(f"the number of replays must be at least 1, got {n}")
        separate = [m for m in self._separate if not m.rule.capturable and not m.rule.finished(self.known_step)]
        for step in range(self._updates + 1, self._updates + n):
            if step in self._edges or any(member.rule.takes(step) for member in separate):
                raise ValueError(
                    f"a count of replays must end at update {step}, where an average takes the weights or ends a sum; "
                    f"got {n} replays after update {self._updates}: count up to it first"
                )
        self._updates += n
        with torch.no_grad():
            for member in separate:
                member.take(member.tracked.live(), self._updates, None)
        self._close_at_edge()  # now: the next replay adds before it is counted

    @torch.no_grad()
    def take_segment(self, total: Mapping[str, Tensor], n: int) -> None:
        """Take the sum of the weights after the next `n` updates at once, from a trajectory that was stored.

        The model must hold the weights and buffers of the last of them.

        Args:
            total: The sum by the name of the averaged tensor.
            n: The number of updates.
        """
        self._require_intact()
        if self._separate or self._edges:
            raise ValueError(
                "a stored segment must be averaged as a whole, which averages with an interval or a window cannot do"
            )
        missing = [name for name in self.tracked.averaged if name not in total]
        if missing:
            raise ValueError(f"the segment must hold every averaged tensor, but it lacks {', '.join(missing[:3])}")
        if self._updates > self._observed:
            raise ValueError("the previous segment is still open: call observe after each stored segment")
        live = self.tracked.live()
        self.segment.add_live([total[name].to(t) for name, t in zip(self.tracked.averaged, live, strict=True)])
        self._updates += n

    def _is_needed(self) -> bool:
        """Whether someone takes the segment."""
        return bool(self.listeners) or not all(member.rule.finished(self.known_step) for member in self._sharing)

    def _separate_windows(self) -> None:
        """Give windows a sum of their own, because from now on only the device knows the number of an update.

        A shared segment would have to end where a window begins or ends, and finding out would wait for the device.
        """
        step = self.step
        for member in self._sharing:
            if self._edges & set(_edges(member)):
                member.separate(self.read_segment(), step)
        self._sort()

    # -- evaluations --------------------------------------------------------------------------------------

    def take_loss(self, loss: float | Tensor) -> dict[str, Status]:
        """Take the live model's validation loss and return every average's status; see `Average.observe`."""
        self._require_intact()
        self._require_live("observe")
        step = self.step
        if step <= self._observed:
            raise RuntimeError(
                f"observe needs an update since its last call, which was at update {self._observed}: "
                f"call update_parameters after every optimizer step, and observe once per evaluation"
            )
        loss = self._agreed(as_number(loss))
        self.require_same_modules()
        for member in self.members.values():  # check all before the first one changes
            member.tracked.require_frozen()
            member.rule.check(loss)
        for listener in self.listeners.values():
            listener.take(self.read_segment(), step, loss)
        self._broken = True  # until all have closed their sums
        for member in self.members.values():
            member.rule.observe(loss, step)
        for member in self._separate:
            if not member.stays_open(self.segment, step):
                member.close(self.segment, step)
        if self.listeners or not all(member.stays_open(self.segment, step) for member in self._sharing):
            self._close(step)
        self._observed, self._broken = step, False
        self._sort()
        return {name: member.rule.status_at(step) for name, member in self.members.items()}

    def read_segment(self) -> WeightSum:
        """Return the open segment as a sum to read from."""
        self.segment.last = self.step
        self.segment.weight = self.segment.last - self.segment.first + 1 if self.segment.values else 0
        return self.segment

    def _close(self, step: int) -> None:
        segment = self.read_segment()
        for member in self._sharing:
            member.close(segment, step)
        self.segment.clear(step + 1)
        if not self._is_needed():
            self.segment.release()

    def _close_at_edge(self) -> None:
        """End the segment at an update where a window begins or ends, or before it gets too long for float32."""
        long = self._skips is None and self._updates - self.segment.first + 1 >= self._max_segment
        if long or self._updates in self._edges:
            for listener in self.listeners.values():
                listener.take(self.read_segment(), self._updates, None)
            self._close(self._updates)

    def _agreed(self, loss: float) -> float:
        """Return the loss if every rank has the same one; ranks that decide differently would average differently."""
        processes = self.process_group
        if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size(processes) == 1:
            return loss
        on_cpu = "gloo" in dist.get_backend(processes)
        device = torch.device("cpu") if on_cpu else self.tracked.live()[0].device
        key = loss if math.isfinite(loss) else math.inf  # a maximum over nan could be anything
        bounds = torch.tensor([key, -key], dtype=torch.float64, device=device)
        dist.all_reduce(bounds, dist.ReduceOp.MAX, group=processes)
        high, low = bounds[0].item(), -bounds[1].item()
        if high != low:
            raise ValueError(
                f"every rank must observe the same validation loss, got {low:.6g} to {high:.6g}: "
                f"all_reduce it before observe (Lightning: self.log(..., sync_dist=True))"
            )
        return loss

    # -- steps that a GradScaler may skip, and checks -----------------------------------------------------

    def _count_skip(self, skipped: Tensor | None, device: torch.device) -> Tensor | None:
        """Count a step that may have been skipped; return 0 if it was, else 1, both on the device."""
        if skipped is None:
            return None if self._skips is None else torch.ones((), device=device)
        skip = (skipped > 0).to(torch.float32).reshape(())
        if self._skips is None:
            self._skips = torch.zeros((), dtype=torch.int64, device=skip.device)
        self._skips += skip.to(torch.int64)
        return 1 - skip

    def _resolve_skips(self) -> None:
        """Read how many steps were skipped. Waits for the device."""
        if self._skips is not None:
            self._updates -= int(self._skips)
            self._skips = None
            for member in self._separate:
                if member.own is not None:
                    member.own.resolve_skips()

    def _require_capturable(self, skipped: Tensor | None) -> None:
        if skipped is not None:
            raise RuntimeError("a CUDA graph cannot count steps that a GradScaler may skip: update outside the graph")
        if not self._updates:
            raise RuntimeError("a CUDA graph needs allocated buffers: make one update before capturing")

    def _require_intact(self) -> None:
        if self._broken:
            raise RuntimeError("an evaluation failed after some averages had taken it: load the last state_dict")

    def _require_live(self, method: str) -> None:
        if swapping.is_swapped(self.tracked.model):
            raise RuntimeError(
                f"{method} needs the live weights, but the model holds an average: leave the average_parameters block"
            )

    def require_same_modules(self) -> None:
        """Raise if a submodule was replaced, added or removed since the model was followed."""
        followed = [part.tracked for part in (*self.members.values(), *self.listeners.values())]
        for tracked in {id(tracked): tracked for tracked in followed}.values():
            tracked.require_same_modules()

    # -- state --------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Drop all sums and count from 0; see `Averager.reset`."""
        if self.listeners:
            raise RuntimeError("a group with listeners cannot be reset, as they keep what they took: build a new one")
        for part, saved in self._parts().items():
            saved.load(self._unused[part], {}, 0)
        self._broken = False
        self._sort()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_hook": None}  # a copy or a pickle follows no optimizer

    def header(self) -> dict[str, Any]:
        """Return the counts."""
        return {"updates": self.step, "observed": self._observed}

    def sums(self) -> dict[str, WeightSum]:
        """Return the segment."""
        return {"segment": self.read_segment()} if self.segment.values else {}

    def load(self, header: Mapping[str, Any], sums: Mapping[str, WeightSum], step: int) -> None:
        """Continue from the counts and the segment."""
        self._updates, self._observed, self._skips = step, int(header["observed"]), None
        self.segment.clear(step + 1)
        if "segment" in sums:
            self.segment.load(sums["segment"])

    def save(self, clone: bool) -> State:
        """Return the state of the trajectory and all its parts."""
        self._require_intact()
        return state.pack(self._parts(), clone)

    def resume(self, saved: Mapping[str, Any]) -> None:
        """Continue exactly where `save` was called, with the same averages and listeners by name."""
        parts = self._parts()
        heads = state.read_header(saved, self.owner, parts)
        if set(heads) != set(parts):
            raise ValueError(
                f"a group must resume with the averages and listeners it was saved with: "
                f"{_listed(heads)} in the state, {_listed(parts)} here"
            )
        self._load(heads, state.read_sums(heads, saved, parts))

    def branch(self, saved: Mapping[str, Any]) -> None:
        """Continue the trajectory of another group; see `AverageGroup.load_branch`."""
        parts = self._parts()
        heads = state.read_header(saved, self.owner, parts)
        updates = int(heads[state.TRAJECTORY]["updates"])
        for name, member in self.members.items():
            first = min((span.first for span in member.rule.needed()), default=1)
            if state.average_part(name) not in heads and first <= updates:
                raise ValueError(
                    f"{name} averages updates before {updates}, where this trajectory branches off: "
                    f"average it from the start, or use a window that begins there"
                )
        self._load(heads, state.read_sums(heads, saved, parts))
        self._close(self._updates)  # what follows belongs to the branch

    def prepare_to_load(self, saved: Mapping[str, Any]) -> State:
        """Allocate the tensors that a header describes and return a state to read them into."""
        parts = self._parts()
        heads = state.read_header(saved, self.owner, parts)
        return {"header": saved["header"], **state.allocate(heads, parts)}

    def _parts(self) -> dict[str, Saved]:
        averages = {state.average_part(name): member for name, member in self.members.items()}
        listeners = {f"listener {name}": listener for name, listener in self.listeners.items()}
        return {state.TRAJECTORY: self, **averages, **listeners}

    def _load(self, heads: Mapping[str, Any], sums: Sums) -> None:
        # All sums have been read before the first part changes, so that an error leaves all of them intact.
        for part, saved in self._parts().items():
            if part in sums:
                saved.load(heads[part], sums[part], int(heads[state.TRAJECTORY]["updates"]))
        self._broken = False
        self._sort()


def _edges(member: SpanSums) -> list[int]:
    """Return the updates after which a needed span begins or ends."""
    spans: tuple[Span, ...] = member.rule.needed()
    return [edge for span in spans for edge in (span.first - 1, span.last)]


def _listed(parts: Mapping[str, Any]) -> str:
    return ", ".join(part for part in parts if part != state.TRAJECTORY) or "none"
