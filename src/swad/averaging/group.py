"""Any number of averages on one trajectory, for the cost of one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from swad.averaging.base import STATE_VERSION, Average, _after_step, _AttachHandle, _require_same_parameters
from swad.averaging.ema import EMA
from swad.averaging.one_pass import OnePass
from swad.averaging.semantics import OPEN
from swad.averaging.sums import Segment, WeightSum
from swad.averaging.valley import Status


class AverageGroup(Mapping[str, Average]):
    """Keep one running sum of the current segment and hand it, whole, to every average at its end.

    The cost of a step does not depend on how many averages ride along: all three semantics, other
    tolerances, SMA and fixed windows share one addition. What does not take every update (an interval) or weighs them
    differently (an EMA) cannot live on sums and keeps a mean of its own. No update waits for the device, but
    for one case: steps that a `GradScaler` may skip are counted on the host where a fixed window begins or ends.

    >>> import torch, swad
    >>> model = torch.nn.Linear(1, 1)
    >>> feed = AverageGroup(model, {
    ...     "paper": swad.SWAD(model), "text": swad.SWAD(model, semantics="text"), "ema": swad.EMA(model),
    ... })
    >>> for step in range(1, 51):
    ...     feed.update_parameters(model)
    ...     if step % 10 == 0:
    ...         statuses = feed.observe(1.0)
    >>> statuses["paper"].start_step, statuses["ema"].n_averaged
    (10, 50)
    >>> with feed["text"].average_parameters(model):
    ...     pass
    """

    def __init__(self, model: nn.Module, averages: Mapping[str, Average]) -> None:
        if not averages:
            raise ValueError("a feed needs at least one average")
        self._averages = dict(averages)
        self._segment = Segment()
        self._one_pass = self._segment.one_pass = OnePass()
        self._updates = 0
        self._observed = 0
        self._skips: Tensor | None = None
        self._attached: RemovableHandle | None = None
        self._broken = False
        self._dense = [average for average in self._averages.values() if average.dense]
        self._others = [average for average in self._averages.values() if not average.dense]
        self._edges = {edge for average in self._dense for edge in average._edges()}
        names = {name: list(average._tracked.averaged) for name, average in self._averages.items() if average.dense}
        first = next(iter(names.values()), [])
        for name, average in self._averages.items():
            if average._rides or average.step:
                raise ValueError(f"an average joins one feed, before its first update; {name} has begun already")
            if average.dense and names[name] != first:
                raise ValueError(f"averages on one feed average the same tensors; {name} has others: give it its own")
        for average in self._averages.values():
            average._rides = True
        for average in self._others:
            average._tracked.follow(model)
            if isinstance(average, EMA) and list(average._tracked.averaged) == first:
                average._segment.one_pass = self._one_pass
        for average in self._dense:
            average._feed, average._segment = self, self._segment
            average._tracked = self._dense[0]._tracked  # the same tensors: found once per update, not once each
            average._tracked.follow(model)

    def __getitem__(self, name: str) -> Average:
        return self._averages[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._averages)

    def __len__(self) -> int:
        return len(self._averages)

    @property
    def step(self) -> int:
        """Updates made so far."""
        self._resolve_skips()
        return self._updates

    @property
    def should_stop(self) -> bool:
        """No average can take anything more."""
        return all(average._finished() for average in self._averages.values())

    @property
    def n_buffers(self) -> int:
        """Weight-sized buffers held now by all together."""
        return sum(average.n_buffers for average in self._averages.values()) + self._segment.allocated

    def update_parameters(self, model: nn.Module | None = None) -> None:
        """Take the weights after an optimizer step, for all averages."""
        if self._attached is not None:
            raise RuntimeError("attached to an optimizer, this feed is updated by its step: drop the extra call")
        self._update(model, None)

    def attach(self, optimizer: torch.optim.Optimizer) -> RemovableHandle:
        """Update after every step `optimizer` really makes, from now on."""
        if self._attached is not None:
            raise RuntimeError("attached already: a feed follows one optimizer, or it would count steps twice")
        _require_same_parameters(optimizer, next(iter(self._averages.values()))._tracked)
        self._attached = handle = _AttachHandle(self, _after_step(optimizer, self._update))
        return handle

    def count_replays(self, n: int = 1) -> None:
        """Count `n` replays of a CUDA graph that captured `update_parameters`.

        Fixed windows must not begin or end between two calls: `next_edge` says how far one may go. Averages that take
        some updates only are not in the graph: they look at the weights here, so that one must not go beyond those.
        """
        if n < 1:
            raise ValueError(f"replays are counted by ones or more, got {n}")
        edge = self.next_edge
        if edge is not None and self._updates + n > edge:
            raise ValueError(
                f"a segment must be closed at update {edge}, got {n} replays from update {self._updates}: "
                f"count up to the edge first"
            )
        self._updates += n
        if self._segment.allocated:  # else nothing was left to add to when the graph was made
            self._segment.count(n)
        self._segment.last = self._updates
        self._sync_counts()
        self._close_at_edge()  # now: the next replay adds before anyone can close
        for average in self._others:
            if average._sparse:
                average._take_after_replays(n)
            else:
                average._count_replays(n)

    @property
    def next_edge(self) -> int | None:
        """The next update, beyond the last, at which some fixed window begins or ends."""
        return min((edge for edge in self._edges if edge > self._updates), default=None)

    def observe(self, loss: float | Tensor) -> dict[str, Status]:
        """Take the live model's validation loss after an evaluation; every average says where it is.

        With several processes every one must call it, with the same loss.
        """
        self._require_whole()
        self._resolve_skips()
        if self._updates <= self._observed:
            raise RuntimeError(
                f"observe needs an update since the last one, at update {self._observed}: "
                f"call update_parameters after every optimizer step, observe once per evaluation"
            )
        loss = next(iter(self._averages.values()))._agreed(float(loss))
        for average in self._averages.values():
            average._tracked.require_frozen()
            average._require_live("observe")
            average._check_loss(loss)  # all or none: one that refuses must not find the others moved on
        statuses: dict[str, Status] = {}
        # Those that write files come first: nothing has moved if a disk is full.
        for name in sorted(self._averages, key=lambda name: not self._averages[name].writes):
            try:
                statuses[name] = self._averages[name]._observe(loss)
            except BaseException:
                self._broken = bool(statuses)
                raise
        self._segment.clear()
        self._observed = self._updates
        if all(average._finished() for average in self._dense):
            self._segment.release()
        return {name: statuses[name] for name in self._averages}

    def state_dict(self, clone: bool = True) -> dict[str, Any]:
        """Everything needed to go on exactly from here, loadable with `weights_only=True`."""
        self._require_whole()
        self._resolve_skips()
        header: dict[str, Any] = {"version": STATE_VERSION, "updates": self._updates, "observed": self._observed}
        tensors: dict[str, Any] = {}
        if self._dense and self._segment.allocated:
            header["segment"] = self._segment.header()
            tensors = {OPEN: self._segment.tensors(self._dense[0]._tracked, clone)}
        return {
            "header": json.dumps(header),
            "tensors": tensors,
            "averages": {name: average.state_dict(clone) for name, average in self._averages.items()},
        }

    def headers(self) -> dict[str, Any]:
        """The places of the headers in a state, for checkpoints that fill what is there."""
        return {"header": "", "averages": {name: average.headers() for name, average in self._averages.items()}}

    def prepare_to_load(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Allocate what the headers describe and return the state to be filled, for distributed checkpoints."""
        header = json.loads(state["header"])
        tensors: dict[str, Any] = {}
        if "segment" in header:
            tracked = self._dense[0]._tracked
            tensors = {OPEN: WeightSum.empty(header["segment"], tracked).tensors(tracked)}
        members = {name: one.prepare_to_load(state["averages"][name]) for name, one in self._averages.items()}
        return {"header": state["header"], "tensors": tensors, "averages": members}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where `state_dict` was taken, with the same averages by name."""
        if set(state["averages"]) != set(self._averages):
            raise ValueError(
                f"a feed resumes with its averages: {', '.join(state['averages'])} there, {', '.join(self)} here"
            )
        header = json.loads(state["header"])
        for name, average in self._averages.items():
            average._checked_header(state["averages"][name]["header"])  # all or none
        for name, average in self._averages.items():
            average.load_state_dict(state["averages"][name])
        self._segment.clear()
        if "segment" in header:
            tracked = self._dense[0]._tracked
            self._segment.adopt(WeightSum.from_state(header["segment"], state["tensors"][OPEN], tracked))
            self._segment.first = int(header["segment"]["first"])
        self._updates, self._observed, self._skips = int(header["updates"]), int(header["observed"]), None
        self._broken = False

    def _require_whole(self) -> None:
        if self._broken:
            raise RuntimeError("an evaluation failed after some averages had taken it: load the last state_dict")

    def _update(self, model: nn.Module | None, skipped: Tensor | None) -> None:
        self._require_whole()
        self._one_pass.forget()
        outside = not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())
        for average in self._others:
            if outside or not average._sparse:  # a graph cannot choose its steps: `count_replays` takes those
                average._update(model, skipped)
        if not self._dense:
            return
        first = self._dense[0]
        with torch.no_grad():
            live = first._tracked.live(model)
            first._require_live("update_parameters")
            capturing = live[0].is_cuda and torch.cuda.is_current_stream_capturing()
            adds = self._segment.keep or not all(average._finished() for average in self._dense)
            if capturing:
                _require_capturable(self._segment, skipped, adds)
                self._segment.keep = adds
            else:
                self._updates += 1
                self._segment.last = self._updates
            weight = None
            if skipped is not None:
                skip = (skipped > 0).to(torch.float32).reshape(())
                self._skips = skip.clone() if self._skips is None else self._skips.add_(skip)
                weight = 1 - skip
            if adds:
                self._segment.add(live, weight, counted=not capturing)
            else:
                self._one_pass.run(live, None)
            self._segment.forget_carried()
            self._sync_counts()
            if not capturing:
                self._close_at_edge()

    def _close_at_edge(self) -> None:
        """Close the segment at the update where a window begins or ends, before a later one can enter it.

        Only here may a scaler's skips be read outside an evaluation.
        """
        if any(self._segment.first <= edge <= self._updates for edge in self._edges):
            self._resolve_skips()
            if self._updates in self._edges and self._segment.weight:
                for average in self._dense:
                    average._boundary(self._updates)
                self._segment.clear()

    def _resolve_skips(self) -> None:
        if not self._dense:
            self._updates = self._others[0].step
            return
        if self._skips is not None:
            self._updates -= int(self._skips)
            self._skips = None
            self._segment.last = min(self._segment.last, self._updates)
        self._segment.resolve()
        self._sync_counts()

    def _sync_counts(self) -> None:
        for average in self._dense:
            average._updates = self._updates


def _require_capturable(segment: Segment, skipped: Tensor | None, adds: bool) -> None:
    if skipped is not None:
        raise RuntimeError("steps that a GradScaler may skip cannot be counted in a graph: update outside of it")
    if adds and not segment.allocated:
        raise RuntimeError("a graph needs buffers that exist: make one update before capturing")
