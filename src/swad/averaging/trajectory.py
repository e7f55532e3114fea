"""A training as its averages see it: the weights after every update, and a validation loss at some of them.

A *segment* is the stretch of updates since the sums were last closed: at an evaluation, or where a fixed window begins
or ends. Every dense average takes the segment's sum as a whole, so that any number of them costs one addition per
update. An average that is used alone is a trajectory with one member.

An addition does not wait for the device, and a CUDA graph can capture it. It is exact enough because a segment ends at
the next evaluation, which makes two levels: sums inside a segment, segments into a mean.
"""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from swad.averaging.pieces import Pieces, Saved
from swad.averaging.spans import FOREVER, Status
from swad.averaging.sums import Segment, WeightSum
from swad.averaging.tracked import TrackedTensors
from swad.averaging.valley import as_number
from swad.tensors.swapping import is_swapped

STATE_VERSION = 2
ALONE = ""
"""The name of the member of a trajectory that has only one."""
_PARTS = ("averages", "listeners")


class Listener(Saved):
    """Sees every segment before the averages take it. If it fails, no average has changed."""

    @abstractmethod
    def take(self, segment: WeightSum, step: int, loss: float | None) -> None:
        """Take the segment that ends at update `step`: at an evaluation with its loss, or without one."""


class Trajectory:
    """Counts the updates, adds up the weights of the open segment, and hands it to the averages when it ends.

    Args:
        owner: The class that a state belongs to, for errors.
        averages: The sums of each average by name, without updates so far.
        listeners: What else takes each segment, by name.
        process_group: The processes that must agree on the observed loss. By default all.
    """

    def __init__(
        self,
        owner: str,
        averages: Mapping[str, Pieces],
        listeners: Mapping[str, Listener] | None = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        self.owner, self.process_group = owner, process_group
        self._averages, self._listeners = dict(averages), dict(listeners or {})
        self._segment = Segment()
        self._updates = 0  # calls so far; `step` subtracts those that a GradScaler skipped
        self._skips: Tensor | None = None  # how many it skipped, still on the device
        self._observed = 0  # the update of the last evaluation
        self._broken = False
        self._sort()

    def _sort(self) -> None:
        """Find out who shares the segment, and where a window begins or ends before the next evaluation."""
        self._dense = [average for average in self._averages.values() if average.own is None]
        self._others = [average for average in self._averages.values() if average.own is not None]
        stretches = [stretch for average in self._dense for stretch in average.rule.stretches()]
        edges = {edge for stretch in stretches for edge in (stretch.first - 1, stretch.last)}
        self._edges = {edge for edge in edges if self._updates < edge < FOREVER}

    @property
    def tracked(self) -> TrackedTensors:
        """The tensors whose sum is the segment."""
        return [*self._dense, *self._listeners.values(), *self._others][0].tracked

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
        finished = (average.rule.finished(self.known_step) for average in self._averages.values())
        return not self._listeners and all(finished)

    @property
    def n_buffers(self) -> int:
        """Weight-sized buffers allocated now."""
        return sum(average.n_buffers for average in self._averages.values()) + bool(self._segment.values)

    @property
    def next_edge(self) -> int | None:
        """The next update at which a fixed window begins or ends."""
        return min((edge for edge in self._edges if edge > self._updates), default=None)

    # -- updates ------------------------------------------------------------------------------------------

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
        others = [average for average in self._others if not average.rule.finished(self.known_step)]
        adds = self._segment.captured or self._is_needed()
        self._updates += not capturing
        keep = self._count_skip(skipped, live[0].device)
        number = self._updates + capturing  # a graph holds updates to come, none of which is the first
        step = number if self._skips is None else number - self._skips
        for average in others:
            if not capturing or average.capturable:
                average.take(average.tracked.live(model), step, keep)
        if adds:
            self._segment.captured |= capturing
            self._segment.add_live(live, keep)
        if not capturing:
            self._close_at_edge()

    def take_replays(self, n: int) -> None:
        """Count `n` replays of a CUDA graph that captured an update; see `Averager.count_replays`."""
        if n < 1:
            raise ValueError(f"the number of replays must be at least 1, got {n}")
        sparse = [a for a in self._others if not a.capturable and not a.rule.finished(self.known_step)]
        for step in range(self._updates + 1, self._updates + n):
            if step in self._edges or any(average.rule.takes(step) for average in sparse):
                raise ValueError(
                    f"a count of replays must end at update {step}, where an average takes the weights or ends a sum; "
                    f"got {n} replays after update {self._updates}: count up to it first"
                )
        self._updates += n
        with torch.no_grad():
            for average in sparse:
                average.take(average.tracked.live(), self._updates, None)
        self._close_at_edge()  # now: the next replay adds before it is counted

    @torch.no_grad()
    def take_segment(self, total: Mapping[str, Tensor], n: int) -> None:
        """Take the sum of the weights after the next `n` updates at once, from a trajectory that was stored.

        The model must hold the weights and buffers of the last of them. See `swad.testbed.averages.segment_log.replay`.

        Args:
            total: The sum by the name of the averaged tensor.
            n: The number of updates.
        """
        self._require_intact()
        if self._others or self._edges:
            raise ValueError(
                "a stored segment must be averaged as a whole, which averages with an interval or a window cannot do"
            )
        missing = [name for name in self.tracked.averaged if name not in total]
        if missing:
            raise ValueError(f"the segment must hold every averaged tensor, but it lacks {', '.join(missing[:3])}")
        if self._updates > self._observed:
            raise ValueError("the previous segment is still open: call observe after each stored segment")
        live = self.tracked.live()
        self._segment.add_live([total[name].to(t) for name, t in zip(self.tracked.averaged, live, strict=True)])
        self._updates += n

    def _is_needed(self) -> bool:
        """Whether someone takes the segment."""
        return bool(self._listeners) or not all(average.rule.finished(self.known_step) for average in self._dense)

    def _separate_windows(self) -> None:
        """Give windows a segment of their own, because from now on only the device knows the number of an update.

        A shared segment would have to end where a window begins or ends, and finding out would wait for the device.
        """
        step = self.step
        for average in self._dense:
            ends = {end for stretch in average.rule.stretches() for end in (stretch.first - 1, stretch.last)}
            if ends & self._edges:
                average.separate(self.open_segment(), step)
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
        for average in self._averages.values():  # check all before the first one changes
            average.tracked.require_frozen()
            average.rule.check(loss)
        for listener in self._listeners.values():
            listener.take(self.open_segment(), step, loss)
        self._broken = True  # until all have closed their sums
        for average in self._averages.values():
            average.rule.observe(loss, step)
        for average in self._others:
            if not average.stays_open(self._segment, step):
                average.close(self._segment, step)
        if self._listeners or not all(average.stays_open(self._segment, step) for average in self._dense):
            self._close(step)
        self._observed, self._broken = step, False
        self._sort()
        return {name: average.rule.status_at(step) for name, average in self._averages.items()}

    def open_segment(self) -> WeightSum:
        """Return the open segment as a sum to read from."""
        self._segment.last = self.step
        self._segment.weight = self._segment.last - self._segment.first + 1 if self._segment.values else 0
        return self._segment

    def _close(self, step: int) -> None:
        segment = self.open_segment()
        for average in self._dense:
            average.close(segment, step)
        self._segment.clear(step + 1)
        if not self._is_needed():
            self._segment.release()

    def _close_at_edge(self) -> None:
        """End the segment at an update where a window begins or ends, or before it gets too long for float32."""
        length = self._updates - self._segment.first + 1
        long = self._skips is None and any(length >= average.rule.max_segment for average in self._dense)
        if long or self._updates in self._edges:
            for listener in self._listeners.values():
                listener.take(self.open_segment(), self._updates, None)
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

    # -- resume -------------------------------------------------------------------------------------------

    def save(self, clone: bool = True) -> dict[str, Any]:
        """Return the state: a JSON header, and tensors by what they belong to; see `Averager.state_dict`."""
        self._require_intact()
        header: dict[str, Any] = {"version": STATE_VERSION, "updates": self.step, "observed": self._observed}
        state: dict[str, Any] = {"segment": {}}
        header["segment"] = None
        if self._segment.values:
            header["segment"] = self.open_segment().header()
            state["segment"] = self._segment.tensors(self.tracked, clone)
        for part in _PARTS:
            header[part], state[part] = {}, {}
            for name, saved in self._saved(part).items():
                heads = {key: total.header() for key, total in saved.sums().items()}
                header[part][name] = {**saved.header(), "sums": heads}
                state[part][name] = {key: total.tensors(saved.tracked, clone) for key, total in saved.sums().items()}
        return {"header": json.dumps(header), **state}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `save` was called, with the same averages by name."""
        header = self.read_header(state)
        for part in _PARTS:
            if set(header[part]) != set(self._saved(part)):
                raise ValueError(
                    f"a group must resume with the {part} it was saved with: "
                    f"{', '.join(header[part])} in the state, {', '.join(self._saved(part))} here"
                )
        self._load(header, state)

    def load_branch(self, state: Mapping[str, Any]) -> None:
        """Continue the trajectory of another group; see `AverageGroup.load_branch`."""
        header = self.read_header(state)
        for name, average in self._averages.items():
            first = min((stretch.first for stretch in average.rule.stretches()), default=1)
            if name not in header["averages"] and first <= header["updates"]:
                raise ValueError(
                    f"{name} averages updates before {header['updates']}, where this trajectory branches off: "
                    f"average it from the start, or use a window that begins there"
                )
        self._load(header, state)
        self._close(self._updates)  # what follows belongs to the branch

    def prepare_to_load(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Allocate the tensors that the header describes and return a state to read them into."""
        header = self.read_header(state)

        def allocated(head: Mapping[str, Any], tracked: TrackedTensors, offload: bool) -> Any:
            return WeightSum.allocated(head, tracked, offload).tensors(tracked)

        segment = {} if header["segment"] is None else allocated(header["segment"], self.tracked, False)
        prepared: dict[str, Any] = {"header": state["header"], "segment": segment}
        for part in _PARTS:
            prepared[part] = {
                name: {
                    key: allocated(head, saved.tracked, saved.offload and key != "own")
                    for key, head in header[part][name]["sums"].items()
                }
                for name, saved in self._saved(part).items()
            }
        return prepared

    def read_header(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the header of a state, or raise if it belongs to something else."""
        rule = f"{self.owner} loads what its state_dict() returned"
        if not isinstance(state, Mapping):
            raise TypeError(f"{rule}, got a {type(state).__name__}: load the file first, and pass its content")
        if not isinstance(state.get("header"), str):
            keys = ", ".join(map(str, list(state)[:3])) or "nothing"
            raise ValueError(f"{rule}, got a dict of {keys}: load weights with model.load_state_dict")
        header: dict[str, Any] = json.loads(state["header"])
        if header.get("version") != STATE_VERSION:
            raise ValueError(
                f"this state has version {header.get('version')!r}, expected {STATE_VERSION}: "
                f"load it with the version of swad that wrote it"
            )
        if missing := [key for key in ("updates", "observed", "segment", *_PARTS) if key not in header]:
            raise ValueError(f"{rule}, but this state lacks {missing[0]!r}: load the whole state")
        alone = header["averages"].get(ALONE)
        saved_by = "AverageGroup" if alone is None else alone["class"]
        if saved_by != self.owner:
            raise ValueError(f"this state belongs to {saved_by}, not to {self.owner}: load it into one of that class")
        for part in _PARTS:
            for name, saved in self._saved(part).items():
                if name in header[part]:
                    saved.check(header[part][name], name or self.owner)
        return header

    def _saved(self, part: str) -> Mapping[str, Saved]:
        return self._averages if part == "averages" else self._listeners

    def _load(self, header: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        # Read everything before the first average changes, so that an error leaves all of them intact.
        opened = None
        if header["segment"] is not None and (self._dense or self._listeners):
            opened = self._read(header["segment"], state, ("segment",), self.tracked)
        sums = {
            part: {
                name: {
                    key: self._read(head, state, (part, name, key), saved.tracked, saved.offload and key != "own")
                    for key, head in header[part][name]["sums"].items()
                }
                for name, saved in self._saved(part).items()
                if name in header[part]
            }
            for part in _PARTS
        }
        self._updates, self._observed, self._skips = int(header["updates"]), int(header["observed"]), None
        for part in _PARTS:
            for name in sums[part]:
                self._saved(part)[name].load(header[part][name], sums[part][name], self._updates)
        self._segment.clear(self._updates + 1)
        if opened is not None:
            self._segment.load(opened)
        self._broken = False
        self._sort()

    def _read(
        self,
        head: Mapping[str, Any],
        state: Mapping[str, Any],
        path: tuple[str, ...],
        tracked: TrackedTensors,
        offload: bool = False,
    ) -> WeightSum:
        """Return the sum at a path of a state."""
        saved: Any = state
        for key in path:
            if key not in saved:
                raise ValueError(
                    f"{self.owner} loads what its state_dict() returned, but this state lacks {key!r}: "
                    f"load the whole state"
                )
            saved = saved[key]
        return WeightSum.loaded(head, saved, tracked, offload)

    # -- internals ----------------------------------------------------------------------------------------

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
            for average in self._others:
                if average.own is not None:
                    average.own.resolve()

    def _require_capturable(self, skipped: Tensor | None) -> None:
        if skipped is not None:
            raise RuntimeError("a CUDA graph cannot count steps that a GradScaler may skip: update outside the graph")
        if not self._updates:
            raise RuntimeError("a CUDA graph needs allocated buffers: make one update before capturing")

    def _require_intact(self) -> None:
        if self._broken:
            raise RuntimeError("an evaluation failed after some averages had taken it: load the last state_dict")

    def _require_live(self, method: str) -> None:
        if is_swapped(self.tracked.model):
            raise RuntimeError(
                f"{method} needs the live weights, but the model holds an average: leave the average_parameters block"
            )

    def require_same_modules(self) -> None:
        """Raise if a submodule was replaced, added or removed since the model was followed."""
        followed = [saved.tracked for part in _PARTS for saved in self._saved(part).values()]
        for tracked in {id(tracked): tracked for tracked in followed}.values():
            tracked.require_same_modules()


class Averager:
    """What a user calls during training, of an average and of a group of averages alike."""

    trajectory: Trajectory
    """Counts the updates and keeps the sums; of a member of a group, that of the group."""

    _in_group = False
    _hook: RemovableHandle | None = None  # at the optimizer whose steps are the updates

    def update_parameters(self, model: nn.Module | None = None) -> None:
        """Take the weights after an optimizer step, for the cost of one foreach addition.

        In a CUDA graph capture only the addition is recorded; call `count_replays` once per replay.

        Args:
            model: The model, which may also be wrapped (DDP, `torch.compile`) or another one with the same tensors. By
                default the one followed so far.
        """
        trajectory = self._followed("update_parameters")
        if self._is_attached:
            raise RuntimeError(
                "this average is attached to an optimizer, whose steps it counts: remove the call to update_parameters"
            )
        trajectory.take_update(model)

    def attach(self, optimizer: torch.optim.Optimizer) -> RemovableHandle:
        """Update after every step `optimizer` really makes, until `.remove()` is called on the returned handle.

        Gradient accumulation needs no setting: only steps count. A step that a `GradScaler` skips does not count,
        also with fused optimizers, whose step runs but leaves the weights unchanged.

        Args:
            optimizer: The optimizer that trains the averaged parameters; of several, the one that steps last.
        """
        trajectory = self._followed("attach")
        if self._is_attached:
            raise RuntimeError(
                "this average is already attached to an optimizer: call .remove() on that handle before attaching again"
            )
        trajectory.require_same_modules()
        while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
            optimizer = inner  # accelerate and others wrap optimizers, and only the hooks of the inner one fire
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(
                f"attach needs a torch optimizer, got a {type(optimizer).__name__}: "
                f"pass the optimizer that trains the model"
            )
        trajectory.tracked.live()  # looks tensors up again that were replaced, e.g. by load_state_dict(assign=True)
        stepped = {id(param) for group in optimizer.param_groups for param in group["params"]}
        if not any(id(tensor) in stepped for tensor in trajectory.tracked.averaged.values()):
            raise ValueError(
                "the optimizer steps none of the averaged parameters: attach the one that trains the model"
            )

        def hook(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            # `found_inf` exists only while a GradScaler steps an optimizer that unscales by itself (a fused one).
            trajectory.take_update(None, getattr(optimizer, "found_inf", None))

        self._hook = optimizer.register_step_post_hook(hook)
        return self._hook

    def count_replays(self, n: int = 1) -> None:
        """Count replays of a CUDA graph that captured `update_parameters`.

        Averages that take only some updates are not in the graph: they take the weights here. So `n` must not skip an
        update that they average, nor one at which a fixed window begins or ends.

        Args:
            n: How many replays were made since the last count.
        """
        self._followed("count_replays").take_replays(n)

    @property
    def step(self) -> int:
        """Updates so far."""
        return self.trajectory.step

    def state_dict(self, clone: bool = True) -> dict[str, Any]:
        """Return everything needed to continue exactly from here: a JSON header and named tensors.

        It holds only tensors, strings and dicts, so `torch.load(weights_only=True)` reads it back, and distributed
        checkpoints reshard it (see `swad.averaging.distributed_checkpoint`).

        Args:
            clone: Copy the tensors, so that later updates do not change the state. False saves memory where the
                state is written to disk at once.
        """
        return self._followed("state_dict").save(clone)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken, with the same settings and a model of the same names.

        Args:
            state: What `state_dict` returned.
        """
        self._followed("load_state_dict").load(state)

    @property
    def _is_attached(self) -> bool:
        return self._hook is not None and self._hook.id in (self._hook.hooks_dict_ref() or ())

    def _followed(self, method: str) -> Trajectory:
        """Return the trajectory, or raise if only the group of this average may change it."""
        if self._in_group:
            raise RuntimeError(f"this average is a member of an AverageGroup: call {method} of the group instead")
        return self.trajectory


def member_state(state: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the state of one average out of that of its group, as if it had been alone."""
    header = json.loads(state["header"])
    if name not in header["averages"]:
        raise ValueError(f"the state has no average {name!r}, only {', '.join(header['averages'])}: name one of these")
    header.update(averages={ALONE: header["averages"][name]}, listeners={})
    alone = {ALONE: state["averages"].get(name, {})}
    return {"header": json.dumps(header), "segment": state["segment"], "averages": alone, "listeners": {}}
