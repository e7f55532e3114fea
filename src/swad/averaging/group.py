"""A group of averages of one trajectory, for the cost of one.

The group keeps one running sum of the current segment, and every `dense` member takes that sum, as a whole, where the
segment ends: at evaluations and where a fixed window begins or ends. Of an average the group uses only the public part
of `Member`; all other state is the average's own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from swad.averaging.averager import STATE_VERSION, Averager, read_header, require_unskipped
from swad.averaging.base import Average
from swad.averaging.member import Member
from swad.averaging.semantics import OPEN
from swad.averaging.sums import FusedUpdate, WeightSum
from swad.averaging.valley import Status, as_number


class AverageGroup(Averager, Mapping[str, Average]):
    """Many averages of one trajectory with one addition per step.

    The cost of a step does not depend on the number of members: all three semantics, other tolerances, SMA and fixed
    windows share one addition. Averages that take only some updates (an interval) or weigh them differently (an EMA)
    cannot use the shared sum and keep a mean of their own. An update waits for the device in one case only: where a
    fixed window begins or ends while a `GradScaler` may skip steps.

    >>> import torch, swad
    >>> model = torch.nn.Linear(1, 1)
    >>> group = AverageGroup(model, {
    ...     "paper": swad.SWAD(model), "text": swad.SWAD(model, semantics="text"), "ema": swad.EMA(model),
    ... })
    >>> for step in range(1, 51):
    ...     group.update_parameters(model)
    ...     if step % 10 == 0:
    ...         statuses = group.observe(1.0)
    >>> statuses["paper"].start_step, statuses["ema"].n_averaged
    (10, 50)
    >>> with group["text"].average_parameters(model):
    ...     pass

    Args:
        model: The model to follow.
        averages: The members by name, without updates so far. Dense members must average the same tensors.
    """

    def __init__(self, model: nn.Module, averages: Mapping[str, Average]) -> None:
        if not isinstance(averages, Mapping):
            raise TypeError(
                f"the averages of a group have names, got a {type(averages).__name__}: pass {{name: average}}"
            )
        if not averages:
            raise ValueError("a group needs at least one average, got none")
        if len(set(map(id, averages.values()))) < len(averages):
            raise ValueError("every name needs an average of its own, got one under several names: build one for each")
        for name, average in averages.items():
            if not isinstance(average, Average):
                raise TypeError(
                    f"the members of a group are averages, got a {type(average).__name__} as {name!r}: "
                    f"pass e.g. swad.SWAD(model)"
                )
        super().__init__()
        self._members = dict(averages)
        self._fused = self._segment.fused = FusedUpdate()
        self._broken = False
        self._dense: list[Member] = [average for average in self._members.values() if average.dense]
        self._others: list[Member] = [average for average in self._members.values() if not average.dense]
        self._edges = {edge for average in self._dense for edge in average.window_edges()}
        shared_names = list(self._dense[0].tracked.averaged) if self._dense else []
        for name, average in self._members.items():
            if not average.can_join_group:
                raise ValueError(
                    f"an average joins one group, before its first update and before it is attached to an optimizer; "
                    f"{name} was used before: pass a new average, and attach the group"
                )
            if average.dense and list(average.tracked.averaged) != shared_names:
                raise ValueError(
                    f"the dense averages of a group average the same tensors; {name} has others: give it its own group"
                )
        for member in self._others:
            fused = member.fusible and list(member.tracked.averaged) == shared_names
            member.join_group(model, self._fused if fused else None)
        for member in self._dense:
            member.share_segment(self._segment, self._dense[0].tracked, self._resolve_skips)
            member.tracked.follow(model)
        self.tracked = self._first.tracked

    def __getitem__(self, name: str) -> Average:
        return self._members[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __repr__(self) -> str:
        members = "".join(f"  ({name}): {average!r}\n" for name, average in self._members.items())
        return f"AverageGroup(\n{members})"

    @property
    def should_stop(self) -> bool:
        """Whether every average is complete."""
        return all(average.finished() for average in self._members.values())

    @property
    def n_buffers(self) -> int:
        """Weight-sized buffers allocated now by the group and its members."""
        return sum(average.n_buffers for average in self._members.values()) + self._segment.allocated

    @property
    def next_edge(self) -> int | None:
        """The next update at which a fixed window begins or ends."""
        return min((edge for edge in self._edges if edge > self._updates), default=None)

    # -- during training ----------------------------------------------------------------------------------

    def count_replays(self, n: int = 1) -> None:
        """Count `n` replays of a CUDA graph that captured `update_parameters`.

        No fixed window may begin or end before the last of the `n`; see `next_edge`. Averages that take only some
        updates are not in the graph: they take the weights here, so `n` must not skip an update that they average.

        Args:
            n: How many replays were made since the last count.
        """
        if n < 1:
            raise ValueError(f"the number of replays must be at least 1, got {n}")
        edge = self.next_edge
        if edge is not None and self._updates + n > edge:
            raise ValueError(
                f"a segment must be closed at update {edge}, got {n} replays from update {self._updates}: "
                f"count up to that update first"
            )
        self._updates += n
        if self._segment.allocated:  # otherwise all dense members were complete when the graph was captured
            self._segment.count(n)
        self._segment.last = self._updates
        self._sync_steps()
        self._close_at_edge()  # now: the next replay adds before it is counted
        for average in self._others:
            average.take_replays(n)

    @torch.no_grad()
    def take_segment(self, total: Mapping[str, Tensor], n: int) -> None:
        """Take the sum of the weights after the next `n` updates at once, from a trajectory that was stored.

        The model must hold the weights and buffers of the last of them. See `swad.averaging.segment_log.replay`.

        Args:
            total: The sum by the name of the averaged tensor.
            n: The number of updates.
        """
        self._require_intact()
        if self._others or self._edges:
            raise ValueError(
                "a stored segment must be averaged as a whole, which averages with an interval or a window cannot do"
            )
        if self._segment.weight:
            raise ValueError("the previous segment is still open: call observe after each stored segment")
        tracked = self._dense[0].tracked
        missing = [name for name in tracked.averaged if name not in total]
        if missing:
            raise ValueError(f"the segment must hold every averaged tensor, but it lacks {', '.join(missing[:3])}")
        if not self._segment.allocated:
            self._segment.allocate(tracked.live())
        for value, name in zip(self._segment.values, tracked.averaged, strict=True):
            value.copy_(total[name])
        self._segment.count(n)
        self._updates += n
        self._segment.last = self._updates
        self._segment.use_live_buffers()
        self._sync_steps()

    def observe(self, loss: float | Tensor) -> dict[str, Status]:
        """Take the live model's validation loss after an evaluation and return every average's status.

        With several processes every rank must call it, with the same loss.

        Args:
            loss: One number, not negative: the mean over the validation examples, with the live weights.
        """
        self._require_intact()
        self._resolve_skips()
        self._require_new_update()
        loss = self._first.agreed_loss(as_number(loss))
        self._require_same_modules()
        for average in self._members.values():  # check all before the first one changes
            average.tracked.require_frozen()
            average.require_live("observe")
            average.check_loss(loss)
        statuses: dict[str, Status] = {}
        # Members that write files come first: if the disk is full, nothing has changed yet.
        for name in sorted(self._members, key=lambda name: not self._members[name].writes_files):
            try:
                statuses[name] = self._members[name].take_loss(loss)
            except BaseException:
                self._broken = bool(statuses)
                raise
        self._segment.clear()
        self._observed = self._updates
        if all(average.finished() for average in self._dense):
            self._segment.release()
        return {name: statuses[name] for name in self._members}

    # -- resume -------------------------------------------------------------------------------------------

    def state_dict(self, clone: bool = True) -> dict[str, Any]:
        """Return everything needed to continue exactly from here, loadable with `weights_only=True`.

        Args:
            clone: Copy the tensors, so that later updates do not change the state.
        """
        self._require_intact()
        self._resolve_skips()
        header: dict[str, Any] = {"version": STATE_VERSION, "updates": self._updates, "observed": self._observed}
        tensors: dict[str, Any] = {}
        if self._dense and self._segment.allocated:
            header["segment"] = self._segment.header()
            tensors = {OPEN: self._segment.named_tensors(self._dense[0].tracked, clone)}
        return {
            "header": json.dumps(header),
            "tensors": tensors,
            "averages": {name: average.own_state(clone) for name, average in self._members.items()},
        }

    def prepare_to_load(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Allocate the tensors that the headers describe and return a state to read them into."""
        header = json.loads(state["header"])
        tensors: dict[str, Any] = {}
        if "segment" in header:
            tracked = self._dense[0].tracked
            tensors = {OPEN: WeightSum.empty(header["segment"], tracked).named_tensors(tracked)}
        members = {name: average.prepare_to_load(state["averages"][name]) for name, average in self._members.items()}
        return {"header": state["header"], "tensors": tensors, "averages": members}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken, with the same averages by name.

        Args:
            state: What `state_dict` returned.
        """
        header = read_header(state, "AverageGroup")
        if "averages" not in state:
            owner = header.get("class")
            raise ValueError(
                f"this state belongs to {owner}, not to AverageGroup: load it into an average of that class"
            )
        if set(state["averages"]) != set(self._members):
            raise ValueError(
                f"a group must resume with the averages it was saved with: "
                f"{', '.join(state['averages'])} in the state, {', '.join(self)} here"
            )
        # Read everything before the first average changes, so that an error leaves the group intact.
        read = {name: average.read_state(state["averages"][name]) for name, average in self._members.items()}
        segment = None
        if "segment" in header:
            segment = WeightSum.from_state(header["segment"], state["tensors"][OPEN], self._dense[0].tracked)
        for name, average in self._members.items():
            average.restore(*read[name])
        self._segment.clear()
        if segment is not None:
            self._segment.load(segment)
            self._segment.first = int(header["segment"]["first"])
        self._updates, self._observed, self._skips = int(header["updates"]), int(header["observed"]), None
        self._broken = False

    def load_branch(self, state: Mapping[str, Any]) -> None:
        """Continue the trajectory of another group, from a state between two segments.

        Members with the same name continue. The others must be windows that begin there or later.

        Args:
            state: What `state_dict` of the other group returned.
        """
        header = read_header(state, "AverageGroup")
        if header.pop("segment", {"weight": 0})["weight"]:
            raise ValueError(
                "a trajectory can branch only where a segment ends: at an evaluation, or at the edge of a window"
            )
        counts = {name: header[name] for name in ("updates", "observed")}
        members = {}
        for name, average in self._members.items():
            members[name] = state["averages"].get(name)
            if members[name] is None:
                if min(average.window_edges(), default=-1) < counts["updates"]:
                    raise ValueError(
                        f"{name} averages updates before {counts['updates']}, where this trajectory branches off: "
                        f"average it from the start, or use a window that begins there"
                    )
                own = average.own_state(clone=True)
                members[name] = {**own, "header": json.dumps({**json.loads(own["header"]), **counts})}
        self.load_state_dict({"header": json.dumps(header), "tensors": {}, "averages": members})
        self._segment.last = self._updates
        self._segment.clear()  # the next segment begins after the shared updates

    # -- internals ----------------------------------------------------------------------------------------

    @property
    def _first(self) -> Member:
        return next(iter(self._members.values()))

    def _require_intact(self) -> None:
        if self._broken:
            raise RuntimeError("an evaluation failed after some averages had taken it: load the last state_dict")

    def _require_same_modules(self) -> None:
        for tracked in {id(average.tracked): average.tracked for average in self._members.values()}.values():
            tracked.require_same_modules()

    def take_update(self, model: nn.Module | None, skipped: Tensor | None) -> None:
        """Take the weights after a step, for all averages."""
        self._require_intact()
        self._fused.discard()
        in_capture = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        for average in self._others:
            if not (in_capture and average.sparse):  # a graph cannot choose its steps: see `count_replays`
                average.take_update(model, skipped)
        if self._dense:
            self._update_segment(model, skipped)

    @torch.no_grad()
    def _update_segment(self, model: nn.Module | None, skipped: Tensor | None) -> None:
        live = self._dense[0].tracked.live(model)
        self._dense[0].require_live("update_parameters")
        capturing = live[0].is_cuda and torch.cuda.is_current_stream_capturing()
        adds = self._segment.captured or not all(average.finished() for average in self._dense)
        if capturing:
            require_unskipped(skipped)
            if adds and not self._segment.allocated:
                raise RuntimeError("a CUDA graph needs allocated buffers: make one update before capturing")
            self._segment.captured = adds
        else:
            self._updates += 1
            self._segment.last = self._updates
        weight = None if skipped is None else 1 - self._count_skip(skipped)
        if adds:
            self._segment.add_live(live, weight, counted=not capturing)
        else:
            self._fused.run(live, None)
        self._segment.use_live_buffers()
        self._sync_steps()
        if not capturing:
            self._close_at_edge()

    def _close_at_edge(self) -> None:
        """Close the segment at an update where a window begins or ends, before a later update enters it.

        Besides evaluations, only this reads on the host how many steps a GradScaler skipped.
        """
        if any(self._segment.first <= edge <= self._updates for edge in self._edges):
            self._resolve_skips()
            if self._updates in self._edges and self._segment.weight:
                for average in self._dense:
                    average.close_segment()
                self._segment.clear()

    def _resolve_skips(self) -> None:
        if not self._dense:
            self._updates = self._others[0].step
            return
        super()._resolve_skips()
        self._sync_steps()

    def _sync_steps(self) -> None:
        for average in self._dense:
            average.set_step(self._updates)
