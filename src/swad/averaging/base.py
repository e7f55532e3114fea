"""What every average of weights along a trajectory is made of and can do.

Every average is made of *pieces*: float32 sums of the weights over a stretch of the trajectory, with their
total weight. The piece being written, the open segment, takes one foreach addition per update: no host
synchronization, capturable in a CUDA graph, exact enough because a segment ends at the next evaluation
(two levels: sums inside a segment, segments into a mean). What happens to the pieces at an evaluation is not
decided here: the valley says it from the losses, as a recipe, and this module follows it with tensors.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from swad.averaging import tensors
from swad.averaging.semantics import LIVE, MEAN, OPEN, Mix, Recipe
from swad.averaging.sums import Segment, Source, WeightSum
from swad.averaging.tensors import Buffers, Patterns, TrackedTensors
from swad.averaging.valley import Status

if TYPE_CHECKING:
    from swad.averaging.group import AverageGroup

STATE_VERSION = 1


class Average:
    """What all averages share: following a model's tensors, swapping, copying, hooks and exact resume.

    A subclass says which updates it wants (`_wants`), what it makes of a segment at an evaluation
    (`_evaluated`), and which pieces its result is made of (`_result`).
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
        self._tracked = TrackedTensors(model, buffers, include, exclude)
        self._offload = offload
        self._process_group = process_group
        self._segment = Segment()
        self._feed: AverageGroup | None = None  # whose segment it shares
        self._rides = False  # whether a feed updates it, with or without sharing
        self._held: WeightSum | None = None  # in a feed: what this average keeps open beyond the shared segment
        self._pieces: dict[str, WeightSum] = {}
        self._updates = 0  # calls counted; a step an AMP scaler skipped is taken off in `step`
        self._skips: Tensor | None = None
        self._observed = 0  # the update of the last evaluation
        self._attached: RemovableHandle | None = None

    @property
    def _shared(self) -> bool:
        return self._feed is not None

    # -- during training ----------------------------------------------------------------------------------

    def update_parameters(self, model: nn.Module | None = None) -> None:
        """Take the weights after an optimizer step. Costs one foreach addition and never waits for the device.

        Inside a CUDA graph capture only the addition is recorded; call `count_replays` once per replay.
        """
        if self._attached is not None:
            raise RuntimeError("attached to an optimizer, this average is updated by its step: drop the extra call")
        self._require_own_segment("update_parameters")
        self._update(model, skipped=None)

    def attach(self, optimizer: torch.optim.Optimizer) -> RemovableHandle:
        """Update after every step `optimizer` really makes, from now on; `.remove()` on the handle ends it.

        Gradient accumulation needs no care: no step, no update. A step that a `GradScaler` skips does not
        count either, also for fused optimizers, whose step runs but leaves the weights alone.
        """
        self._require_own_segment("attach")
        if self._attached is not None:
            raise RuntimeError("attached already: an average follows one optimizer, or it would count steps twice")
        _require_same_parameters(optimizer, self._tracked)
        self._attached = handle = _AttachHandle(self, _after_step(optimizer, self._update))
        return handle

    def count_replays(self, n: int = 1) -> None:
        """Count `n` replays of a CUDA graph that captured `update_parameters`."""
        self._require_own_segment("count_replays")
        self._count_replays(n)

    def _count_replays(self, n: int) -> None:
        if n < 1:
            raise ValueError(f"replays are counted by ones or more, got {n}")
        self._updates += n
        self._segment.last = self._updates
        if self.dense:  # an EMA is a mean already, and weighs one
            self._segment.count(n)

    def _take_after_replays(self, n: int) -> None:
        """Take the weights after `n` replays of a graph that this average is not in."""
        missed = [step for step in range(self._updates + 1, self._updates + n) if self._wants(step)]
        if missed:
            raise ValueError(
                f"update {missed[0]} is averaged, got {n} replays from {self._updates}: count up to it first"
            )
        self._updates += n - 1
        self._update(None, skipped=None)

    def observe(self, loss: float | Tensor) -> Status:
        """Take the live model's validation loss after an evaluation and say where the trajectory is.

        With several processes every one must call it, with the same loss: it compares them.
        """
        self._require_own_segment("observe")
        self._tracked.require_frozen()
        return self._observe(self._agreed(float(loss)))

    def _observe(self, loss: float) -> Status:
        self._require_live("observe")
        self._resolve_skips()
        if self._updates <= self._observed:
            raise RuntimeError(
                f"observe needs an update since the last one, at update {self._observed}: "
                f"call update_parameters after every optimizer step, observe once per evaluation"
            )
        status = self._evaluated(loss, self._updates)
        self._observed = self._updates
        return status

    @property
    def step(self) -> int:
        """Updates made so far."""
        self._resolve_skips()
        return self._updates

    @property
    def status(self) -> Status:
        """Where the trajectory is, and what would be averaged if training ended now."""
        raise NotImplementedError

    # -- using the average --------------------------------------------------------------------------------

    @torch.no_grad()
    def copy_to(self, model: nn.Module | None = None) -> None:
        """Write the average, as if training ended now, into `model`. No state of the average changes.

        For good: to look at the average during training and go on, use `average_parameters`.
        """
        target = self._target(model)
        sources = self._result_sources()
        total = sum(source.weight for source in sources)
        if not total > 0:
            raise RuntimeError("there is nothing to average yet: call update_parameters after an optimizer step")
        tensors.reshard(target.model)
        for index, tensor in enumerate(target.live()):
            tensor.copy_(_mean(sources, index, total, tensor.device))
        carried = max(sources, key=lambda source: source.last).carried(self._tracked)
        for tensor, value in zip(target.live_carried(), carried, strict=True):
            if tensor is not value:
                tensor.copy_(value)
        theirs = target.live_left()
        for name, value in self._tracked.live_left().items():
            if theirs[name] is not value:
                tensors.local(theirs[name]).copy_(tensors.local(value))

    @contextmanager
    def average_parameters(self, model: nn.Module | None = None) -> Iterator[nn.Module]:
        """Put the average into `model` for the block, and the live weights back after it, whatever happens."""
        target = self._target(model)
        owner = target.model

        def written() -> list[Tensor]:
            # Looked up each time: moving the model in the block replaces its buffers, and a forward may gather shards.
            tensors.reshard(owner)
            left = [] if target is self._tracked else map(tensors.local, target.live_left().values())
            return [*target.live(), *target.live_carried(), *left]

        with tensors.swapped(owner, written):
            self.copy_to(model)
            yield owner if model is None else model

    def averaged_state(self) -> dict[str, Tensor]:
        """The average as if training ended now, by name: a state dict of new tensors in the model's dtypes.

        Frozen and excluded parameters and the buffers are in it too, so that it loads strictly.
        """
        sources = self._result_sources()
        total = sum(source.weight for source in sources)
        if not total > 0:
            raise RuntimeError("there is nothing to average yet: call update_parameters after an optimizer step")
        with torch.no_grad():
            state = {
                name: tensors.like(tensor, _mean(sources, index, total, tensor.device).to(tensor.dtype))
                for index, (name, tensor) in enumerate(self._tracked.averaged.items())
            }
            carried = max(sources, key=lambda source: source.last).carried(self._tracked)
            for (name, tensor), value in zip(self._tracked.carried.items(), carried, strict=True):
                state[name] = tensors.like(tensor, value.detach().to(tensor.device, copy=True))
            for name, tensor in self._tracked.live_left().items():
                state[name] = tensor.detach().clone()
        for alias, name in self._tracked.aliases():
            state[alias] = state[name]
        return state

    # -- resume -------------------------------------------------------------------------------------------

    def state_dict(self, clone: bool = True) -> dict[str, Any]:
        """Everything needed to go on exactly from here: a JSON header and named tensors.

        It holds only tensors, strings and dicts, so `torch.load(weights_only=True)` reads it back, and distributed
        checkpoints reshard it (see `swad.averaging.distributed_checkpoint`).
        """
        self._resolve_skips()
        pieces = self._named_pieces()
        header = {
            "version": STATE_VERSION,
            "class": type(self).__name__,
            "updates": self._updates,
            "observed": self._observed,
            "pieces": {name: piece.header() for name, piece in pieces.items()},
            **self._extra_state(),
        }
        return {
            "header": json.dumps(header),
            "tensors": {name: piece.tensors(self._tracked, clone) for name, piece in pieces.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where `state_dict` was taken, with the same settings and a model of the same names."""
        header = self._checked_header(state["header"])
        pieces = {
            name: WeightSum.from_state(head, state["tensors"][name], self._tracked, name != OPEN and self._offload)
            for name, head in header["pieces"].items()
        }
        self._load_extra_state(header)
        self._adopt(pieces, header)

    def headers(self) -> dict[str, Any]:
        """The place of the header in a state, for checkpoints that fill what is there."""
        return {"header": ""}

    def prepare_to_load(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Allocate what the state's header describes and return the state to be filled, for distributed checkpoints."""
        header = self._checked_header(state["header"])
        pieces = {
            name: WeightSum.empty(head, self._tracked, name != OPEN and self._offload)
            for name, head in header["pieces"].items()
        }
        room = {name: piece.tensors(self._tracked) for name, piece in pieces.items()}
        return {"header": state["header"], "tensors": room}

    @property
    def n_buffers(self) -> int:
        """Weight-sized buffers held now, the open segment included."""
        own_segment = not self._shared and self._segment.allocated
        return len(self._pieces) + (self._held is not None) + own_segment

    # -- for subclasses and feeds -------------------------------------------------------------------------

    dense = True
    """Takes every update of a segment, so that a feed can hand over the segment's sum instead."""

    writes = False
    """Writes files at evaluations, which may fail: a feed asks it first."""

    _sparse = False
    """Takes some updates only: it must remember their buffers, and cannot be captured."""

    def _wants(self, step: int | Tensor) -> bool | Tensor:
        """Whether the weights after update `step` are averaged; the same expression serves numbers and tensors."""
        return True

    def _evaluated(self, loss: float, step: int) -> Status:
        raise NotImplementedError

    def _result(self) -> Mix:
        raise NotImplementedError

    def _check_loss(self, loss: float) -> None:
        """Raise if `_evaluated` would."""

    def _finished(self) -> bool:
        """No later update can enter the average."""
        return False

    def _edges(self) -> tuple[int, ...]:
        """Updates after which a feed must close the segment for this average, beside the evaluations."""
        return ()

    def _boundary(self, step: int) -> None:
        """A feed closes the shared segment here, without an evaluation."""
        raise NotImplementedError

    def _extra_state(self) -> dict[str, Any]:
        return {}

    def _load_extra_state(self, header: Mapping[str, Any]) -> None:
        pass

    # -- inside -------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _update(self, model: nn.Module | None, skipped: Tensor | None) -> None:
        live = self._tracked.live(model)
        self._require_live("update_parameters")
        finished = self._finished()
        capturing = live[0].is_cuda and torch.cuda.is_current_stream_capturing()
        if capturing:
            self._require_capturable(skipped)
            self._segment.keep = True
        else:
            self._updates += 1
        if finished and not self._segment.keep:
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

    def _accumulate(self, live: list[Tensor], weight: Tensor | None, counted: bool = True) -> None:
        self._segment.last = self._updates
        self._segment.add(live, weight, counted=counted)
        if self._chooses(weight):
            self._segment.keep_carried(self._tracked, weight)
        else:
            self._segment.forget_carried()

    def _chooses(self, weight: Tensor | None) -> bool:
        """Whether a later update may be left out, so that the buffers of this one must be kept."""
        return self._sparse

    def _count_skip(self, skipped: Tensor) -> Tensor:
        skip = (skipped > 0).to(torch.float32).reshape(())
        if self._skips is None:
            self._skips = torch.zeros((), dtype=torch.int64, device=skip.device)
        self._skips += skip.to(torch.int64)
        return skip

    def _resolve_skips(self) -> None:
        """Read how many steps were skipped. Waits for the device: at evaluations and checkpoints only."""
        if self._feed is not None:
            self._feed._resolve_skips()
            return
        if self._skips is not None:
            self._updates -= int(self._skips)
            self._skips = None
            self._segment.last = min(self._segment.last, self._updates)
        self._segment.resolve()

    def _follow(self, recipe: Recipe) -> None:
        """Make the pieces the recipe asks for out of those kept, in place where a piece is used once."""
        step = self._updates
        open_sources: list[Source] = [s for s in (self._held, self._segment) if s is not None and s.weight]
        uses = Counter(name for mix in (*recipe.pieces.values(), recipe.open) for name in mix)
        # In a feed, what is left open is a piece of this average's own; alone, it is the segment itself.
        held_goes_on = self._held is not None and OPEN in recipe.open and uses[OPEN] == 1
        mixes = list(recipe.pieces.values())
        if self._shared and recipe.open and not held_goes_on:
            mixes.append(recipe.open)

        def in_place(mix: Mix) -> str | None:
            return next((n for n, w in mix.items() if n in self._pieces and uses[n] == 1 and w == 1), None)

        # Room first: if there is none, nothing has changed yet. Pieces let go make room for new ones.
        spare = [piece for name, piece in self._pieces.items() if not uses[name]]
        lacking = sum(in_place(mix) is None for mix in mixes) - len(spare)
        room = [WeightSum.zeros(self._tracked, self._offload) for _ in range(lacking)]
        room += [piece.emptied() for piece in spare]

        def mixed(mix: Mix, base: WeightSum | None = None) -> WeightSum:
            name_in_place = in_place(mix) if base is None else None
            piece = base or (self._pieces[name_in_place] if name_in_place else room.pop(0))
            for name, weight in mix.items():
                if name == LIVE:
                    piece.absorb(Source.of_live(self._tracked, step), weight, self._tracked)
                elif name in (OPEN, MEAN):
                    total = sum(source.weight for source in open_sources) if name == MEAN else 1
                    for source in open_sources:
                        piece.absorb(source, weight / total, self._tracked)
                elif name != name_in_place:
                    piece.absorb(self._pieces[name], weight, self._tracked)
            return piece

        pieces = {name: mixed(mix) for name, mix in recipe.pieces.items()}
        if self._shared:  # the feed clears the segment when all have taken it
            if held_goes_on:
                open_sources = [self._segment] if self._segment.weight else []
            self._held = mixed(recipe.open, self._held if held_goes_on else None) if recipe.open else None
        elif OPEN in recipe.open:
            own = self._segment.weight
            joined = [self._pieces[name] for name in recipe.open if name != OPEN]
            for piece in joined:
                self._segment.absorb(piece, 1.0, self._tracked)
            if joined and not own:  # an interval may leave a segment without an update of its own
                self._segment.take_carried(max(joined, key=lambda piece: piece.last), self._tracked)
        else:
            self._segment.clear()
        self._pieces = pieces
        if self._finished() and not self._shared:
            self._segment.release()

    def _result_sources(self) -> list[Source]:
        self._resolve_skips()
        sources: list[Source] = []
        for name, weight in self._result().items():
            if weight != 1:
                raise AssertionError("a result is a plain sum of pieces")
            if name != OPEN:
                sources.append(self._pieces[name])
            else:
                sources += [s for s in (self._held, self._segment) if s is not None and s.weight]
        return sources

    def _target(self, model: nn.Module | None) -> TrackedTensors:
        if model is None or tensors.unwrap(model) is self._tracked.model:
            return self._tracked
        target = TrackedTensors.__new__(TrackedTensors)
        target.__dict__.update(self._tracked.__dict__)
        target.follow(model)
        return target

    def _named_pieces(self) -> dict[str, WeightSum]:
        pieces = dict(self._pieces)
        if self._held is not None:
            pieces["held"] = self._held
        if not self._shared and self._segment.allocated:
            pieces[OPEN] = self._segment
        return pieces

    def _adopt(self, pieces: dict[str, WeightSum], header: Mapping[str, Any]) -> None:
        self._held = pieces.pop("held", None)
        opened = pieces.pop(OPEN, None)
        if not self._shared:
            self._segment.clear()
            if opened is not None:
                self._segment.adopt(opened)
        self._pieces = pieces
        self._skips = None
        self._updates, self._observed = int(header["updates"]), int(header["observed"])

    def _checked_header(self, text: str) -> dict[str, Any]:
        header: dict[str, Any] = json.loads(text)
        if header.get("version") != STATE_VERSION:
            raise ValueError(
                f"this state is of version {header.get('version')!r}, known is {STATE_VERSION}: "
                f"load it with the swad that wrote it"
            )
        if header["class"] != type(self).__name__:
            raise ValueError(f"this is the state of a {header['class']}, not of a {type(self).__name__}")
        return header

    def _require_capturable(self, skipped: Tensor | None) -> None:
        if self._sparse:
            raise RuntimeError(
                f"a captured update cannot choose its steps: update this {type(self).__name__} outside the graph"
            )
        if skipped is not None:
            raise RuntimeError("steps that a GradScaler may skip cannot be counted in a graph: update outside of it")
        if not self._segment.allocated or (not self.dense and not self._segment.weight):
            raise RuntimeError("a graph needs buffers that exist: make one update before capturing")

    def _require_own_segment(self, what: str) -> None:
        if self._rides:
            raise RuntimeError(f"this average rides on a AverageGroup: call {what} of the feed instead")

    def _require_live(self, what: str) -> None:
        if tensors.is_swapped(self._tracked.model):
            raise RuntimeError(f"{what} needs the live weights, and the model holds an average: leave the block first")

    def _agreed(self, loss: float) -> float:
        """The loss, when every rank has the same one: ranks that decide differently would average differently."""
        if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size(self._process_group) == 1:
            return loss
        on_cpu = "gloo" in dist.get_backend(self._process_group)
        device = torch.device("cpu") if on_cpu else self._tracked.live()[0].device
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


class _AttachHandle(RemovableHandle):
    """Ends the attachment on both sides."""

    def __init__(self, average: Any, hook: RemovableHandle) -> None:
        self._average, self._hook = average, hook

    def remove(self) -> None:
        self._hook.remove()
        if self._average._attached is self:
            self._average._attached = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


def _require_same_parameters(optimizer: torch.optim.Optimizer, tracked: TrackedTensors) -> None:
    stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if not any(id(tensor) in stepped for tensor in tracked.averaged.values()):
        raise ValueError("the optimizer steps none of the averaged parameters: attach the one that trains the model")


def _after_step(optimizer: torch.optim.Optimizer, update: Any) -> RemovableHandle:
    """Call `update` after each step of `optimizer`, telling it on the device whether a scaler skipped the step."""
    inner = optimizer
    while isinstance(wrapped := getattr(inner, "optimizer", None), torch.optim.Optimizer):
        inner = wrapped  # accelerate wraps optimizers; the hooks that fire are the inner one's

    def hook(stepped: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        # Present only while a GradScaler steps an optimizer that unscales by itself (fused ones).
        update(None, getattr(stepped, "found_inf", None))

    return inner.register_step_post_hook(hook)


def _mean(sources: list[Source], index: int, total: float, device: torch.device) -> Tensor:
    value = sources[0].sums[index].to(device, copy=True)
    for source in sources[1:]:
        value += source.sums[index].to(device)
    return value.div_(total)
